//go:build linux

package shm

import (
	"encoding/binary"
	"net"
	"os"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// alone is a queue pair whose peer is the test: what it would see of the segment,
// and the other end of its socket.
func alone(t testing.TB) (q *QueuePair, peer *directions, far *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	require.NoError(t, err)
	far = os.NewFile(uintptr(fds[0]), "far")
	near := os.NewFile(uintptr(fds[1]), "near")
	defer near.Close()
	sock, err := net.FileConn(near)
	require.NoError(t, err)
	seg, file, err := newSegment()
	require.NoError(t, err)
	defer file.Close()
	q, err = newQueuePair(&Domain{pairs: make(map[*QueuePair]struct{})}, seg, 0, sock.(*net.UnixConn))
	require.NoError(t, err)
	q.memory.pid = os.Getpid()
	q.reads, q.isRead = true, true
	q.peer = "shm:/peer"
	t.Cleanup(func() {
		q.gone.Store(true) // nobody watches, and nobody is waited for
		q.Close()
		far.Close()
	})
	return q, seg.dirs, far
}

// discard is a Receiver that checks what it is asked.
type discard struct {
	t      testing.TB
	n      int
	buf    [maxBody]byte
	pulled []error
}

func (d *discard) Place(header []byte, n int) []byte {
	require.Len(d.t, header, transport.HeaderLen)
	require.LessOrEqual(d.t, n, maxBody)
	return d.buf[:n]
}
func (d *discard) Receive(header, body []byte) bool { return transport.Receive(d, header, body) }
func (d *discard) Arrived(_, _ []byte)              { d.n++ }
func (d *discard) Pulled(_ uint64, err error)       { d.pulled = append(d.pulled, err) }

func TestALengthThatCannotBeBreaksTheConnection(t *testing.T) {
	for _, n := range []uint64{maxBody + 1, turned - 1, counted, counted + countedLen + 1, inPieces, inPieces + wholeLen, inPieces + maxBody + 1} {
		q, _, _ := alone(t)
		var watch sync.WaitGroup
		watch.Go(q.watch)
		woken := make(chan struct{}, 1)
		q.NotifyCQ(func() { woken <- struct{}{} })
		q.recv[rdma.Eager].slot.word = 1<<32 | n
		in := &discard{t: t}
		_, err := q.PollCQ(in)
		require.ErrorIs(t, err, transport.ErrBroken)
		require.Contains(t, err.Error(), "shm:/peer")
		require.ErrorIs(t, q.PostSend(rdma.Eager, new([transport.HeaderLen]byte), nil), transport.ErrBroken)
		require.Zero(t, in.n)
		<-woken
		q.Close()
		watch.Wait()
	}
}

func TestABodyThatGrowsInAWayThatCannotBeBreaksTheConnection(t *testing.T) {
	const n = wholeLen + pieceLen
	for name, lie := range map[string]func(s *slot){
		"beyond its length": func(s *slot) { *s.grown() = n + 1 },
		"backwards":         func(s *slot) { *s.grown() = pieceLen - 1 },
		"to another length": func(s *slot) { s.word++ },
	} {
		t.Run(name, func(t *testing.T) {
			q, _, _ := alone(t)
			in := &discard{t: t}
			s := q.recv[rdma.Eager].slot
			*s.grown() = pieceLen
			s.word = 1<<32 | inPieces | n
			moved, err := q.PollCQ(in)
			require.NoError(t, err)
			require.True(t, moved)
			lie(s)
			_, err = q.PollCQ(in)
			require.ErrorIs(t, err, transport.ErrBroken)
			require.Zero(t, in.n)
		})
	}
}

func TestFreeingWhatWasNotSentBreaksTheConnection(t *testing.T) {
	q, peer, _ := alone(t)
	header, body := new([transport.HeaderLen]byte), make([]byte, maxBody)
	var err error
	for err == nil {
		err = q.PostSend(rdma.Eager, header, body)
	}
	require.ErrorIs(t, err, transport.ErrFull)
	peer[0].heads[rdma.Eager].Store(1 << 40)
	require.ErrorIs(t, q.PostSend(rdma.Eager, header, body), transport.ErrBroken)
}

func TestHelpCopiesOnlyWhatIsRegistered(t *testing.T) {
	const part = 64 << 10
	const size = 4 * part
	secret, offered, into := make([]byte, size), make([]byte, size), make([]byte, size)
	for i := range size {
		secret[i], offered[i] = 1, 2
	}
	address := func(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
	q, peer, _ := alone(t)
	key, ok := q.Register(offered[:3*part], rdma.RemoteRead)
	require.True(t, ok)
	gone, ok := q.Register(offered, rdma.RemoteRead)
	require.True(t, ok)
	q.Deregister(gone)
	exposed, ok := q.Register(offered, rdma.RemoteWrite)
	require.True(t, ok)
	elsewhere := key
	elsewhere.Addr = address(secret)
	beyond := key
	beyond.Remote[0] = 1 << 60
	in := &discard{t: t}
	for _, tt := range []struct {
		name   string
		key    rdma.Key
		length uint64
		copies bool
	}{
		{"another address", elsewhere, size / 2, false},
		{"longer than the region", key, size, false},
		{"a length that overflows", key, 1<<64 - 1, false},
		{"an index that cannot be", beyond, part, false},
		{"a region that was withdrawn", gone, part, false},
		{"a region to be written", exposed, part, false},
		{"a region", key, 3 * part, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clear(into)
			peer[0].transfers[1].open(tt.key, address(into), tt.length)
			peer[0].active.Store(1<<63 | 1<<1)
			moved, err := q.PollCQ(in)
			require.NoError(t, err)
			require.Equal(t, tt.copies, moved)
			if tt.copies {
				require.Equal(t, offered[:tt.length], into[:tt.length])
				return
			}
			require.Equal(t, make([]byte, size), into)
		})
	}
}

// postRead posts a read of n bytes that the peer has registered.
func postRead(t *testing.T, q *QueuePair, peer *directions, n int) (from, into []byte) {
	from, into = make([]byte, n), make([]byte, n)
	for i := range from {
		from[i] = byte(i * 7)
	}
	remote := &regionTable{}
	remote.init(&peer[1].grants)
	key, ok := remote.register(from, rdma.RemoteRead)
	require.True(t, ok)
	require.NoError(t, q.PostRead(into, key, 9))
	return from, into
}

func TestAReadWaitsForTheChunksOfItsHelper(t *testing.T) {
	q, peer, _ := alone(t)
	from, into := postRead(t, q, peer, sharedRead+1)
	q.share(&q.posted[0])
	x := &peer[1].transfers[0]
	off, n, ok := x.claim(x.cursor.Load(), uint64(len(from)))
	require.True(t, ok)
	in := &discard{t: t}
	for range 3 {
		_, err := q.PollCQ(in)
		require.NoError(t, err)
	}
	require.Empty(t, in.pulled, "the read ended before its helper")
	woken := 0
	q.NotifyCQ(func() { woken++ })
	require.Zero(t, woken, "it can do nothing but wait")
	copy(into[off:off+n], from[off:])
	x.finished(false)
	q.NotifyCQ(func() { woken++ })
	require.Equal(t, 1, woken)
	_, err := q.PollCQ(in)
	require.NoError(t, err)
	require.Equal(t, []error{nil}, in.pulled)
	require.Equal(t, from, into)
}

// Close may come between two chunks of a Poll. Nobody would wait for a helper after it.
func TestAReadIsNotSharedAfterClose(t *testing.T) {
	q, peer, _ := alone(t)
	into := make([]byte, sharedRead)
	require.NoError(t, q.PostRead(into, rdma.Key{Addr: 1, Len: sharedRead, Remote: [2]uint64{0, 1}}, 9))
	q.gone.Store(true)
	q.Close()
	q.share(&q.posted[0])
	require.Nil(t, q.posted[0].shared)
	require.Zero(t, peer[1].active.Load(), "the peer is asked to write here")
}

func TestAReadWhoseHelperFailsIsReadAgain(t *testing.T) {
	q, peer, _ := alone(t)
	from, into := make([]byte, sharedRead), make([]byte, sharedRead)
	from[5] = 1
	remote := &regionTable{}
	remote.init(&peer[1].grants)
	key, _ := remote.register(from, rdma.RemoteRead)
	require.NoError(t, q.PostRead(into, key, 9))
	q.share(&q.posted[0])
	x := &peer[1].transfers[0]
	_, _, ok := x.claim(x.cursor.Load(), uint64(len(from)))
	require.True(t, ok)
	x.finished(true)
	in := &discard{t: t}
	_, err := q.PollCQ(in)
	require.NoError(t, err)
	require.Equal(t, []error{nil}, in.pulled)
	require.Equal(t, from, into)
}

// Whatever the peer writes to the segment, nothing here panics, hangs, or reads
// or writes beyond a lane. What is fuzzed is cut into 16-byte records: where to
// write eight bytes, and which.
func FuzzSegment(f *testing.F) {
	record := func(at uintptr, v uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, uint64(at)), v)
	}
	in := unsafe.Sizeof(direction{})
	f.Add(record(in+unsafe.Offsetof(direction{}.eager), 1<<32|100))
	f.Add(record(in+unsafe.Offsetof(direction{}.bulk), 1<<32|maxBody))
	f.Add(record(in+unsafe.Offsetof(direction{}.eager), 1<<32|inPieces|maxBody))
	f.Add(record(unsafe.Offsetof(direction{}.heads), 3))
	f.Add(append(record(unsafe.Offsetof(direction{}.active), 1), record(unsafe.Offsetof(direction{}.transfers)+32, 1<<20)...))
	f.Add(record(unsafe.Offsetof(direction{}.grants), 1))
	f.Fuzz(func(t *testing.T, script []byte) {
		q, peer, _ := alone(t)
		mem := unsafe.Slice((*byte)(unsafe.Pointer(peer)), segmentBytes)
		in := &discard{t: t}
		into := make([]byte, sharedRead)
		var header [transport.HeaderLen]byte
		q.Register(make([]byte, 1000), rdma.RemoteWrite)
		q.PostRead(into, rdma.Key{Addr: 1, Len: sharedRead, Remote: [2]uint64{0, 1}}, 1)
		for ; len(script) >= 16; script = script[16:] {
			at := binary.LittleEndian.Uint64(script) % uint64(segmentBytes-8) &^ 7
			copy(mem[at:], script[8:16])
			q.PollCQ(in)
			q.PostSend(rdma.Eager, &header, in.buf[:100])
			q.PostSend(rdma.Bulk, &header, in.buf[:])
			q.NotifyCQ(func() {})
		}
	})
}
