//go:build linux

package shm

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// crowd makes the senders of q turn back.
func crowd(q *QueuePair) { q.domain.stride.Store(turnEvery - 1) }

// collector notes the numbers of messages, which are their headers' first bytes, and checks that
// bodies are filled with them.
type collector struct {
	t    testing.TB
	buf  [maxBody]byte
	next uint64
}

func (c *collector) Place(_ []byte, n int) []byte     { return c.buf[:n] }
func (c *collector) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *collector) Arrived(header, body []byte) {
	require.Equal(c.t, c.next, binary.LittleEndian.Uint64(header))
	for _, b := range body {
		if b != byte(c.next) {
			require.FailNow(c.t, "a body of another message", "message %d, %d bytes, has %d", c.next, len(body), b)
		}
	}
	c.next++
}
func (c *collector) Pulled(uint64, error) {}

// pairOf is both ends of a segment, with nobody who watches.
func pairOf(t testing.TB) (near, far *QueuePair) {
	near, dirs, _ := alone(t)
	far, _, _ = alone(t)
	send, recv := dirs.lanes(1), dirs.lanes(0)
	for l := range rdma.Lane(rdma.Lanes) {
		far.send[l], far.recv[l] = newSendLane(send[l]), newRecvLane(recv[l])
	}
	far.segment, far.out, far.in = near.segment, &dirs[1], &dirs[0]
	return near, far
}

func TestTurningBack(t *testing.T) {
	near, far := pairOf(t)
	crowd(near)
	crowd(far)
	turns, _ := atRandom(t, near, far, 9, false)
	require.Greater(t, turns, 15)
}

// The ring of bytes begins anew before its end, whether something is still in it or not.
func TestTheRingOfBytesBeginsAnew(t *testing.T) {
	for _, drains := range []bool{true, false} {
		near, far := pairOf(t)
		neverTurns(near)
		turns, begins := atRandom(t, near, far, 2, drains)
		require.Zero(t, turns)
		require.Greater(t, begins, 2)
	}
}

// A long message for which there is no slot does not begin the ring of bytes: the one that then begins it says so.
func TestAFullLaneBeginsNothing(t *testing.T) {
	near, far := pairOf(t)
	neverTurns(near)
	in, lane := &collector{t: t}, &near.send[rdma.Eager]
	var sent uint64
	post := func(n int) error {
		var header [transport.HeaderLen]byte
		binary.LittleEndian.PutUint64(header[:], sent)
		err := near.PostSend(rdma.Eager, &header, bytes.Repeat([]byte{byte(sent)}, n))
		if err == nil {
			sent++
		}
		return err
	}
	drain := func() {
		for moved := true; moved; {
			var err error
			moved, err = far.PollCQ(in)
			require.NoError(t, err)
		}
	}
	for lane.dataAsked < eagerBytes/4 || lane.dataTail+maxBody <= lane.dataAsked {
		require.NoError(t, post(maxBody))
		drain()
	}
	var err error
	for err == nil {
		err = post(8)
	}
	require.Equal(t, transport.ErrFull, err)
	used := lane.dataTail
	require.Equal(t, transport.ErrFull, post(maxBody))
	require.Equal(t, used, lane.dataTail)
	drain()
	require.NoError(t, post(maxBody))
	require.Greater(t, lane.dataTail-used, uint64(2*maxBody), "it begins now")
	drain()
	require.Equal(t, sent, in.next)
}

// neverTurns has the senders of q not turn back.
func neverTurns(q *QueuePair) { q.domain.stride.Store(^uint64(0)) }

// atRandom sends messages of random lengths, which are received a while later, and tells how often their sender has
// turned back, or begun the ring of bytes anew. At a time they are 1 << burst at most. drains: before
// the next are sent nothing is left.
func atRandom(t *testing.T, near, far *QueuePair, burst int, drains bool) (turns, begins int) {
	in := &collector{t: t}
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 8, inlineLen, inlineLen + 1, cellLen, cellLen + 1, 5000, maxBody}
	bodies := make([]byte, maxBody)
	var header [transport.HeaderLen]byte
	sent := uint64(0)
	lane := &near.send[rdma.Eager]
	for range 700 {
		for range 1 + random.IntN(1<<random.IntN(burst)) {
			body := bodies[:sizes[random.IntN(len(sizes))]]
			for i := range body {
				body[i] = byte(sent)
			}
			binary.LittleEndian.PutUint64(header[:], sent)
			tail, used := lane.tail, lane.dataTail
			err := near.PostSend(rdma.Eager, &header, body)
			if err == transport.ErrFull {
				break
			}
			require.NoError(t, err)
			sent++
			switch {
			case lane.tail != tail+1:
				turns++
			case used%eagerBytes != 0 && used%eagerBytes+uint64(len(body))+63 < eagerBytes && lane.dataTail-used > maxBody:
				begins++
			}
		}
		for moved, polls := true, 100*random.IntN(4); drains && moved || polls > 0; polls-- {
			var err error
			moved, err = far.PollCQ(in)
			require.NoError(t, err)
		}
	}
	for moved := true; moved; {
		var err error
		moved, err = far.PollCQ(in)
		require.NoError(t, err)
	}
	require.Equal(t, sent, in.next)
	return turns, begins
}

// A ring of bytes whose receiver has always taken everything needs a quarter of its memory.
func TestARingOfQuestionsAndAnswersStaysSmall(t *testing.T) {
	near, far := pairOf(t)
	neverTurns(near)
	in := &collector{t: t}
	ring := near.out.eagerData[:]
	for _, n := range []int{cellLen + 1, 5000, maxBody} {
		for range 4 * eagerBytes / n {
			var header [transport.HeaderLen]byte
			binary.LittleEndian.PutUint64(header[:], in.next)
			require.NoError(t, near.PostSend(rdma.Eager, &header, bytes.Repeat(header[:1], n)))
			for range 2 { // the message, then nothing
				_, err := far.PollCQ(in)
				require.NoError(t, err)
			}
		}
	}
	require.LessOrEqual(t, resident(t, ring), eagerBytes/4)
}

func TestALaneOfQuestionsAndAnswersStaysSmall(t *testing.T) {
	near, far := pairOf(t)
	crowd(near)
	crowd(far)
	in := &collector{t: t}
	used := map[uint64]bool{}
	for n := range uint64(10 * eagerSlots) {
		var header [transport.HeaderLen]byte
		binary.LittleEndian.PutUint64(header[:], n)
		require.NoError(t, near.PostSend(rdma.Eager, &header, nil))
		lane := &near.send[rdma.Eager]
		used[lane.index(lane.tail-1)] = true
		for range 2 { // the message, then nothing
			_, err := far.PollCQ(in)
			require.NoError(t, err)
		}
	}
	require.Len(t, used, turnEvery)
}

// resident is how many bytes of b have memory.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	core := make([]byte, len(b)/pageLen)
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), uintptr(unsafe.Pointer(unsafe.SliceData(core))))
	require.Zero(t, errno)
	for _, c := range core {
		n += int(c&1) * pageLen
	}
	return n
}

// Beside the slots a lane has as much memory as it has ever needed, doubled now and then; in both directions, one of which
// begins half a page further on.
func TestALaneAsksForTheMemoryThatItNeeds(t *testing.T) {
	near, far := pairOf(t)
	if unix.Madvise(near.out.bulkData[:pageLen], unix.MADV_POPULATE_WRITE) != nil {
		t.Skip("the kernel makes pages only when they are touched (before Linux 5.14)")
	}
	for _, way := range []struct{ from, to *QueuePair }{{near, far}, {far, near}} {
		neverTurns(way.from)
		cells, ring := bytesOf(way.from.out.cells[:]), way.from.out.eagerData[:]
		for _, c := range []struct {
			body   int
			memory []byte
			first  int
		}{{cellLen, cells, 2 * pageLen}, {2 * cellLen, ring, firstAsked}} {
			in, asked := &collector{t: t, next: way.from.send[rdma.Eager].tail}, 0
			sent := in.next
			for used := c.body; used < 3*len(c.memory); used += (c.body + 63) &^ 63 {
				for asked < min(used, len(c.memory)) {
					asked = max(2*asked, c.first)
				}
				var header [transport.HeaderLen]byte
				binary.LittleEndian.PutUint64(header[:], sent)
				sent++
				require.NoError(t, way.from.PostSend(rdma.Eager, &header, bytes.Repeat(header[:1], c.body)))
				for moved := used > len(c.memory)*5/8; moved; { // until all is asked for nothing is received
					var err error
					moved, err = way.to.PollCQ(in)
					require.NoError(t, err)
				}
				require.Equal(t, asked, resident(t, c.memory), "of %d that were used", used)
			}
		}
	}
}

// A sender that is full when it has turned back waits for what its receiver frees from then on.
func TestFullAfterTurningBack(t *testing.T) {
	near, far := pairOf(t)
	crowd(near)
	crowd(far)
	in := &collector{t: t}
	var header [transport.HeaderLen]byte
	sent := uint64(0)
	post := func() error {
		binary.LittleEndian.PutUint64(header[:], sent)
		err := near.PostSend(rdma.Eager, &header, nil)
		if err == nil {
			sent++
		}
		return err
	}
	drain := func() {
		for range 2 { // messages, then nothing
			_, err := far.PollCQ(in)
			require.NoError(t, err)
		}
		require.Equal(t, sent, in.next)
	}
	for range turnEvery {
		require.NoError(t, post())
	}
	drain()
	for range 10 {
		for range turnEvery { // the slot that says so is not free yet
			require.NoError(t, post())
		}
		require.Equal(t, transport.ErrFull, post())
		require.False(t, near.due())
		drain()
		require.True(t, near.due())
	}
}

// The header is left out of a message that has little room beside it where it is the one before
// but for its count, and only there.
func TestCountedHeaders(t *testing.T) {
	near, far := pairOf(t)
	header := func(first byte, count uint64) (h [transport.HeaderLen]byte) {
		h[0], h[transport.HeaderLen-1] = first, 9
		binary.LittleEndian.PutUint64(h[transport.CountAt:], count)
		return h
	}
	for i, tt := range []struct {
		header  [transport.HeaderLen]byte
		length  int
		streams bool
		counted bool
	}{
		{header(1, 1), countedLen, false, false},
		{header(1, 2), countedLen, false, true},
		{header(1, 3), firstLine + 1, false, true},
		{header(1, 4), firstLine, false, false},
		{header(1, 5), countedLen + 1, false, false},
		{header(1, 6), countedLen, false, true},
		{header(1, 6), countedLen, false, false},
		{header(1, 8), countedLen, false, false},
		{header(2, 9), countedLen, false, false},
		{header(2, 10), countedLen, true, false},
		{header(2, 11), countedLen, false, false},
		{header(2, 12), countedLen, false, true},
		{header(2, 13), 2 * wholeLen, false, false},
		{header(2, 14), countedLen, false, true},
	} {
		body := bytes.Repeat([]byte{byte(i + 1)}, tt.length)
		posted, ok := near.send[rdma.Eager].post(&tt.header, body, tt.streams)
		require.True(t, posted && ok)
		require.Equal(t, tt.counted, far.recv[rdma.Eager].slot.word&counted != 0, "message %d", i)
		in := &kept{}
		moved, err := far.PollCQ(in)
		require.NoError(t, err)
		require.True(t, moved)
		require.Equal(t, tt.header[:], in.header)
		require.Equal(t, body, in.body)
	}
}

// A poll ends with a message after which its receiver wants no more.
func TestAPollEndsWhereNoMoreIsWanted(t *testing.T) {
	near, far := pairOf(t)
	var header [transport.HeaderLen]byte
	for _, n := range []int{8, inlineLen + 1, 8, inlineLen + 1} {
		posted, ok := near.send[rdma.Eager].post(&header, make([]byte, n), false)
		require.True(t, posted && ok)
		posted, ok = near.send[rdma.Eager].post(&header, make([]byte, n), false)
		require.True(t, posted && ok)
	}
	in := &few{collector: collector{t: t}}
	for _, poll := range []struct{ wants, gets int }{{1, 1}, {1, 1}, {3, 3}, {9, 3}, {1, 0}} {
		in.wants, in.gets = poll.wants, 0
		moved, err := far.PollCQ(in)
		require.NoError(t, err)
		require.Equal(t, poll.gets > 0, moved)
		require.Equal(t, poll.gets, in.gets)
	}
}

// few wants that many messages of a poll.
type few struct {
	collector
	wants, gets int
}

func (f *few) Receive(header, body []byte) bool {
	f.gets++
	return f.gets < f.wants
}

// kept is the last message.
type kept struct{ header, body []byte }

func (k *kept) Place(_ []byte, n int) []byte     { return make([]byte, n) }
func (k *kept) Receive(header, body []byte) bool { return transport.Receive(k, header, body) }
func (k *kept) Arrived(header, body []byte)      { k.header, k.body = bytes.Clone(header), body }
func (k *kept) Pulled(uint64, error)             {}

// A body that grows is taken by pieces; who has taken all that is there sleeps until it is whole.
func TestABodyThatGrows(t *testing.T) {
	near, far := pairOf(t)
	in := &collector{t: t}
	var header [transport.HeaderLen]byte
	body := bytes.Repeat([]byte{0}, wholeLen+100)
	near.send[rdma.Eager].lines = false
	posted, ok := near.send[rdma.Eager].post(&header, body, false)
	require.True(t, posted && ok)
	s := far.recv[rdma.Eager].slot
	*s.grown() = pieceLen // it has not come further
	for _, moves := range []bool{true, false} {
		require.False(t, far.due())
		moved, err := far.PollCQ(in)
		require.NoError(t, err)
		require.Equal(t, moves, moved)
	}
	require.Zero(t, in.next)
	*s.grown() = uint64(len(body))
	require.True(t, far.due())
	moved, err := far.PollCQ(in)
	require.NoError(t, err)
	require.True(t, moved)
	require.EqualValues(t, 1, in.next)
}

func TestBodiesAreTakenWhileTheyGrow(t *testing.T) {
	t.Run("copied", func(t *testing.T) { bodiesGrow(t, false) })
	t.Run("copied by lines", func(t *testing.T) { bodiesGrow(t, true) })
}

func bodiesGrow(t *testing.T, lines bool) {
	const messages = 3000
	near, far := pairOf(t)
	near.send[rdma.Eager].lines = lines
	var sender sync.WaitGroup
	sender.Go(func() {
		random := rand.New(rand.NewPCG(3, 4))
		lane := &near.send[rdma.Eager]
		for n := range uint64(messages) {
			var header [transport.HeaderLen]byte
			binary.LittleEndian.PutUint64(header[:], n)
			body := bytes.Repeat([]byte{byte(n)}, random.IntN(maxBody+1))
			for posted := false; !posted; {
				if posted, _ = lane.post(&header, body, false); !posted {
					runtime.Gosched()
				}
			}
		}
	})
	defer sender.Wait()
	in := &collector{t: t}
	for in.next < messages {
		moved, err := far.PollCQ(in)
		require.NoError(t, err)
		if !moved {
			runtime.Gosched()
		}
	}
}

// A peer that turns back and turns back keeps nobody within PollCQ.
func TestAPeerThatOnlyTurnsBack(t *testing.T) {
	q, _, _ := alone(t)
	lane := &q.recv[rdma.Eager]
	stop := make(chan struct{})
	var liar sync.WaitGroup
	liar.Go(func() {
		word := &lane.slots[lane.index(0)].word
		for lap := uint64(1); ; lap++ {
			select {
			case <-stop:
				return
			default:
				atomic.StoreUint64(word, lap<<32|turned)
			}
		}
	})
	in := &discard{t: t}
	for range 1000 {
		_, err := q.PollCQ(in)
		require.NoError(t, err)
	}
	close(stop)
	liar.Wait()
	require.Zero(t, in.n)
}

// Who falls asleep needs a barrier again after many polls that found messages, and not before.
func TestDrowsyUntilLively(t *testing.T) {
	near, far := pairOf(t)
	in := &collector{t: t}
	n := uint64(0)
	exchange := func() {
		var header [transport.HeaderLen]byte
		binary.LittleEndian.PutUint64(header[:], n)
		require.NoError(t, near.PostSend(rdma.Eager, &header, nil))
		n++
		for range 2 { // the message, then nothing
			_, err := far.PollCQ(in)
			require.NoError(t, err)
		}
	}
	sleeping := &near.out.sleeping
	require.EqualValues(t, awake, sleeping.Load())
	far.NotifyCQ(func() {})
	require.EqualValues(t, asleep, sleeping.Load())
	for range lively - 1 {
		exchange()
		require.EqualValues(t, drowsy, sleeping.Load())
	}
	exchange()
	require.EqualValues(t, awake, sleeping.Load())
}
