//go:build linux

package launchtest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// family is a rank with a child in its process group, and one that has left it.
var family = []string{"sh", "-c", "trap '' HUP; sleep 1000 & setsid sleep 1000 & echo ready; wait"}

// ways is how agents are started in these tests: site and options of mpivrun.
func ways(t *testing.T, do func(t *testing.T, s *site, args []string)) {
	t.Run("mpivlab exec", func(t *testing.T) {
		s := newSite(t, 4)
		s.settled()
		do(t, s, s.byLab())
	})
	t.Run("ssh", func(t *testing.T) { do(t, newSSHSite(t, 4), nil) })
}

// started starts a job of families on four hosts.
func (s *site) started(args []string) *running {
	s.t.Helper()
	r := s.start(append(append(args, "--host", "X,Y:2,Z,W"), family...)...)
	r.out.await(s.t, "ready", 5)
	return r
}

func killed(t *testing.T, pids []int) {
	t.Helper()
	require.NotEmpty(t, pids)
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
}

// withoutChildren is pids less those whose parent is one of them.
func withoutChildren(t *testing.T, pids []int) (parents []int) {
	t.Helper()
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		_, after, _ := bytes.Cut(stat, []byte(") ")) // what comes before is its name
		var state string
		var parent int
		_, err = fmt.Sscan(string(after), &state, &parent)
		require.NoError(t, err)
		if !slices.Contains(pids, parent) {
			parents = append(parents, pid)
		}
	}
	return parents
}

func TestAgentKilled(t *testing.T) {
	ways(t, func(t *testing.T, s *site, args []string) {
		r := s.started(args)
		var agents []int
		for _, line := range s.left("Y") {
			if strings.HasSuffix(line, "/mpivrun agent ") {
				agents = append(agents, s.pids("Y", line[2:])...)
			}
		}
		require.Len(t, agents, 1)
		killed(t, agents)
		s.gone("Y")
		end := r.wait()
		require.Equal(t, 1, end.code, "%v", end)
		require.Len(t, end.sentences(), 1, "%v", end)
		require.Contains(t, end.sentences()[0], "host Y: its agent has ended, and with it ranks 1, 2")
		s.gone()
	})
}

func TestMpivrunKilled(t *testing.T) {
	ways(t, func(t *testing.T, s *site, args []string) {
		r := s.started(args)
		require.NoError(t, r.cmd.Process.Kill())
		s.gone()
		r.cmd.Wait()
	})
}

func TestMpivrunKilledWhileAgentsStart(t *testing.T) {
	s := newSSHSite(t, 4)
	for wait := time.Duration(0); wait < 300*time.Millisecond; wait += 60 * time.Millisecond {
		r := s.start(append([]string{"--host", "X,Y:2,Z,W"}, family...)...)
		time.Sleep(wait)
		require.NoError(t, r.cmd.Process.Kill())
		s.gone()
		r.cmd.Wait()
	}
}

// The command that started an agent is the thread that its host's part of the
// job hangs by.
func TestLaunchCommandKilled(t *testing.T) {
	s := newSSHSite(t, 4)
	r := s.started(nil)
	killed(t, s.pids("X", " Y exec "))
	s.gone("Y")
	end := r.wait()
	require.Equal(t, 1, end.code, "%v", end)
	require.Equal(t, []string{"host Y: its agent has ended, and with it ranks 1, 2: what started it there has ended"}, end.sentences())
	s.gone()
}

// An agent that is told to end by a signal says so.
func TestAgentTerminated(t *testing.T) {
	s := newSite(t, 3)
	s.settled()
	r := s.start(append(append(s.byLab(), "--host", four[:5]), family...)...)
	r.out.await(t, "ready", 3)
	for _, pid := range s.pids("Z", "mpivrun agent") {
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	}
	end := r.wait()
	require.Equal(t, 1, end.code, "%v", end)
	require.Equal(t, []string{"host Z: its agent has ended, and with it rank 2: it got signal 15 (terminated)"}, end.sentences())
	s.gone()
}

// A host that is cut off in silence ends the job when it has been patient, and
// its agent ends what is there.
func TestHostCutOff(t *testing.T) {
	t.Parallel()
	s := newSSHSite(t, 4)
	r := s.started(nil)
	begun := time.Now()
	require.NoError(t, s.Partition([]string{"Z"}, []string{"X", "Y", "W"}))
	end := r.wait()
	took := time.Since(begun)
	require.Equal(t, 1, end.code, "%v", end)
	require.Len(t, end.sentences(), 1, "%v", end)
	require.Contains(t, end.sentences()[0], "host Z: nothing was heard of its agent for 15s, so that rank 3 cannot be reached")
	require.Less(t, took, control.AlivePatient+6*time.Second, "the job ends when nothing was heard for %v", control.AlivePatient)
	s.gone("X", "Y", "W")
	for _, line := range s.left("Z") {
		require.Contains(t, line, "sshd: root@notty", "all but the sshd that cannot know")
	}
}
