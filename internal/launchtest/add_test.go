//go:build linux

package launchtest

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A job begins on X and Y. Z is added, X drained, and Y lost: it prints what it prints
// undisturbed.
func TestHostAddedToARunningJob(t *testing.T) {
	ways(t, func(t *testing.T, s *site, args []string) {
		program := []string{s.program("heat2d"), "--tolerance", "1e-4"}
		want := s.run(append([]string{"-n", "4"}, program...)...)
		require.Zero(t, want.code, "%v", want)
		r := s.start(append(append(args, "--verbose", "--host", "X:2,Y:2", "-n", "4", "--spares", "1", "--snapshot", "0.1"), program...)...)
		r.errs.await(t, "ranks start", 1)
		r.order("heat2d", "add", "Z:2")
		r.order("heat2d", "drain", "--wait", "X")
		for _, line := range strings.Split(s.run("ps", r.job("heat2d")).out, "\n") {
			if w := strings.Fields(line); len(w) > 1 && w[1] == "X" && w[0] != "-" {
				require.Contains(t, line, "exited", "a rank is still there")
			}
		}
		r.errs.await(t, "the host is empty, and cordoned", 1)
		agents := s.agents("Y")
		require.Len(t, agents, 1)
		killed(t, agents)
		end := r.wait()
		require.Zero(t, end.code, "%v", end)
		require.Equal(t, want.out, end.out)
		require.Regexp(t, `move rank 0 from X/\d to Z/\d: done`, end.errs)
		require.Contains(t, end.errs, "host Y: its agent has ended", "%v", end)
		s.gone()
	})
}

// A file is compressed by ranks that move to a host which was added: the same bytes.
func TestHostAddedWhileCompressing(t *testing.T) {
	s := newSite(t, 3)
	s.settled()
	tree, packed := s.path("tree"), s.path("packed")
	require.NoError(t, os.Mkdir(tree, 0o755))
	for _, name := range []string{"mpivrun", "mpivlab"} {
		text, err := os.ReadFile(s.program(name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), text, 0o644))
	}
	program := func(to string) []string { return []string{s.program("compress"), "--level", "9", "-o", to, tree} }
	want := s.run(append([]string{"-n", "3"}, program(packed)...)...)
	require.Zero(t, want.code, "%v", want)
	bytes, err := os.ReadFile(packed)
	require.NoError(t, err)
	r := s.start(append(append(s.byLab(), "--verbose", "--survive", "moves", "--host", "X:2,Y", "-n", "3"), program(packed+".again")...)...)
	r.errs.await(t, "ranks start", 1)
	r.order("compress", "add", "Z")
	r.order("compress", "drain", "Y")
	end := r.wait()
	require.Zero(t, end.code, "%v", end)
	require.Regexp(t, `move rank 2 from Y/0 to Z/0: done`, end.errs)
	again, err := os.ReadFile(packed + ".again")
	require.NoError(t, err)
	require.Equal(t, len(bytes), len(again))
	require.Equal(t, bytes, again)
	s.gone()
}

// A job that outlives its head: W is added, the head's host X lost, and X added again by the
// head that follows. Then Y is drained.
func TestHostAddedAgainByAnotherHead(t *testing.T) {
	ways(t, func(t *testing.T, s *site, args []string) {
		program := []string{s.program("heat2d"), "--tolerance", "4e-5"}
		want := s.run(append([]string{"-n", "3"}, program...)...)
		require.Zero(t, want.code, "%v", want)
		r := s.start(append(append(args, "--verbose", "--outlive", "--silence", "2", "--host", "X,Y,Z", "--oversubscribe", "-n", "3", "--spares", "2", "--snapshot", "0.2"), program...)...)
		r.errs.await(t, "known to 3 agents", 1)
		r.errs.await(t, "ranks start", 1)
		r.order("heat2d", "add", "W:2")
		said := agentOf.FindAllStringSubmatch(r.errs.String(), -1)
		at := slices.IndexFunc(said, func(m []string) bool { return m[1] == "X" })
		require.GreaterOrEqual(t, at, 0)
		first, _ := strconv.Atoi(said[at][2])
		killed(t, []int{first})
		r.errs.await(t, "leads the job from now on", 1)
		r.errs.await(t, "rank 0 goes on from", 1)
		another := func(words ...string) { // the second directory is another host's
			t.Helper()
			end := s.run(append(words, "heat2d-"+strconv.Itoa(r.cmd.Process.Pid)+"-2")...)
			require.Zero(t, end.code, "mpivrun %v: %v; the job said %s", words, end, r.errs.String())
		}
		another("add", "X")
		another("uncordon", "X")
		another("drain", "Y")
		r.errs.await(t, "the host is empty, and cordoned", 1)
		end := r.wait()
		require.Zero(t, end.code, "%v", end)
		require.Equal(t, want.out, end.out)
		require.Equal(t, 2, strings.Count(end.errs, "host X: its agent has joined"), "%v", end)
		s.gone()
	})
}

// job is its name, by that of its program. All hosts have one file system here: its first
// directory is that of the first host.
func (r *running) job(program string) string {
	return program + "-" + strconv.Itoa(r.cmd.Process.Pid)
}

// order gives the job, of that program, an order, which is obeyed.
func (r *running) order(program string, words ...string) {
	r.s.t.Helper()
	end := r.s.run(append(words, r.job(program))...)
	require.Zero(r.s.t, end.code, "mpivrun %v: %v; the job said %s", words, end, r.errs.String())
}
