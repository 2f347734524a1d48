//go:build linux

package shm

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// Each ring wakes, though most are left in the socket, and so does its end behind them.
func TestRingsAreLeftInTheSocket(t *testing.T) {
	q, _, far := alone(t)
	var watch sync.WaitGroup
	watch.Go(q.watch)
	woken := make(chan struct{}, 1)
	wait := func() {
		t.Helper()
		select {
		case <-woken:
		case <-time.After(20 * time.Second):
			t.Fatal("nobody is woken")
		}
	}
	left := func() (n int) {
		require.NoError(t, q.raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
		return n
	}
	most, emptied := 0, 0
	for range 5 * ringsLeft {
		before := left()
		q.NotifyCQ(func() { woken <- struct{}{} })
		_, err := far.Write(bell)
		require.NoError(t, err)
		wait()
		if n := left(); n < before {
			emptied++
		} else {
			most = max(most, n)
		}
	}
	require.Less(t, most, ringsLeft)
	require.Greater(t, most, ringsLeft/2)
	require.InDelta(t, 5, emptied, 1)
	q.NotifyCQ(func() { woken <- struct{}{} })
	require.NoError(t, far.Close())
	wait()
	watch.Wait()
	require.ErrorIs(t, q.Err(), transport.ErrBroken)
}
