//go:build linux

package launchtest

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A scheduler that takes a host away sends its agent SIGTERM: the ranks there go on elsewhere,
// alive, the agent leaves, and nothing is lost.
func TestEvictedAgentDrainsItsHost(t *testing.T) {
	t.Parallel()
	for _, level := range []string{"moves", "crashes"} {
		t.Run(level, func(t *testing.T) {
			s := newSite(t, 3)
			s.settled()
			program := []string{s.program("heat2d"), "--tolerance", "8e-5"}
			want := s.run(append([]string{"-n", "3"}, program...)...)
			require.Zero(t, want.code, "%v", want)
			r := s.start(append(append(s.byLab(), "--verbose", "--survive", level, "--host", "X:2,Y:2,Z:2", "--map-by", "node", "-n", "3", "--spares", "3", "--grace", "20"), program...)...)
			r.errs.await(t, "ranks start", 1)
			time.Sleep(300 * time.Millisecond)
			agents := s.agents("Z")
			require.Len(t, agents, 1)
			require.NoError(t, syscall.Kill(agents[0], syscall.SIGTERM))
			r.errs.await(t, "host Z: its agent has ended, and with it", 1)
			s.gone("Z")
			end := r.wait()
			require.Zero(t, end.code, "%v", end)
			require.Equal(t, want.out, end.out)
			require.Contains(t, end.errs, "host Z: its agent is to end (it got signal 15 (terminated)), and has 20s", "%v", end)
			require.NotContains(t, end.errs, "goes on from", "it moved alive: %v", end)
			s.gone()
		})
	}
}
