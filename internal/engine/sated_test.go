package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
)

// A watched connection tells what its receiver says of each message: whether it wants more.
type watched struct {
	transport.Conn
	told chan<- bool
}

func (c watched) Poll(in transport.Receiver) (moved bool, err error) {
	return c.Conn.Poll(watcher{in, c.told})
}

type watcher struct {
	transport.Receiver
	told chan<- bool
}

func (w watcher) Receive(header, body []byte) bool {
	more := w.Receiver.Receive(header, body)
	w.told <- more
	return more
}

// Once the receive that was posted last has its message, the connection may keep the next for the
// next poll: there is a receive for it then. What nobody has asked for is wanted all the same.
func TestWhoHasAllItWaitsForWantsNoMore(t *testing.T) {
	more := make(chan bool, 100)
	w := wrappedWorld(t, func(conn transport.Conn) transport.Conn { return watched{conn, more} })
	for len(more) > 0 {
		<-more
	}
	a, b := w.boxes[0], w.boxes[1]
	var got []engine.Request
	for range 2 {
		got = append(got, a.Irecv(engine.Match{Peer: 1, Tag: 1}, make([]byte, 8)))
	}
	for range 4 {
		require.NoError(t, b.Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, make([]byte, 8), engine.Standard))
	}
	for i, want := range []bool{true, false, true, true} { // whoever polls
		require.Eventually(t, func() bool { w.engines[0].Progress(); return len(more) > 0 }, 20*time.Second, time.Millisecond)
		require.Equal(t, want, <-more, "message %d", i)
	}
	for _, r := range got {
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
	}
}
