package libp2p_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/libp2p"
)

// The connection to a relay breaks, and the process connects to the relay, which is a process of the
// job, again for a message, before keepPlace looks.
func TestAPlaceThatWasLostIsAskedForAgain(t *testing.T) {
	a := authority(t)
	relay := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 0).TLS(), Relay: true})
	hidden := func(i int) *libp2p.Endpoint {
		return listen(t, libp2p.Options{TLS: member(t, a, i).TLS(), Relays: []string{string(relay.Addr())}, Punch: 10 * time.Millisecond})
	}
	x, z := hidden(1), hidden(2)
	z.Cut(relay)
	eventually(t, "the end at the relay", func() bool { return !relay.Has(z) })
	_, err := z.Dial(t.Context(), relay.Addr()) // for a message
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		_, err = x.Dial(ctx, z.Addr())
		return err == nil
	}, 30*time.Second, 100*time.Millisecond, "%v", err)
}

// Who was refused a moment ago may be there now.
func TestDialTriesAgainAtOnce(t *testing.T) {
	a := authority(t)
	x, y := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 0).TLS()}), listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 1).TLS()})
	var at, id string
	for _, part := range strings.Split(y.Addr().Local(), ",") {
		if f := strings.Split(part, "/"); f[3] == "tcp" {
			at, id = "127.0.0.1:"+f[4], f[6]
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	front := ln.Addr().String()
	ln.Close()
	_, port, _ := net.SplitHostPort(front)
	addr := "libp2p:/ip4/127.0.0.1/tcp/" + port + "/p2p/" + id
	_, err = x.Dial(t.Context(), transport.Addr(addr))
	require.ErrorContains(t, err, "refused")
	ln, err = net.Listen("tcp", front) // the way is free now
	require.NoError(t, err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", at)
			if err != nil {
				c.Close()
				return
			}
			go io.Copy(c, d)
			go io.Copy(d, c)
		}
	}()
	for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(250 * time.Millisecond) {
		if _, err = x.Dial(t.Context(), transport.Addr(addr)); err == nil {
			return
		}
	}
	t.Fatalf("it is there for 3 s: %v", err)
}

// Relays that do not answer hold up who listens once, not one after the other.
func TestRelaysThatDoNotAnswerAreTriedAtOnce(t *testing.T) {
	a := authority(t)
	var relays []string
	for i := range 4 {
		r := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, i).TLS(), Relay: true})
		id := r.Addr().Local()[strings.LastIndexByte(r.Addr().Local(), '/')+1:]
		ln, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
		require.NoError(t, err)
		defer ln.Close()
		relays = append(relays, fmt.Sprintf("libp2p:/ip4/127.0.0.1/tcp/%d/p2p/%s", ln.Addr().(*net.TCPAddr).Port, id))
	}
	began := time.Now()
	listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 9).TLS(), Relays: relays, Patience: time.Second})
	require.Less(t, time.Since(began), 6*time.Second, "each is waited for 2 s")
}

// A member that holds no place on the relay dials one that does: as processes of open hosts do.
func TestAMemberWithoutAPlaceDialsThroughARelay(t *testing.T) {
	a := authority(t)
	relay := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 0).TLS(), Relay: true, Patience: time.Minute})
	z := listen(t, libp2p.Options{TLS: member(t, a, 1).TLS(), Relays: []string{string(relay.Addr())}, Punch: 10 * time.Millisecond})
	x := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 2).TLS(), Relay: true, Punch: 10 * time.Millisecond})
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Second)
	defer stop()
	_, err := x.Dial(ctx, z.Addr())
	require.NoError(t, err)
	require.Zero(t, relay.Strangers())
}

// What goes through a relay ends when that is known to be no more.
func TestARelayThatIsNoMore(t *testing.T) {
	a := authority(t)
	relay := listen(t, libp2p.Options{Address: "127.0.0.1", TLS: member(t, a, 0).TLS(), Relay: true})
	hidden := func(i int) *libp2p.Endpoint {
		return listen(t, libp2p.Options{TLS: member(t, a, i).TLS(), Relays: []string{string(relay.Addr())}, Punch: 10 * time.Millisecond})
	}
	x, z := hidden(1), hidden(2)
	c, err := x.Dial(t.Context(), z.Addr())
	require.NoError(t, err)
	_, err = c.Poll(new(box))
	require.NoError(t, err)
	x.Forget(relay.Addr())
	x.Forget("tcp:127.0.0.1:1")
	eventually(t, "the end", func() bool { _, err = c.Poll(new(box)); return err != nil })
}
