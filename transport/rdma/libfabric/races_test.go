//go:build ofi && cgo && linux

package libfabric_test

import (
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
