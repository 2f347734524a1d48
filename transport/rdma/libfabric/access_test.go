//go:build ofi && cgo && linux

package libfabric_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

// pair is two connected ends in this process.
func pair(t testing.TB, o libfabric.Options) (a, b *rdma.Conn) {
	x, y := listen(t, o), listen(t, o)
	p, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	q, err := y.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, y.Addr(), p.Peer())
	require.Equal(t, x.Addr(), q.Peer())
	return p.(*rdma.Conn), q.(*rdma.Conn)
}

// caught is a Receiver that keeps how accesses ended.
type caught struct {
	got  int
	ends []error
}

func (c *caught) Place(_ []byte, n int) []byte     { return make([]byte, n) }
func (c *caught) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *caught) Arrived(_, _ []byte)              { c.got++ }
func (c *caught) Pulled(_ uint64, err error)       { c.ends = append(c.ends, err) }

// until polls both ends.
func until(t testing.TB, a, b *rdma.Conn, in transport.Receiver, done func() bool) {
	for end := time.Now().Add(20 * time.Second); !done(); {
		_, err := b.Poll(in)
		require.NoError(t, err)
		_, err = a.Poll(in)
		require.NoError(t, err)
		require.True(t, time.Now().Before(end))
	}
}

func eachProvider(t *testing.T, test func(t *testing.T, o libfabric.Options)) {
	for _, provider := range providers {
		t.Run(provider, func(t *testing.T) { test(t, libfabric.Options{Provider: provider}) })
	}
}

func TestKeysAllowWhatTheyAreFor(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		a, b := pair(t, o)
		body := make([]byte, 100)
		read, ok := a.Offer(body)
		require.True(t, ok)
		write, ok := a.Expose(body)
		require.True(t, ok)
		require.Error(t, b.Pull(read, make([]byte, 101), 1), "longer than the offer")
		require.Error(t, b.Put(read, make([]byte, 1), 1), "what is offered is not for writing")
		require.Error(t, b.Pull(write, make([]byte, 1), 1), "what is exposed is not for reading")
		require.Error(t, b.Pull(transport.Ticket{8: 1}, make([]byte, 1), 1), "a ticket that nobody gave")
		_, ok = a.Offer(nil)
		require.False(t, ok)
	})
}

func TestAPullOfWhatWasWithdrawnFails(t *testing.T) {
	// Provider shm reads the peer's memory without asking.
	a, b := pair(t, libfabric.Options{Provider: "tcp;ofi_rxm"})
	in := &caught{}
	for i := range 100 { // beyond what is kept registered for stragglers
		body := make([]byte, 100) // offered twice: the second time it is still registered
		ticket, ok := a.Offer(body)
		require.True(t, ok)
		a.Withdraw(ticket)
		a.Withdraw(ticket)
		other, ok := a.Offer(body)
		require.True(t, ok)
		require.NotEqual(t, ticket, other)
		require.NoError(t, b.Pull(ticket, make([]byte, 100), 1))
		until(t, a, b, in, func() bool { return len(in.ends) == 2*i+1 })
		require.ErrorContains(t, in.ends[2*i], "withdrawn")
		require.NoError(t, b.Pull(other, make([]byte, 100), 2))
		until(t, a, b, in, func() bool { return len(in.ends) == 2*i+2 })
		require.NoError(t, in.ends[2*i+1])
		a.Withdraw(other)
	}
}

func TestAPutArrivesUntilTheMemoryIsWithdrawn(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		a, b := pair(t, o)
		in := &caught{}
		window, data := make([]byte, 20<<20), make([]byte, 20<<20-5)
		for i := range data {
			data[i] = byte(i>>3 | 1)
		}
		ticket, ok := a.Expose(window)
		require.True(t, ok)
		require.NoError(t, b.Put(ticket, data, 2))
		until(t, a, b, in, func() bool { return len(in.ends) == 1 })
		require.NoError(t, in.ends[0])
		require.True(t, bytes.Equal(data, window[:len(data)]))
		require.Equal(t, make([]byte, 5), window[len(data):])

		withdrawn := make(chan struct{})
		go func() { // waits for the peer
			a.Withdraw(ticket)
			close(withdrawn)
		}()
		until(t, a, b, in, func() bool {
			select {
			case <-withdrawn:
				return true
			default:
				return false
			}
		})
		clear(window)
		require.NoError(t, b.Put(ticket, data[:10], 3))
		until(t, a, b, in, func() bool { return len(in.ends) == 2 })
		require.ErrorContains(t, in.ends[1], "withdrawn")
		require.Equal(t, make([]byte, 10), window[:10])
	})
}

func TestOffersAreBounded(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		a, b := pair(t, o)
		body := make([]byte, 10)
		var tickets []transport.Ticket
		for {
			ticket, ok := a.Offer(body)
			if !ok {
				break
			}
			tickets = append(tickets, ticket)
			require.Less(t, len(tickets), 10_000)
		}
		for _, ticket := range tickets {
			a.Withdraw(ticket)
		}
		until(t, a, b, new(caught), func() bool { // perhaps the peer must say that it reads no more
			ticket, ok := a.Offer(body)
			a.Withdraw(ticket)
			return ok
		})
	})
}

func TestPullsAllocateNothing(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		a, b := pair(t, o)
		body, into := make([]byte, 300<<10), make([]byte, 300<<10)
		in := &caught{ends: make([]error, 0, 10)}
		one := func() {
			in.ends = in.ends[:0]
			ticket, _ := a.Offer(body)
			if err := b.Pull(ticket, into, 1); err != nil {
				t.Error(err)
			}
			for len(in.ends) == 0 {
				b.Poll(in)
				a.Poll(in)
			}
			a.Withdraw(ticket)
		}
		for range 100 {
			one()
		}
		require.Zero(t, testing.AllocsPerRun(100, one))
	})
}

func TestAPullEndsWithItsPeer(t *testing.T) {
	// Provider shm copies within the post: there is nothing left to end.
	a, b := pair(t, libfabric.Options{Provider: "tcp;ofi_rxm"})
	in := &caught{}
	ticket, ok := a.Offer(make([]byte, 32<<20))
	require.True(t, ok)
	require.NoError(t, b.Pull(ticket, make([]byte, 32<<20), 1))
	require.NoError(t, a.Close())
	var err error
	for end := time.Now().Add(20 * time.Second); err == nil; {
		_, err = b.Poll(in)
		require.True(t, time.Now().Before(end))
	}
	require.ErrorIs(t, err, transport.ErrBroken)
	require.Len(t, in.ends, 1)
	require.ErrorIs(t, in.ends[0], transport.ErrBroken)
}
