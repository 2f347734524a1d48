package barrier_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/barrier"
	"github.com/mpiv/mpiv/internal/release"
)

// TestOneSideSeesTheOther runs the protocol of the package's comment: were a
// fence missing, both sides would now and then see nothing.
func TestOneSideSeesTheOther(t *testing.T) {
	const rounds = 20_000
	var frequent, rare [rounds]uint32
	var frequentSaw, rareSaw [rounds]bool
	var at atomic.Int32
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range rounds {
			for int(at.Load()) < i {
			}
			release.Store32(&frequent[i], 1)
			barrier.Light()
			frequentSaw[i] = atomic.LoadUint32(&rare[i]) != 0
		}
	}()
	for i := range rounds {
		at.Store(int32(i))
		release.Store32(&rare[i], 1)
		barrier.Heavy()
		rareSaw[i] = atomic.LoadUint32(&frequent[i]) != 0
	}
	<-done
	for i := range rounds {
		require.True(t, frequentSaw[i] || rareSaw[i], "in round %d both missed each other", i)
	}
}

func TestGlobal(t *testing.T) {
	if !barrier.HaveGlobal() {
		t.Skip("the kernel has no membarrier for several processes, or does not allow it")
	}
	barrier.HeavyGlobal()
}
