//go:build linux

package shm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A barrier orders what two processes do only if both take part: so where one end has none, both fence.
func TestBothEndsFenceUnlessBothHaveBarriers(t *testing.T) {
	for _, without := range [][2]bool{{false, false}, {false, true}, {true, false}, {true, true}} {
		dir := filepath.Join(t.TempDir(), "s")
		require.NoError(t, os.Mkdir(dir, 0o700))
		var ends [2]*Domain
		for i := range ends {
			d, err := Listen(filepath.Join(dir, string(rune('a'+i))), Options{NoBarriers: without[i]})
			require.NoError(t, err)
			defer d.Close()
			ends[i] = d
		}
		dialed, err := ends[0].Connect(t.Context(), ends[1].Addr())
		require.NoError(t, err)
		accepted, err := ends[1].Accept(t.Context())
		require.NoError(t, err)
		want := !ends[0].barriers || !ends[1].barriers // a kernel may have none
		require.Equal(t, want, dialed.(*QueuePair).fences, "%v: who dials", without)
		require.Equal(t, want, accepted.(*QueuePair).fences, "%v: who accepts", without)
	}
}
