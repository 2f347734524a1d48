package yield

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Who yields lets those run who are ready on its P, and goes on.
func TestOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	ran := make(chan int, 3)
	for i := range 3 {
		go func() { ran <- i }()
	}
	require.Empty(t, ran)
	Yield()
	require.Len(t, ran, 3)
}
