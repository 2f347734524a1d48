//go:build ofi && cgo && linux

package libfabric_test

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

// The peer's word on what it has consumed may be here before Send has returned.
func TestAnAnswerThatComesBeforeSendReturnsIsNoLie(t *testing.T) {
	a, b := pair(t, libfabric.Options{})
	var stop atomic.Bool
	var others sync.WaitGroup
	poll := func(c *rdma.Conn, answer bool) {
		header := make([]byte, transport.HeaderLen)
		for !stop.Load() {
			moved, err := c.Poll(new(caught))
			if err == nil && moved && answer {
				err = c.Send(transport.Message{Header: header}) // says what was consumed, too
			}
			if err != nil && !errors.Is(err, transport.ErrFull) {
				t.Error(err)
				return
			}
		}
	}
	others.Go(func() { poll(a, false) })
	others.Go(func() { poll(b, true) })
	header := make([]byte, transport.HeaderLen)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end) && !t.Failed(); {
		if err := a.Send(transport.Message{Header: header}); !errors.Is(err, transport.ErrFull) {
			require.NoError(t, err)
		}
	}
	stop.Store(true)
	others.Wait()
}

// What a Receiver reads stays where it is until it has read it.
func TestAnEndpointClosesBehindAReceiver(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		x, y := listen(t, o), listen(t, o)
		p, err := x.Dial(t.Context(), y.Addr())
		require.NoError(t, err)
		q, err := y.Accept(t.Context())
		require.NoError(t, err)
		body := bytes.Repeat([]byte{7}, q.MaxBody())
		require.NoError(t, p.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Body: body}))
		in := &slow{begun: make(chan struct{})}
		var closing sync.WaitGroup
		closing.Go(func() {
			<-in.begun
			y.Close()
		})
		for in.got == nil {
			p.Poll(new(caught))
			_, err := q.Poll(in)
			require.NoError(t, err)
		}
		closing.Wait()
		require.Equal(t, body, in.got)
	})
}

// slow is a Receiver that takes its time.
type slow struct {
	caught
	begun chan struct{}
	got   []byte
}

func (s *slow) Receive(header, body []byte) bool {
	close(s.begun)
	time.Sleep(300 * time.Millisecond)
	s.got = bytes.Clone(body)
	return true
}
