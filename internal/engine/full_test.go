package engine_test

import (
	"bytes"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// A parting connection is full each time a longer message is begun, of which it has a part: what
// is sent next must be the same.
type parting struct {
	transport.Conn
	wrong *atomic.Int64

	mu   sync.Mutex
	owed []byte
}

func (c *parting) Send(m transport.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := append(bytes.Clone(m.Header), m.Body...)
	switch {
	case c.owed == nil && len(m.Body) > 1000:
		c.owed = all
		return transport.ErrFull
	case c.owed != nil && !bytes.Equal(c.owed, all):
		c.wrong.Add(1)
	}
	err := c.Conn.Send(m)
	if err == nil {
		c.owed = nil
	}
	return err
}

// Arm: there is room again.
func (c *parting) Arm(wake func()) {
	c.mu.Lock()
	owes := c.owed != nil
	c.mu.Unlock()
	if owes {
		wake()
		return
	}
	c.Conn.Arm(wake)
}

// A rank begins to send over a connection that has a part of the message then, and is full: what
// another rank of its process sends does not come between that and the rest.
func TestNothingComesBetweenThePartsOfAMessage(t *testing.T) {
	for level, keep := range map[string]bool{"none": false, "moves": true} {
		t.Run(level, func(t *testing.T) {
			network := mem.NewNetwork(mem.Options{})
			wrong := new(atomic.Int64)
			w := newWorldOn(t, engine.Config{Keep: keep}, func(p int) transport.Endpoint {
				mine, err := network.Listen(fmt.Sprint(p))
				require.NoError(t, err)
				return wrapped{mine, func(c transport.Conn) transport.Conn { return &parting{Conn: c, wrong: wrong} }}
			}, 2, 1)
			const first, long, short = 1, 2, 3
			to, body := func(tag int32) engine.Match { return engine.Match{Peer: 2, Tag: tag} }, pattern(2000, 7)
			require.NoError(t, w.boxes[0].Send(t.Context(), send, to(first), nil, engine.Standard))
			_, err := w.boxes[2].Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: first}, nil)
			require.NoError(t, err, "there is a connection")

			require.True(t, w.boxes[0].TrySend(to(long), body), "it has begun, so it is as good as sent")
			if !w.boxes[1].TrySend(to(short), []byte{1}) {
				require.NoError(t, w.boxes[1].Send(t.Context(), send, to(short), []byte{1}, engine.Standard))
			}
			into := make([]byte, 2000)
			_, err = w.boxes[2].Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: short}, into)
			require.NoError(t, err)
			_, err = w.boxes[2].Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: long}, into)
			require.NoError(t, err)
			require.Equal(t, body, into)
			require.Zero(t, wrong.Load(), "another came between")
		})
	}
}
