//go:build linux

package inlab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/chaos/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

const shown = `HOST  NETWORK  ADDRESS   RATE     STATE
X     lan      10.1.0.1  100mbit
Y     lan      10.1.0.2  0        cut
Y     san      10.2.0.2  1gbit    impaired 20ms 1%
partition: X,W Y,Z
`

func TestWhatTheLabIsAsked(t *testing.T) {
	l := &Lab{hosts: []string{"X", "Y"}, links: parseLinks(shown)}
	for _, c := range []struct {
		f          chaos.Fault
		begin, end string
	}{
		{chaos.Slow("X", "5mbit"), "rate X lan 5mbit", "rate X lan 100mbit"},
		{chaos.Slow("Y", "5mbit"), "rate Y lan 5mbit; rate Y san 5mbit", "rate Y lan 0; rate Y san 1gbit"},
		{chaos.Slow("Y/san", "5mbit"), "rate Y san 5mbit", "rate Y san 1gbit"},
		{chaos.Cut("Y"), "cut Y lan; cut Y san", "heal Y lan; heal Y san"},
		{chaos.Cut("Y/lan"), "cut Y lan", "heal Y lan"},
		{chaos.Cut("X", "Y"), "partition X Y", "partition"},
		{chaos.Cut("X,W", "Y,Z"), "partition X,W Y,Z", "partition"},
	} {
		for end, want := range map[bool]string{false: c.begin, true: c.end} {
			var got []string
			for _, words := range l.words(c.f, end) {
				got = append(got, strings.Join(words, " "))
			}
			require.Equal(t, want, strings.Join(got, "; "), "%v, end %v", c.f, end)
		}
	}
}

// A host may be called as the column of hosts is.
func TestAHostCalledHOST(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Hosts: []lab.Host{{Name: "HOST"}}, Networks: []lab.Network{{Name: "lan"}}})
	shown, err := lab.Control(l.Path(), "show")
	require.NoError(t, err)
	require.Equal(t, []link{{host: "HOST", network: "lan", rate: "0"}}, parseLinks(shown))
}

func TestWithoutALab(t *testing.T) {
	t.Setenv(lab.Variable, "")
	_, err := Find()
	require.ErrorContains(t, err, "it needs a lab, and this is none: run it in one, as mpivlab")
	t.Setenv(lab.Variable, filepath.Join(t.TempDir(), "socket"))
	_, err = Find()
	require.ErrorContains(t, err, "no lab listens there")
}

// inLab is a lab of X, Y and A as a process on one of its hosts finds it, and
// that lab. mpivlab is in PATH.
func inLab(t *testing.T) (*Lab, *lab.Lab) {
	t.Helper()
	whole := lab.ForTest(t, lab.Options{Hosts: []lab.Host{{Name: "X", Networks: []string{"lan"}}, {Name: "Y", Networks: []string{"lan"}}, {Name: "A", Networks: []string{"lan"}}},
		Networks: []lab.Network{{Name: "lan", Rate: 50 * lab.Mbit}}})
	t.Setenv(lab.Variable, whole.Path())
	l, err := Find()
	require.NoError(t, err)
	return l, whole
}

func TestPrepare(t *testing.T) {
	l, _ := inLab(t)
	t.Setenv("PATH", withMpivlab(t)+":"+os.Getenv("PATH"))
	for _, c := range []struct {
		f    chaos.Fault
		busy []string
		want string // the fault, or what the error says
	}{
		{chaos.Cut("X"), nil, "cut X@0s"},
		{chaos.Cut("X", "Q"), nil, "the lab has no host Q, but X, Y, A"},
		{chaos.Cut("X/san"), nil, "host X is not on a network san"},
		{chaos.Slow("Q", "5mbit"), nil, "the lab has no host Q"},
		{chaos.Flood("X"), []string{"X", "Y"}, "flood X from A@0s"},
		{chaos.Flood("X"), []string{"X", "A"}, "flood X from Y@0s"},
		{chaos.Flood("A"), []string{"Y"}, "flood A from X@0s"},
		{chaos.Flood("X"), []string{"X", "Y", "A"}, "say from which the flood comes, as in flood X from A"},
		{chaos.Flood("X").From("Y"), []string{"X", "Y", "A"}, "flood X from Y@0s"},
		{chaos.Flood("X").From("Q"), nil, "the lab has no host Q"},
	} {
		f, err := l.Prepare(c.f, c.busy)
		got := f.String()
		if err != nil {
			got = err.Error()
		}
		require.Contains(t, got, c.want, "%v", c.f)
	}
}

func TestFaultsAreDoneAndUndone(t *testing.T) {
	l, whole := inLab(t)
	state := func() string {
		t.Helper()
		text, err := lab.Control(whole.Path(), "show")
		require.NoError(t, err)
		return text
	}
	before := state()
	for _, c := range []struct {
		f    chaos.Fault
		says string
	}{
		{chaos.Slow("X", "5mbit"), "5mbit"},
		{chaos.Cut("Y"), "cut"},
		{chaos.Cut("X", "Y,A"), "partition: X Y,A"},
	} {
		f, err := l.Prepare(c.f, nil)
		require.NoError(t, err)
		require.NoError(t, l.Begin(f))
		require.Contains(t, state(), c.says)
		_, err = l.End(f)
		require.NoError(t, err)
		require.Equal(t, before, state(), "after %v", f)
	}
}

// withMpivlab is a directory with that program, made for the test.
func withMpivlab(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "../../cmd/mpivlab")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

func TestAFloodBeginsAndEnds(t *testing.T) {
	l, whole := inLab(t)
	t.Setenv("PATH", withMpivlab(t)+":"+os.Getenv("PATH"))
	f, err := l.Prepare(chaos.Flood("X").For(time.Minute), []string{"X", "Y"})
	require.NoError(t, err)
	require.NoError(t, l.Begin(f))
	for _, h := range []string{"X", "A"} { // one serves, one asks
		require.Eventually(t, func() bool {
			pids, err := whole.Pids(h)
			return err == nil && len(pids) == 1
		}, 20*time.Second, 10*time.Millisecond, "a process on host %s", h)
	}
	text, err := l.End(f)
	require.NoError(t, err)
	require.Contains(t, text, "MB/s")
	for _, h := range []string{"X", "A"} {
		pids, err := whole.Pids(h)
		require.NoError(t, err)
		require.Empty(t, pids, "on host %s", h)
	}
}
