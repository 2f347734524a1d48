package lock_test

import (
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/lock"
)

func TestOneHolderAtATime(t *testing.T) {
	const workers, times = 8, 20_000
	var mu lock.Mutex
	var n int // no atomic: only the lock guards it
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for range times {
				mu.Lock()
				n++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	require.Equal(t, workers*times, n)
}

func TestTryLock(t *testing.T) {
	var mu lock.Mutex
	require.True(t, mu.TryLock())
	require.False(t, mu.TryLock())
	mu.Unlock()
	require.True(t, mu.TryLock())
}

func TestLockWaitsForAHolderThatSleeps(t *testing.T) {
	var mu lock.Mutex
	mu.Lock()
	var freed bool
	time.AfterFunc(20*time.Millisecond, func() { freed = true; mu.Unlock() })
	mu.Lock()
	require.True(t, freed)
}

func TestWaitingTakesNoTimeOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var mu lock.Mutex
		mu.Lock()
		var waiter sync.WaitGroup
		waiter.Go(func() {
			mu.Lock()
			defer mu.Unlock()
		})
		for range 10_000 {
			runtime.Gosched()
		}
		mu.Unlock()
		waiter.Wait()
		require.Zero(t, time.Since(began))
	})
}

func BenchmarkUncontended(b *testing.B) {
	b.Run("lock.Mutex", func(b *testing.B) {
		var mu lock.Mutex
		n := 0
		for b.Loop() {
			mu.Lock()
			n++
			mu.Unlock()
		}
	})
	b.Run("sync.Mutex", func(b *testing.B) {
		var mu sync.Mutex
		n := 0
		for b.Loop() {
			mu.Lock()
			n++
			mu.Unlock()
		}
	})
}
