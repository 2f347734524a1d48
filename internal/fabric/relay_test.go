package fabric_test

import (
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A relay joins endpoints of TCP over the loopback. It can stop to forward, as a
// cable that is pulled does: nobody is told. What the relay's own sockets take is
// acknowledged all the same, so what the kernel tells of the path is of no use here.
type relay struct {
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	plugged *sync.Cond
	pulled  bool
	closed  bool
	open    []interface{ Close() error }
}

func newRelay(t *testing.T) *relay {
	r := new(relay)
	r.plugged = sync.NewCond(&r.mu)
	t.Cleanup(r.close)
	return r
}

// listen makes an endpoint that others reach through the relay.
func (r *relay) listen(t *testing.T) transport.Endpoint {
	front, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r.keep(front)
	behind := strings.Replace(front.Addr().String(), "127.0.0.1", "127.0.0.2", 1)
	ep, err := tcp.Listen(t.Context(), tcp.Options{Listen: behind, Advertise: front.Addr().String()})
	require.NoError(t, err)
	r.running.Go(func() {
		for {
			near, err := front.Accept()
			if err != nil {
				return
			}
			r.keep(near)
			r.running.Go(func() { r.join(near, behind) })
		}
	})
	return ep
}

func (r *relay) join(near net.Conn, behind string) {
	r.pass()
	far, err := net.Dial("tcp", behind)
	if err != nil {
		near.Close()
		return
	}
	r.keep(far)
	r.running.Go(func() { r.copy(near, far) })
	r.copy(far, near)
}

func (r *relay) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		r.pass()
		if err != nil {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// pass waits until the cable is in.
func (r *relay) pass() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.pulled && !r.closed {
		r.plugged.Wait()
	}
}

// keep has c closed at the end.
func (r *relay) keep(c interface{ Close() error }) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		c.Close()
	}
	r.open = append(r.open, c)
}

func (r *relay) Pull() { r.set(true) }
func (r *relay) Plug() { r.set(false) }

func (r *relay) set(pulled bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pulled = pulled
	r.plugged.Broadcast()
}

func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	r.plugged.Broadcast()
	for _, c := range r.open {
		c.Close()
	}
	r.mu.Unlock()
	r.running.Wait()
}
