//go:build linux

package launchtest

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Hosts are lost one after the other, and each time the one that has rank 0, which gives
// work to whoever asks first: the answer is that of a job that nothing happened to.
func TestHostsOfReceiversFromAnySourceAreLost(t *testing.T) {
	t.Parallel()
	s := newSite(t, 5)
	s.settled()
	alone := s.run(s.program("farm"), "-below", "8000000")
	require.Zero(t, alone.code, "%v", alone)
	onHost := regexp.MustCompile(`rank 0 goes on .* on host (\w+)`)
	r := s.start(append(s.byLab(), "--verbose", "--host", "Y:2,Z:2,W:2,h4:2", "-n", "6", "--spares", "2", "--snapshot", "0.1", s.program("farm"), "-below", "8000000")...)
	r.errs.await(t, "ranks start", 1)
	at := "Y"
	for lost := range 2 {
		time.Sleep(700 * time.Millisecond) // some snapshots, and many choices
		killed(t, s.agents(at))
		r.errs.await(t, "rank 0 goes on from", lost+1)
		said := onHost.FindAllStringSubmatch(r.errs.String(), -1)
		require.Len(t, said, lost+1, "%s", r.errs.String())
		at = said[lost][1]
	}
	end := r.wait()
	require.Zero(t, end.code, "%v", end)
	require.Equal(t, alone.out, end.out)
	s.gone()
}

// agents is the PIDs of a host's agent.
func (s *site) agents(host string) (agents []int) {
	for _, line := range s.left(host) {
		if strings.HasSuffix(line, "/mpivrun agent ") {
			agents = append(agents, s.pids(host, line[2:])...)
		}
	}
	return agents
}
