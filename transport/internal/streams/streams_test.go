package streams

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/transporttest"
)

// pipe is one direction of a stream in memory: bounded, as those of networks
// are.
type pipe struct {
	mu     sync.Mutex
	change *sync.Cond
	buf    []byte
	n      int
	ended  bool
}

func newPipe() *pipe {
	p := &pipe{buf: make([]byte, 32<<10)}
	p.change = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) end() {
	p.mu.Lock()
	p.ended = true
	p.mu.Unlock()
	p.change.Broadcast()
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for left := b; len(left) > 0; {
		for p.n == len(p.buf) && !p.ended {
			p.change.Wait()
		}
		if p.ended {
			return len(b) - len(left), io.ErrClosedPipe
		}
		k := copy(p.buf[p.n:], left)
		p.n += k
		left = left[k:]
		p.change.Broadcast()
	}
	return len(b), nil
}

func (p *pipe) TryWriteAll(b []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended || len(p.buf)-p.n < len(b) {
		return errors.New("not now")
	}
	p.n += copy(p.buf[p.n:], b)
	p.change.Broadcast()
	return nil
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.n == 0 && !p.ended {
		p.change.Wait()
	}
	if p.n == 0 {
		return 0, io.EOF
	}
	k := copy(b, p.buf[:p.n])
	p.n = copy(p.buf, p.buf[k:p.n])
	p.change.Broadcast()
	return k, nil
}

// slow is a Stream that can only wait; fast is one that can try.
type slow struct {
	io.Reader
	io.Writer
}

type fast struct {
	slow
	tryWriter
}

// ends are two Conns, joined by pipes.
func ends(try bool, addrs [2]transport.Addr) [2]*Conn {
	var pipes [2][2]*pipe // by lane and by reader
	var opts [2]Options
	for lane := range pipes {
		for side := range pipes[lane] {
			pipes[lane][side] = newPipe()
		}
		for side := range opts {
			s := slow{pipes[lane][side], pipes[lane][1-side]}
			opts[side].Lanes[lane] = s
			if try {
				opts[side].Lanes[lane] = fast{s, pipes[lane][1-side]}
			}
		}
	}
	end := func() {
		for _, lane := range pipes {
			lane[0].end()
			lane[1].end()
		}
	}
	var conns [2]*Conn
	for side := range opts {
		opts[side].End, opts[side].Peer = end, addrs[1-side]
		conns[side] = New(opts[side])
	}
	return conns
}

// exchange is where the endpoints of a test meet.
type exchange struct {
	try bool
	mu  sync.Mutex
	all map[transport.Addr]*endpoint
}

type endpoint struct {
	x      *exchange
	addr   transport.Addr
	calls  chan *Conn
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex
	conns  []*Conn
}

func (x *exchange) listen() *endpoint {
	x.mu.Lock()
	defer x.mu.Unlock()
	e := &endpoint{x: x, addr: transport.Addr("pipe:" + string(rune('a'+len(x.all)))),
		calls: make(chan *Conn, 8), closed: make(chan struct{})}
	x.all[e.addr] = e
	return e
}

func (e *endpoint) Addr() transport.Addr { return e.addr }

func (e *endpoint) own(c *Conn) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conns = append(e.conns, c)
	return c
}

func (e *endpoint) Dial(_ context.Context, a transport.Addr) (transport.Conn, error) {
	e.x.mu.Lock()
	defer e.x.mu.Unlock()
	far := e.x.all[a]
	if far == nil {
		return nil, errors.New("nobody is at " + string(a))
	}
	c := ends(e.x.try, [2]transport.Addr{e.addr, a})
	far.calls <- far.own(c[1])
	return e.own(c[0]), nil
}

func (e *endpoint) Accept(ctx context.Context) (transport.Conn, error) {
	select {
	case <-e.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	case c := <-e.calls:
		return c, nil
	}
}

func (e *endpoint) Close() error {
	e.once.Do(func() {
		e.x.mu.Lock()
		delete(e.x.all, e.addr)
		e.x.mu.Unlock()
		close(e.closed)
	})
	for _, c := range e.conns {
		c.Close()
	}
	return nil
}

// The contract; that nothing is allocated is tested below, by ends that sleep:
// those of the suite spin, and leave the goroutines of this package no core.
func TestContract(t *testing.T) {
	for name, try := range map[string]bool{"streams that can try": true, "streams that wait": false} {
		t.Run(name, func(t *testing.T) {
			x := &exchange{try: try, all: map[transport.Addr]*endpoint{}}
			transporttest.Run(t, func(*testing.T) transport.Endpoint { return x.listen() }, transporttest.Allocates)
		})
	}
}

// counter is a Receiver that allocates nothing.
type counter struct {
	buf [MaxBody]byte
	n   int
}

func (c *counter) Place(_ []byte, n int) []byte     { return c.buf[:n] }
func (c *counter) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *counter) Arrived(_, _ []byte)              { c.n++ }
func (c *counter) Pulled(uint64, error)             {}

func TestNothingIsAllocated(t *testing.T) {
	for name, try := range map[string]bool{"streams that can try": true, "streams that wait": false} {
		c := ends(try, [2]transport.Addr{"pipe:a", "pipe:b"})
		defer c[0].Close()
		defer c[1].Close()
		woken := make(chan struct{}, 1)
		wake := func() {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
		in := new(counter)
		for _, size := range []int{8, 4096, MaxBody} {
			m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size)}
			one := func() {
				want := in.n + 1
				for sent := false; in.n < want; {
					if !sent {
						sent = c[0].Send(m) == nil
						c[0].Flush()
					}
					if moved, _ := c[1].Poll(in); !moved {
						c[0].Arm(wake)
						c[1].Arm(wake)
						<-woken
					}
				}
			}
			for range 100 {
				one() // to the steady state
			}
			require.Zero(t, testing.AllocsPerRun(100, one), "%s: allocations per message of %d bytes", name, size)
		}
	}
}

// box is a Receiver that keeps what arrives.
type box struct{ got [][]byte }

func (b *box) Place(_ []byte, n int) []byte     { return make([]byte, n) }
func (b *box) Receive(header, body []byte) bool { return transport.Receive(b, header, body) }
func (b *box) Arrived(_, body []byte)           { b.got = append(b.got, body) }
func (b *box) Pulled(uint64, error)             {}

// liar is a Conn whose peer writes bytes as it likes.
func liar(t *testing.T) (c *Conn, lanes [2]*pipe) {
	in := [2]*pipe{newPipe(), newPipe()}
	out := [2]*pipe{newPipe(), newPipe()}
	c = New(Options{
		Peer:  "pipe:liar",
		Lanes: [2]Stream{slow{in[0], out[0]}, slow{in[1], out[1]}},
		End: func() {
			for _, p := range append(in[:], out[:]...) {
				p.end()
			}
		},
	})
	t.Cleanup(func() { c.Close() })
	return c, in
}

func frameOf(size int, body []byte) []byte {
	b := make([]byte, prefixLen)
	binary.LittleEndian.PutUint32(b, uint32(size))
	return append(b, body...)
}

func pollToEnd(t *testing.T, c *Conn, in transport.Receiver) error {
	for end := time.Now().Add(10 * time.Second); ; {
		if _, err := c.Poll(in); err != nil {
			return err
		}
		require.True(t, time.Now().Before(end), "Poll finds no end")
		time.Sleep(time.Millisecond)
	}
}

func TestALieAboutALengthBreaksTheConnection(t *testing.T) {
	for lane := range 2 {
		for _, size := range []int{MaxBody + 1, 1 << 31, 1<<32 - 1} {
			c, peer := liar(t)
			_, err := peer[lane].Write(append(frameOf(2, []byte("ok")), frameOf(size, nil)...))
			require.NoError(t, err)
			in := new(box)
			require.ErrorIs(t, pollToEnd(t, c, in), transport.ErrBroken)
			require.Equal(t, [][]byte{[]byte("ok")}, in.got)
			require.ErrorIs(t, c.Send(transport.Message{Header: make([]byte, transport.HeaderLen)}), transport.ErrBroken)
		}
	}
}

func TestWhatCameBeforeTheEndArrives(t *testing.T) {
	c, peer := liar(t)
	_, err := peer[0].Write(append(frameOf(3, []byte("one")), frameOf(100, []byte("half"))...))
	require.NoError(t, err)
	peer[0].end()
	in := new(box)
	err = pollToEnd(t, c, in)
	require.ErrorIs(t, err, transport.ErrBroken)
	require.ErrorIs(t, err, errPeerClosed)
	require.Equal(t, [][]byte{[]byte("one")}, in.got)
}

// A Receiver may close the connection from within; nothing comes after that.
func TestCloseFromWithin(t *testing.T) {
	c, peer := liar(t)
	_, err := peer[0].Write(append(frameOf(1, []byte("x")), frameOf(1, []byte("y"))...))
	require.NoError(t, err)
	in := &closer{c: c}
	require.ErrorIs(t, pollToEnd(t, c, in), net.ErrClosed)
	require.Equal(t, 1, in.n)
}

type closer struct {
	box
	c *Conn
	n int
}

func (b *closer) Receive(header, body []byte) bool { return transport.Receive(b, header, body) }
func (b *closer) Arrived(_, _ []byte)              { b.n++; b.c.Close() }

func TestAnotherMessageAfterFullPanics(t *testing.T) {
	c, _ := liar(t)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, MaxBody)}
	for c.Send(m) == nil {
	}
	m.Body = m.Body[:1]
	require.Panics(t, func() { c.Send(m) })
	require.Panics(t, func() { c.Send(transport.Message{}) }, "no header")
}

// FuzzFrames compares the messages that a Conn finds, written in pieces of any
// length, with those found by looking at all bytes at once.
func FuzzFrames(f *testing.F) {
	many := append(frameOf(0, nil), frameOf(200, bytes.Repeat([]byte{1}, 200))...)
	f.Add(many, []byte{1, 44, 3})
	f.Add(append(many, frameOf(MaxBody+1, nil)...), []byte{7})
	f.Add(append(many, frameOf(MaxBody, []byte{9})...), []byte{})
	f.Fuzz(func(t *testing.T, stream, pieces []byte) {
		var want [][]byte
		lies := false
		for rest := stream; len(rest) >= prefixLen; {
			n := int(binary.LittleEndian.Uint32(rest))
			if lies = n > MaxBody; lies || len(rest) < prefixLen+n {
				break
			}
			want = append(want, rest[prefixLen:][:n:n])
			rest = rest[prefixLen+n:]
		}
		l := new(inLane)
		l.init(nil, 256) // a small ring, so that everything wraps
		in := new(box)
		var err error
		for i := 0; len(stream) > 0 && err == nil; i++ {
			piece := len(stream)
			if len(pieces) > 0 {
				piece = 1 + int(pieces[i%len(pieces)])
			}
			for piece = min(piece, len(stream)); piece > 0 && err == nil; {
				n := copy(l.ring.free(), stream[:piece])
				require.True(t, n > 0 || l.ready(), "the ring is full, and Poll is not to be called")
				l.ring.tail.Add(uint64(n))
				stream, piece = stream[n:], piece-n
				if l.ready() {
					err = l.deliver(in, func() bool { return true })
				}
			}
		}
		require.Equal(t, len(want), len(in.got))
		for i := range want {
			require.True(t, bytes.Equal(want[i], in.got[i]))
		}
		require.Equal(t, lies, err == errLength)
	})
}

// FuzzHello: what parses prints the same bytes.
func FuzzHello(f *testing.F) {
	f.Add(Hello{Lane: 1, Proof: proof.Proof{5}, ID: [16]byte{6}, Addr: "n:127.0.0.1:4711", Cert: []byte{7}}.Append(nil))
	f.Add(Hello{Addr: "n:"}.Append(nil))
	f.Add([]byte("mpiv"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var shown proof.Proof
		if len(b) >= 28 {
			copy(shown[:], b[12:])
		}
		r := bytes.NewReader(b)
		h, err := ReadHello(r, "n", shown)
		if err != nil {
			return
		}
		require.Equal(t, b[:len(b)-r.Len()], h.Append(nil))
		shown[3]++
		_, err = ReadHello(bytes.NewReader(b), "n", shown)
		require.ErrorIs(t, err, ErrHello)
	})
}

// A stranger gets no further than the fixed part.
func TestHelloOfAStranger(t *testing.T) {
	good := Hello{Addr: "n:h", Proof: proof.Proof{1}}
	for name, change := range map[string]func(b []byte) []byte{
		"another secret":          func(b []byte) []byte { b[27] ^= 1; return b },
		"another version":         func(b []byte) []byte { b[4]++; return b },
		"another magic":           func(b []byte) []byte { b[0]++; return b },
		"a third lane":            func(b []byte) []byte { b[5] = 2; return b },
		"a long address":          func(b []byte) []byte { b[7] = 0xff; return b },
		"a long certificate":      func(b []byte) []byte { b[9] = 0xff; return b },
		"another network":         func(b []byte) []byte { b[helloLen] = 'm'; return b },
		"a line end":              func(b []byte) []byte { b[helloLen+2] = '\n'; return b },
		"something where zero is": func(b []byte) []byte { b[10] = 1; return b },
	} {
		_, err := ReadHello(bytes.NewReader(change(good.Append(nil))), "n", good.Proof)
		require.ErrorIs(t, err, ErrHello, name)
	}
	_, err := ReadHello(bytes.NewReader(good.Append(nil)), "n", good.Proof)
	require.NoError(t, err)
}
