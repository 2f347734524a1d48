//go:build ofi && cgo && linux

package libfabric

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// Nobody says that libfabric has room again, so who is armed looks now and then.
func TestWhoIsArmedAndThenRefusedByLibfabricIsWoken(t *testing.T) {
	x, err := Listen(t.Context(), Options{})
	require.NoError(t, err)
	defer x.Close()
	y, err := Listen(t.Context(), Options{})
	require.NoError(t, err)
	defer y.Close()
	p, err := x.Connect(t.Context(), y.Addr())
	require.NoError(t, err)
	q := p.(*QueuePair)
	woken := make(chan struct{}, 1)
	q.NotifyCQ(func() { woken <- struct{}{} })
	var taken []slot
	for s, ok := q.fabric.takeSlot(rdma.Eager); ok; s, ok = q.fabric.takeSlot(rdma.Eager) {
		taken = append(taken, s)
	}
	require.ErrorIs(t, q.PostSend(rdma.Eager, &nothing, nil), transport.ErrFull)
	for _, s := range taken {
		q.fabric.giveSlot(s)
	}
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Fatal("it was not woken")
	}
}
