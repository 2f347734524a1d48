package barrier_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
)

// TestOneSideSeesTheOther runs the protocol of the package's comment: were a
// fence missing, both sides would now and then see nothing.
func TestOneSideSeesTheOther(t *testing.T) {
	t.Run("in one process", func(t *testing.T) { protocol(t, barrier.Light, barrier.Heavy) })
	t.Run("among processes", func(t *testing.T) {
		if !barrier.HaveGlobal() {
			t.Skip("the kernel has no membarrier for several processes, or does not allow it")
		}
		protocol(t, func() {}, barrier.HeavyGlobal)
	})
}

// protocol has both sides begin each round at about the same time, the one or the other a
// little later: else one of them is always done before the other begins. It takes a second at
// most, where there are fewer cores than who want them.
func protocol(t *testing.T, light, heavy func()) {
	const rounds = 20_000
	var frequent, rare [rounds]uint32
	var frequentSaw, rareSaw [rounds]bool
	var there, end atomic.Int32
	end.Store(rounds)
	meet := func(round, late int) {
		there.Add(1)
		for int(there.Load()) < 2*(round+1) {
		}
		for range late {
			there.Load()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range rounds {
			if meet(i, i%64); i >= int(end.Load()) {
				return
			}
			release.Store32(&frequent[i], 1)
			light()
			frequentSaw[i] = atomic.LoadUint32(&rare[i]) != 0
		}
	}()
	began, n := time.Now(), 0
	for i := range rounds {
		if time.Since(began) > time.Second {
			end.Store(int32(i))
		}
		if meet(i, i/64%64); i >= int(end.Load()) {
			break
		}
		release.Store32(&rare[i], 1)
		heavy()
		rareSaw[i] = atomic.LoadUint32(&frequent[i]) != 0
		n++
	}
	<-done
	for i := range n {
		require.True(t, frequentSaw[i] || rareSaw[i], "in round %d both missed each other", i)
	}
}
