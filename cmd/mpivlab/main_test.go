//go:build linux

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// The test binary is mpivlab, too.
const asCommand = "MPIVLAB_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(command(os.Args[1:]))
	}
	lab.Main(m)
}

// mpivlab runs the command and returns what it writes, and its exit code.
func mpivlab(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	text, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(text), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(text), 0
}

func inLab(t *testing.T, args ...string) (out string, code int) {
	t.Helper()
	out, code = mpivlab(t, args...)
	if code == codeFailed && strings.Contains(out, lab.ErrUnavailable.Error()) {
		t.Skip(out)
	}
	return out, code
}

func TestTheCommandRunsInTheLab(t *testing.T) {
	out, code := inLab(t, "--hosts", "P,Q,R", "--lan", "10mbit", "--san", "Q,R:2gbit", "--", "sh", "-ec", `
		hostname
		/proc/$PPID/exe hostfile 2
		/proc/$PPID/exe exec Q hostname
		/proc/$PPID/exe cut Q san
		/proc/$PPID/exe show
		/proc/$PPID/exe cut P san || echo code $?
		exit 5`)
	require.Equal(t, 5, code, out)
	require.Contains(t, out, "P\nP slots=2 lan=10.1.0.1\nQ slots=2 lan=10.1.0.2 san=10.2.0.2\n")
	require.Contains(t, out, "\nQ\nHOST")
	require.Regexp(t, `Q +san +10\.2\.0\.2 +2gbit +cut\n`, out)
	require.Contains(t, out, "mpivlab: host P is not on network \"san\", but on lan\ncode 1\n")
}

func TestExitCodes(t *testing.T) {
	noProgram := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(noProgram, []byte("nothing"), 0o755))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{nil, codeUsage, "mpivlab makes several hosts"},
		{[]string{"--help"}, 0, "mpivlab makes several hosts"},
		{[]string{"--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{[]string{"no-such-program"}, codeNotFound, "not found in $PATH\n"},
		{[]string{"hotsfile", "2"}, codeNotFound, "did you mean mpivlab hostfile?"},
		{[]string{"--", "hotsfile"}, codeNotFound, "not found in $PATH\n"},
		{[]string{"--lan", "fast", "true"}, codeUsage, "write a number and kbit"},
		{[]string{"--no-such-option"}, codeUsage, "mpivlab --help shows the options"},
		{[]string{"--san", "Y,N:1gbit", "true"}, codeUsage, "host N is not among the hosts"},
		{[]string{"--san", "Y", "--network", "Y", "true"}, codeUsage, "say which hosts"},
		{[]string{"--hosts", "X,X", "true"}, codeUsage, "host X is there twice"},
		{[]string{"cut"}, codeUsage, "usage: cut HOST NETWORK"},
		{[]string{"show", "X"}, codeUsage, "usage: show"},
		{[]string{"throttle", "X", "1", "2"}, codeUsage, "write a time such as 90ms"},
		{[]string{"rate", "X", "lan", "fast"}, codeUsage, "write a number and kbit"},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe cut Q lan"}, codeFailed, "no host"},
		{[]string{"exec", "X"}, codeUsage, "usage: mpivlab exec"},
		{[]string{"flood", "--help"}, 0, floodUsage},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe exec X /no/such/program"}, codeNotFound, "no such file"},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe exec X /proc/version"}, codeCannot, "permission denied"},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe exec X /proc"}, codeCannot, "directory"},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe exec X " + noProgram}, codeCannot, "exec format error"},
		{[]string{"--hosts", "X", "sh", "-c", "exec /proc/$PPID/exe exec Q true"}, codeFailed, "no host"},
		{[]string{"--hosts", "X", "/proc/version"}, codeCannot, "permission denied"},
		{[]string{"--hosts", "X", noProgram}, codeCannot, "exec format error"},
	} {
		out, code := inLab(t, c.args...)
		require.Equal(t, c.code, code, "mpivlab %v: %s", c.args, out)
		require.Contains(t, out, c.says)
	}
}

func TestOptions(t *testing.T) {
	o, words, err := parse([]string{"-hosts", "r,a,Y,Z", "--nat", "home:a:20mbit", "--network=wan:r,Y", "--queue", "3000", "prog", "--lan", "x"})
	require.NoError(t, err)
	require.Equal(t, []string{"prog", "--lan", "x"}, words)
	require.Equal(t, lab.Options{
		Hosts: []lab.Host{
			{Name: "r", Networks: []string{"lan", "wan"}},
			{Name: "a", Networks: []string{"home"}},
			{Name: "Y", Networks: []string{"lan", "san", "wan"}},
			{Name: "Z", Networks: []string{"lan", "san"}},
		},
		Networks: []lab.Network{
			{Name: "lan", Rate: 100 * lab.Mbit},
			{Name: "san", Rate: lab.Gbit},
			{Name: "home", Rate: 20 * lab.Mbit, Behind: "lan"},
			{Name: "wan"},
		},
		Queue: 3000,
	}, o)
	t.Setenv("SHELL", "/bin/my-shell")
	o, words, err = parse([]string{"--san", "none"})
	require.NoError(t, err)
	require.Equal(t, []string{"/bin/my-shell"}, words)
	require.Len(t, o.Networks, 1)
}

func TestHelpAndTheLabKnowTheSameVerbs(t *testing.T) {
	l := lab.ForTest(t, lab.Options{Hosts: []lab.Host{{Name: "X"}}})
	for _, v := range verbs {
		require.Contains(t, help, "mpivlab "+v+" ")
		_, err := lab.Control(l.Path(), v, "Q", "Q")
		if err != nil {
			require.NotContains(t, err.Error(), "nothing that a lab does", v)
		}
	}
}
