//go:build linux

package tcp

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/transporttest"
)

// Every host has the addresses of the loopback. Who listens on one host at an address that is a process's on another is
// not taken for that, though he hands on all that both say.
func TestAnotherHostsLoopbackIsAnotherAddress(t *testing.T) {
	secret := [16]byte{1, 2, 3}
	x := listenHere(t, Options{Secret: secret})
	rogue, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer rogue.Close()
	opened := make(chan net.Conn)
	there := make(chan *Endpoint, 1)
	go func() { // the other host
		defer close(there)
		transporttest.OwnNetwork(t)
		y, err := Listen(t.Context(), Options{Secret: secret, Listen: rogue.Addr().String(), Patience: time.Second})
		if err != nil {
			return
		}
		there <- y
		for s := range opened {
			far, err := net.Dial("tcp", y.Addr().Local())
			if err != nil {
				s.Close()
				continue
			}
			go func() { io.Copy(far, s); far.Close() }()
			go func() { io.Copy(s, far); s.Close() }()
		}
	}()
	y, ok := <-there
	if !ok {
		t.Skip("this test needs a network namespace, which takes root")
	}
	defer y.Close()
	go func() {
		defer close(opened)
		for {
			s, err := rogue.Accept()
			if err != nil {
				return
			}
			opened <- s
		}
	}()
	_, err = x.Dial(t.Context(), transport.Addr("tcp:"+rogue.Addr().String()))
	require.ErrorIs(t, err, errHungUp)
	require.Empty(t, y.backlog)
}
