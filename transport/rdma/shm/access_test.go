//go:build linux

package shm_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/shm"
)

// pair is two connected ends in this process.
func pair(t testing.TB) (a, b *rdma.Conn) {
	dir := private(t)
	x, y := listen(t, dir, shm.Options{}), listen(t, dir, shm.Options{})
	t.Cleanup(func() { x.Close(); y.Close() })
	ctx, stop := shortly()
	defer stop()
	p, err := x.Dial(ctx, y.Addr())
	require.NoError(t, err)
	q, err := y.Accept(ctx)
	require.NoError(t, err)
	return p.(*rdma.Conn), q.(*rdma.Conn)
}

func TestBothEndsCopyALongPull(t *testing.T) {
	a, b := pair(t)
	body, into := make([]byte, 4<<20), make([]byte, 4<<20)
	for i := range body {
		body[i] = byte(i >> 8 * 7)
	}
	ticket, ok := a.Offer(body)
	require.True(t, ok)
	require.NoError(t, b.Pull(ticket, into, 1))
	in := &caught{}
	_, err := b.Poll(in)
	require.NoError(t, err)
	require.Empty(t, in.ends, "a Poll copies without bound")
	moved, err := a.Poll(in)
	require.NoError(t, err)
	require.True(t, moved, "who offered does not help")
	for len(in.ends) == 0 {
		_, err := b.Poll(in)
		require.NoError(t, err)
	}
	require.Equal(t, []error{nil}, in.ends)
	require.Equal(t, body, into)
	moved, err = a.Poll(in)
	require.NoError(t, err)
	require.False(t, moved, "help goes on after the end")
}

func TestAPullOfWhatWasWithdrawnFails(t *testing.T) {
	a, b := pair(t)
	in := &caught{}
	body := make([]byte, 100)
	ticket, ok := a.Offer(body)
	require.True(t, ok)
	require.Error(t, b.Pull(ticket, make([]byte, 101), 1), "longer than the offer")
	require.Error(t, b.Put(ticket, make([]byte, 1), 1), "what is offered is not for writing")
	require.Error(t, b.Pull(transport.Ticket{8: 1}, make([]byte, 1), 1), "a ticket that nobody gave")
	a.Withdraw(ticket)
	a.Withdraw(ticket)
	other, ok := a.Offer(body) // takes the same place
	require.True(t, ok)
	require.NotEqual(t, ticket, other)
	require.NoError(t, b.Pull(ticket, make([]byte, 100), 2))
	_, err := b.Poll(in)
	require.NoError(t, err)
	require.Len(t, in.ends, 1)
	require.ErrorContains(t, in.ends[0], "withdrawn")
}

// Short reads are begun by one call; one that cannot be ends in an error, and the others do not.
func TestShortPullsTogether(t *testing.T) {
	a, b := pair(t)
	lengths := []int{1, 100, 20 << 10, 5, 30 << 10, 16 << 10, 7, 300 << 10, 9, 12, 4 << 10, 40 << 10, 3, 2, 1}
	const withdrawn, nowhere = 3, 10
	var bodies, intos [][]byte
	for i, n := range lengths {
		bodies = append(bodies, bytes.Repeat([]byte{byte(i + 1)}, n))
		intos = append(intos, make([]byte, n))
		ticket, ok := a.Offer(bodies[i])
		require.True(t, ok)
		if i == nowhere {
			ticket = transport.Ticket{0: 1, 8: 0, 9: 16, 16: ticket[16], 24: ticket[24]} // of address 1
		}
		require.NoError(t, b.Pull(ticket, intos[i], uint64(i)))
		if i == withdrawn {
			a.Withdraw(ticket)
		}
	}
	in := &ended{by: make(map[uint64]error)}
	for len(in.by) < len(lengths) {
		_, err := b.Poll(in)
		require.NoError(t, err)
		_, err = a.Poll(in)
		require.NoError(t, err)
	}
	for i := range lengths {
		switch err := in.by[uint64(i)]; i {
		case withdrawn:
			require.ErrorContains(t, err, "withdrawn")
		case nowhere:
			require.ErrorContains(t, err, "bad address")
		default:
			require.NoError(t, err)
			require.Equal(t, bodies[i], intos[i])
		}
	}
}

// ended notes how each pull ended.
type ended struct {
	caught
	by map[uint64]error
}

func (e *ended) Pulled(id uint64, err error) { e.by[id] = err }

func TestAPutArrivesUntilTheMemoryIsWithdrawn(t *testing.T) {
	a, b := pair(t)
	in := &caught{}
	window, data := make([]byte, 3<<20), make([]byte, 3<<20-5)
	for i := range data {
		data[i] = byte(i>>3 | 1)
	}
	ticket, ok := a.Expose(window)
	require.True(t, ok)
	require.Error(t, b.Pull(ticket, window, 1), "what is exposed is not for reading")
	require.NoError(t, b.Put(ticket, data, 2))
	for len(in.ends) == 0 {
		_, err := b.Poll(in)
		require.NoError(t, err)
	}
	require.Equal(t, []error{nil}, in.ends)
	require.Equal(t, data, window[:len(data)])
	require.Equal(t, make([]byte, 5), window[len(data):])
	a.Withdraw(ticket)
	clear(window)
	require.NoError(t, b.Put(ticket, data[:10], 3))
	_, err := b.Poll(in)
	require.NoError(t, err)
	require.Len(t, in.ends, 2)
	require.ErrorContains(t, in.ends[1], "withdrawn")
	require.Equal(t, make([]byte, 10), window[:10])
}

func TestOffersAreBounded(t *testing.T) {
	a, _ := pair(t)
	body := make([]byte, 10)
	first, ok := a.Offer(body)
	require.True(t, ok)
	n := 1
	for ; ok; n++ {
		_, ok = a.Offer(body)
	}
	require.Less(t, n, 10_000)
	a.Withdraw(first)
	_, ok = a.Offer(body)
	require.True(t, ok, "a withdrawn offer makes room")
}

func TestPullsAllocateNothing(t *testing.T) {
	a, b := pair(t)
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
	one()
	require.Zero(t, testing.AllocsPerRun(100, one))
}
