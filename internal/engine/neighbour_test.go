package engine

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// onOneCore runs f on a thread that has one core, the first that this process may use. What comes
// of it is sent when f has ended.
func onOneCore(f func()) <-chan error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		var all, one unix.CPUSet
		err := unix.SchedGetaffinity(0, &all)
		for cpu := 0; err == nil && one.Count() == 0; cpu++ {
			if all.IsSet(cpu) {
				one.Set(cpu)
			}
		}
		if err == nil {
			err = unix.SchedSetaffinity(0, &one)
		}
		if err == nil {
			f()
		}
		ended <- err
	}()
	return ended
}

// Who is about to sleep gives its core away first. If another has it for a moment, what comes then
// is from there.
func TestWhoIsAboutToSleepAsksWhoWantsItsCore(t *testing.T) {
	asked := func() bool {
		e := &Engine{spin: spinPolicy{budget: 1, shares: true}}
		var s spin
		for e.pause(&s, true) != idle {
		}
		return s.gave
	}
	come := func(want bool) {
		for end := time.Now().Add(20 * time.Second); asked() != want; {
			if time.Now().After(end) {
				t.Errorf("another had the core for a moment: never %v", want)
				return
			}
		}
	}
	require.NoError(t, <-onOneCore(func() { come(false) }))

	var stop atomic.Bool
	other := onOneCore(func() {
		for !stop.Load() {
			give()
		}
	})
	err := <-onOneCore(func() { come(true) })
	stop.Store(true)
	require.NoError(t, err)
	require.NoError(t, <-other)
}

// A neighbour is who has the core for a moment, and has sent something then, again and again.
func TestNeighbours(t *testing.T) {
	const soon = 100 * time.Microsecond
	start := time.Now()
	var n neighbour
	gives := func(at time.Duration, taken bool, took time.Duration) bool {
		from := start.Add(at)
		require.True(t, n.asked(from), "at %v", at)
		return n.answers(taken, from, from.Add(took))
	}
	found := func(at time.Duration) {
		t.Helper()
		for i := range neighbourly {
			require.True(t, gives(at, true, soon))
			require.Equal(t, i == neighbourly-1, n.sends())
		}
	}
	found(0)
	require.False(t, n.asked(start.Add(askAgain)), "it is known now")
	found(time.Second)

	require.False(t, gives(2*time.Second, false, 0))
	require.False(t, n.asked(start.Add(2*time.Second+askAgain)), "nobody took it")
	require.False(t, gives(3*time.Second, true, 2*lostCore))
	require.False(t, n.asked(start.Add(3*time.Second+askLater)), "it was taken for long")

	require.True(t, gives(5*time.Second, true, soon))
	require.False(t, n.sends())
	require.False(t, gives(5*time.Second, true, 2*lostCore))
	found(7 * time.Second)
}
