//go:build linux

package shm_test

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// counter counts messages, and pulls from within Poll.
type counter struct {
	n, pulled atomic.Int64
	buf       [64 << 10]byte
}

func (c *counter) Place(_ []byte, n int) []byte     { return c.buf[:n] }
func (c *counter) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *counter) Arrived(_, _ []byte)              { c.n.Add(1) }
func (c *counter) Pulled(_ uint64, err error) {
	if err == nil {
		c.pulled.Add(1)
	}
}

// Each end has a goroutine that sends, one that offers and withdraws, and one
// that polls and sleeps, until a fifth closes the connection under them.
func TestGoroutinesShareAConnectionUntilItIsClosed(t *testing.T) {
	a, b := pair(t)
	var all sync.WaitGroup
	var ins [2]counter
	tickets := [2]chan transport.Ticket{make(chan transport.Ticket, 1), make(chan transport.Ticket, 1)}
	over := func(err error) bool {
		if err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, transport.ErrBroken) {
			t.Error(err)
		}
		return err != nil
	}
	ends := [2]*rdma.Conn{a, b}
	for i, c := range ends {
		in := &ins[i]
		all.Go(func() { // sends
			m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 20_000)}
			for k := 0; ; {
				m.Bulk = k%2 == 0
				body := m.Body
				m.Body = body[:k*91%len(body)]
				err := c.Send(m)
				m.Body = body
				switch {
				case errors.Is(err, transport.ErrFull):
					runtime.Gosched()
				case over(err):
					return
				default:
					k++
				}
				if k%7 == 0 && over(c.Flush()) {
					return
				}
			}
		})
		all.Go(func() { // offers
			body := make([]byte, 300<<10)
			for {
				ticket, ok := c.Offer(body)
				if !ok {
					return // it is closed
				}
				select {
				case tickets[i] <- ticket:
				case <-time.After(time.Millisecond):
				}
				c.Withdraw(ticket)
			}
		})
		all.Go(func() { // polls
			into := make([]byte, 300<<10)
			woken := make(chan struct{}, 1)
			for {
				select {
				case ticket := <-tickets[1-i]:
					if err := c.Pull(ticket, into, 1); over(err) {
						return
					}
				default:
				}
				moved, err := c.Poll(in)
				if over(err) {
					return
				}
				if moved {
					continue
				}
				c.Arm(func() {
					select {
					case woken <- struct{}{}:
					default:
					}
				})
				<-woken
			}
		})
	}
	end := time.Now().Add(10 * time.Second)
	for i := range ins {
		for ins[i].n.Load() < 2000 || ins[i].pulled.Load() == 0 {
			require.True(t, time.Now().Before(end), "end %d has had %d messages and %d pulls", i, ins[i].n.Load(), ins[i].pulled.Load())
			time.Sleep(time.Millisecond)
		}
	}
	require.NoError(t, a.Close())
	all.Wait()
}
