package streams_test

import (
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// sink takes at once what is written, and has nothing to read.
type sink struct{ ended chan struct{} }

func (s sink) Write(p []byte) (int, error) { return len(p), nil }
func (s sink) Read([]byte) (int, error)    { <-s.ended; return 0, io.EOF }

// Who is armed first, and then refused, is woken also where the stream took the rest
// while it was being refused.
func TestWhoIsRefusedIsWoken(t *testing.T) {
	ended := make(chan struct{})
	c := streams.New(streams.Options{
		Peer: "x:y", Lanes: [2]streams.Stream{sink{ended}, sink{ended}}, End: sync.OnceFunc(func() { close(ended) }),
	})
	defer c.Close()
	// Four fill what lies before the stream to the last byte.
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 16<<10-44)}
	woken := make(chan struct{}, 1)
	refused := 0
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		c.Arm(func() { woken <- struct{}{} })
		err := c.Send(m)
		for ; err == nil; err = c.Send(m) {
			select {
			case <-woken: // for nothing
				c.Arm(func() { woken <- struct{}{} })
			default:
			}
		}
		require.ErrorIs(t, err, transport.ErrFull)
		refused++
		select {
		case <-woken:
		case <-time.After(20 * time.Second):
			t.Fatalf("refused for the %dth time, it was not woken", refused)
		}
	}
	require.Positive(t, refused)
}
