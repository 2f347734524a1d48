//go:build linux

package shm_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/shm"
)

// The other process of these tests is this binary: with this variable set it
// dials that address and answers what comes.
const dialVariable = "SHM_TEST_DIAL"

func TestMain(m *testing.M) {
	if a := os.Getenv(dialVariable); a != "" {
		if err := answer(transport.Addr(a)); !errors.Is(err, transport.ErrBroken) { // the peer is gone
			fmt.Fprintln(os.Stderr, "the other process:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What the first byte of a header asks for.
const (
	echo     = iota // the same body back
	pull            // pull what the ticket offers, and offer it back
	bulk            // a part of as many bytes as the header says: all back when all are here
	count           // nothing
	report          // how many were counted
	flood           // numbered messages without end
	exchange        // as many bare exchanges, over the file that is named
)

// A node is one end, which answers or asks.
type node struct {
	conn  *rdma.Conn
	spin  spinner
	buf   []byte // bodies arrive here
	out   []byte // and leave from here, as in osu_latency
	n     int    // bytes of a bulk body that have arrived
	seen  uint64
	kind  byte
	ready int // answers that have come
	at    int

	bare *bare // see BenchmarkBare
	name int   // bytes of buf that name its file

	offered, ticket transport.Ticket // this side's, the peer's
	header          [transport.HeaderLen]byte
	err             error
}

func (n *node) Place(h []byte, size int) []byte {
	if h[0] == bulk {
		n.at = n.n
		return n.buf[n.at : n.at+size]
	}
	return n.buf[:size]
}

func (n *node) Receive(header, body []byte) bool { return transport.Receive(n, header, body) }
func (n *node) Arrived(h, body []byte) {
	n.kind = h[0]
	copy(n.header[:], h)
	switch h[0] {
	case pull:
		size := binary.LittleEndian.Uint64(h[8:])
		copy(n.ticket[:], body)
		if err := n.conn.Pull(n.ticket, n.buf[:size], 1); err != nil {
			n.err = err
		}
	case bulk:
		n.n += len(body)
		if n.n == int(binary.LittleEndian.Uint64(h[8:])) {
			n.ready++
		}
	case count:
		n.seen++
	case exchange:
		n.name = len(body)
		n.ready++
	default:
		n.ready++
	}
}

func (n *node) Pulled(_ uint64, err error) {
	n.err = errors.Join(n.err, err)
	n.ready++
}

func (n *node) poll() error {
	if err := n.spin.poll(n.conn, n); err != nil {
		return err
	}
	return n.err
}

// A spinner polls, and sleeps when it has polled in vain for about half a millisecond: on a
// busy machine the peer may not even run.
type spinner struct {
	idle  int
	woken chan struct{}
}

func (s *spinner) poll(c *rdma.Conn, in transport.Receiver) error {
	moved, err := c.Poll(in)
	if s.idle++; moved {
		s.idle = 0
	}
	if err != nil || s.idle < 50_000 {
		return err
	}
	s.idle = 0
	if s.woken == nil {
		s.woken = make(chan struct{}, 1)
	}
	c.Arm(func() {
		select {
		case s.woken <- struct{}{}:
		default: // one is enough
		}
	})
	<-s.woken
	return nil
}

func (n *node) send(kind byte, size int, body []byte, lane bool) error {
	n.header[0] = kind
	binary.LittleEndian.PutUint64(n.header[8:], uint64(size))
	for {
		err := n.conn.Send(transport.Message{Header: n.header[:], Body: body, Bulk: lane})
		if err == nil {
			return n.conn.Flush()
		}
		if !errors.Is(err, transport.ErrFull) {
			return err
		}
		if err := n.poll(); err != nil {
			return err
		}
	}
}

func (n *node) sendBulk(body []byte) error {
	for rest := body; len(rest) > 0; {
		part := rest[:min(len(rest), n.conn.MaxBody())]
		if err := n.send(bulk, len(body), part, true); err != nil {
			return err
		}
		rest = rest[len(part):]
	}
	return nil
}

func (n *node) offer(body []byte) error {
	t, ok := n.conn.Offer(body)
	if !ok {
		return errors.New("an offer was not taken")
	}
	n.offered = t
	return n.send(pull, len(body), n.offered[:], false)
}

const largest = 16 << 20

// answer is the other process. Its error is ErrBroken when the peer is gone.
func answer(a transport.Addr) error {
	d, err := shm.Listen(filepath.Join(filepath.Dir(a.Local()), fmt.Sprint("child", os.Getpid())), shm.Options{})
	if err != nil {
		return err
	}
	e := rdma.New(d)
	defer e.Close()
	ctx, stop := shortly()
	defer stop()
	c, err := e.Dial(ctx, a)
	if err != nil {
		return err
	}
	n := &node{conn: c.(*rdma.Conn), buf: make([]byte, largest), out: make([]byte, largest)}
	for {
		if err := n.poll(); err != nil {
			return err
		}
		if n.ready == 0 {
			continue
		}
		n.ready = 0
		size := int(binary.LittleEndian.Uint64(n.header[8:]))
		switch n.kind {
		case echo:
			err = n.send(echo, size, n.out[:size], false)
		case pull:
			n.conn.Withdraw(n.offered)
			err = n.offer(n.out[:size])
		case bulk:
			n.n = 0
			err = n.sendBulk(n.out[:size])
		case exchange:
			err = n.answerBare(string(n.buf[:n.name]), size, int(binary.LittleEndian.Uint64(n.header[16:])))
		case report:
			err = n.send(report, int(n.seen), nil, false)
			n.seen = 0
		case flood:
			for i := uint64(0); ; i++ {
				binary.LittleEndian.PutUint64(n.header[16:], i)
				if err := n.send(flood, 0, floodBody(i), i%3 == 0); err != nil {
					return err
				}
			}
		}
		if err != nil {
			return err
		}
	}
}

// two is a node here and its peer, answering, in another process.
func two(t testing.TB) (*node, *exec.Cmd) {
	dir := private(t)
	e := listen(t, dir, shm.Options{})
	t.Cleanup(func() { e.Close() })
	child := exec.Command("/proc/self/exe")
	child.Env = append(os.Environ(), dialVariable+"="+string(e.Addr()))
	child.Stderr = os.Stderr
	require.NoError(t, child.Start())
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	t.Cleanup(func() {
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			child.Process.Kill()
			t.Error("the other process does not end when this end closes")
		}
	})
	ctx, stop := shortly()
	defer stop()
	c, err := e.Accept(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return &node{conn: c.(*rdma.Conn), buf: make([]byte, largest), out: make([]byte, largest)}, child
}

// numbered checks that what the other process floods arrives whole and in order.
type numbered struct {
	t    *testing.T
	next [2]uint64 // by lane; every third is bulk
	n    int
	buf  [8 << 10]byte
}

func (in *numbered) Place(_ []byte, n int) []byte     { return in.buf[:n] }
func (in *numbered) Pulled(uint64, error)             {}
func (in *numbered) Receive(header, body []byte) bool { return transport.Receive(in, header, body) }
func (in *numbered) Arrived(h, body []byte) {
	i := binary.LittleEndian.Uint64(h[16:])
	lane := 0
	if i%3 == 0 {
		lane = 1
	}
	want := in.next[lane]
	for lane == 0 && want%3 == 0 {
		want++
	}
	require.Equal(in.t, want, i, "out of order in its lane")
	in.next[lane] = i + 1
	if lane == 1 {
		in.next[lane] = i + 3
	}
	if !bytes.Equal(body, floodBody(i)) {
		in.t.Fatalf("message %d has not the body that was sent", i)
	}
	in.n++
}

// noise is the same in both processes.
var noise = func() []byte {
	b := make([]byte, 16<<10)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// floodBody is the body of the message of number i: up to 5000 bytes.
func floodBody(i uint64) []byte { return noise[i%8192:][:i*37%5000] }

func TestAProcessIsKilledInTheMiddleOfAStream(t *testing.T) {
	n, child := two(t)
	require.NoError(t, n.send(flood, 0, nil, false))
	in := &numbered{t: t}
	for in.n < 10_000 {
		require.NoError(t, n.spin.poll(n.conn, in))
	}
	require.NoError(t, child.Process.Kill())
	var err error
	for err == nil {
		err = n.spin.poll(n.conn, in)
	}
	require.ErrorIs(t, err, transport.ErrBroken)
	require.ErrorIs(t, n.conn.Send(transport.Message{Header: n.header[:]}), transport.ErrBroken)
}

// What a process has sent arrives although it is dead: here, all that fits.
func TestWhatWasCompleteArrivesAfterDeath(t *testing.T) {
	n, child := two(t)
	require.NoError(t, n.send(flood, 0, nil, false))
	in := &numbered{t: t}
	woken := make(chan struct{}, 1)
	n.conn.Arm(func() { woken <- struct{}{} })
	<-woken
	time.Sleep(300 * time.Millisecond) // it goes on until a lane is full
	n.conn.Arm(func() {})
	require.NoError(t, child.Process.Kill())
	time.Sleep(100 * time.Millisecond) // the death is known before anything is read
	var err error
	for err == nil {
		_, err = n.conn.Poll(in)
	}
	require.ErrorIs(t, err, transport.ErrBroken)
	require.Equal(t, 3*shm.BulkSlots, in.n, "messages sent until the bulk lane was full")
}

func TestADeathWakesWhoSleeps(t *testing.T) {
	n, child := two(t)
	woken := make(chan time.Time, 1)
	wake := func() { woken <- time.Now() }
	n.conn.Arm(wake)
	start := time.Now()
	require.NoError(t, child.Process.Kill())
	var err error
	for err == nil { // it may be woken for nothing before
		select {
		case at := <-woken:
			t.Logf("woken %v after the kill", at.Sub(start))
		case <-time.After(20 * time.Second):
			t.Fatal("not woken")
		}
		if _, err = n.conn.Poll(n); err == nil {
			n.conn.Arm(wake)
		}
	}
	require.ErrorIs(t, err, transport.ErrBroken)
}

// caught keeps the ticket that the other process offers, and how pulls ended.
type caught struct {
	ticket transport.Ticket
	n      int
	ends   []error
}

func (c *caught) Place(_ []byte, n int) []byte     { return c.ticket[:n] }
func (c *caught) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *caught) Arrived(_, _ []byte)              { c.n++ }
func (c *caught) Pulled(_ uint64, err error)       { c.ends = append(c.ends, err) }

func TestADeathEndsAPullOnce(t *testing.T) {
	n, child := two(t)
	require.NoError(t, n.offer(n.out))
	in := &caught{}
	for in.n == 0 {
		require.NoError(t, n.spin.poll(n.conn, in))
	}
	require.NoError(t, n.conn.Pull(in.ticket, n.buf, 1))
	_, err := n.conn.Poll(in)
	require.NoError(t, err)
	require.Empty(t, in.ends, "one Poll copies 16 MiB")
	require.NoError(t, child.Process.Kill())
	for err == nil {
		_, err = n.conn.Poll(in)
	}
	require.ErrorIs(t, err, transport.ErrBroken)
	require.Len(t, in.ends, 1)
	require.ErrorIs(t, n.conn.Pull(in.ticket, n.buf, 2), transport.ErrBroken)
}

func (n *node) answered() error {
	for n.ready == 0 {
		if err := n.poll(); err != nil {
			return err
		}
	}
	n.ready = 0
	return nil
}

// rounds measures half of what each round takes. On a machine with other work
// the median of batches says more than the mean.
func rounds(b *testing.B, size int, round func() error) {
	batch := max(1, min(50, 64<<10/(size+1)))
	for range 200 {
		require.NoError(b, round())
	}
	var took []float64
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		for range batch {
			if err := round(); err != nil {
				b.Fatal(err)
			}
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/float64(2*batch))
	}
	slices.Sort(took)
	b.ReportMetric(took[0], "best-ns")
	b.ReportMetric(took[len(took)/2], "median-ns")
	b.ReportMetric(float64(size)/took[len(took)/2], "median-GB/s")
	b.ReportMetric(0, "ns/op")
}

func BenchmarkProcesses(b *testing.B) {
	for _, size := range []int{0, 8, 64, 256, 1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10} {
		b.Run("send/"+sized(size), func(b *testing.B) {
			n, _ := two(b)
			body := make([]byte, size)
			rounds(b, size, func() error {
				if err := n.send(echo, size, body, false); err != nil {
					return err
				}
				return n.answered()
			})
		})
	}
	for _, size := range []int{4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20} {
		b.Run("pull/"+sized(size), func(b *testing.B) {
			n, _ := two(b)
			body := make([]byte, size)
			rounds(b, size, func() error {
				err := n.offer(body)
				if err == nil {
					err = n.answered()
				}
				n.conn.Withdraw(n.offered)
				return err
			})
		})
		b.Run("bulk/"+sized(size), func(b *testing.B) {
			n, _ := two(b)
			body := make([]byte, size)
			rounds(b, size, func() error {
				n.n = 0
				if err := n.sendBulk(body); err != nil {
					return err
				}
				return n.answered()
			})
		})
	}
	for _, size := range []int{0, 8, 64, 1 << 10} {
		b.Run("rate/"+sized(size), func(b *testing.B) { benchRate(b, size) })
	}
}

// benchRate sends messages in one direction, as fast as they are taken.
func benchRate(b *testing.B, size int) {
	n, _ := two(b)
	body := make([]byte, size)
	const batch = 10_000
	var rates []float64
	n.header[0] = count
	m := transport.Message{Header: n.header[:], Body: body}
	for b.Loop() {
		start := time.Now()
		for range batch {
			for err := n.conn.Send(m); err != nil; err = n.conn.Send(m) {
				if !errors.Is(err, transport.ErrFull) {
					b.Fatal(err)
				}
				if err := n.poll(); err != nil {
					b.Fatal(err)
				}
			}
		}
		n.conn.Flush()
		rates = append(rates, batch/time.Since(start).Seconds()/1e6)
	}
	require.NoError(b, n.send(report, 0, nil, false))
	require.NoError(b, n.answered())
	require.EqualValues(b, len(rates)*batch, binary.LittleEndian.Uint64(n.header[8:]), "messages that arrived")
	slices.Sort(rates)
	b.ReportMetric(rates[len(rates)/2], "median-M/s")
	b.ReportMetric(rates[len(rates)-1], "best-M/s")
	b.ReportMetric(0, "ns/op")
}

func sized(n int) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%dMiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%dKiB", n>>10)
	}
	return fmt.Sprintf("%dB", n)
}
