//go:build linux

package tcp

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// delayed copies what comes, so much later.
func delayed(to, from net.Conn, delay time.Duration) {
	type piece struct {
		at time.Time
		b  []byte
	}
	pieces := make(chan piece, 100)
	go func() {
		defer close(pieces)
		for {
			b := make([]byte, 16<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			pieces <- piece{time.Now().Add(delay), b[:n]}
		}
	}()
	for p := range pieces {
		time.Sleep(time.Until(p.at))
		to.Write(p.b)
	}
	to.Close()
}

// The handshake is several round trips, of which each may take as long as Patience.
func TestASlowNetwork(t *testing.T) {
	const patience, delay = 3 * time.Second, time.Second
	network, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer network.Close()
	member := members(t)
	y := listenHere(t, Options{TLS: member(), Patience: patience, Advertise: network.Addr().String()})
	go func() {
		for {
			near, err := network.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", y.ln.Addr().String())
			if err != nil {
				near.Close()
				continue
			}
			go delayed(far, near, delay)
			go delayed(near, far, delay)
		}
	}()
	x := listenHere(t, Options{TLS: member()})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	accepted := make(chan transport.Conn, 1)
	go func() {
		if c, err := y.Accept(t.Context()); err == nil {
			accepted <- c
		}
	}()
	require.NoError(t, near.Send(message("hello")))
	require.NoError(t, near.Flush())
	select {
	case far := <-accepted:
		in := new(box)
		eventually(t, "the message", func() bool { poll(t, far, in); return in.got == 1 })
	case <-time.After(2 * patience):
		t.Fatal("a connection that was dialed is refused afterwards")
	}
}
