package yield

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who yields lets those run who are ready on its P, and goes on: at once, and not when the monitor takes the core.
func TestOthersRun(t *testing.T) {
	const others, few = 3, 10
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ran := make(chan int, others)
	for i := range others {
		go func() { ran <- i }()
	}
	yields := 0
	for ; len(ran) < others; yields++ {
		Yield()
	}
	require.LessOrEqual(t, yields, few)
}
