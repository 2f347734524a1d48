package agent

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

func TestLaunchExplains(t *testing.T) {
	slurm := Launch{Slurm: true}
	for _, c := range []struct {
		name string
		l    Launch
		f    control.LaunchFailed
		says string
	}{
		{"ssh", Launch{}, control.LaunchFailed{Exit: 255, Text: "Welcome\nPermission denied (publickey).\n"}, `host b cannot be reached by ssh: Permission denied (publickey). ("ssh b true" must work`},
		{"a shell that finds nothing", Launch{}, control.LaunchFailed{Exit: 127, Text: "bash: /x: No such file"}, "host b: mpivrun was not found there (bash: /x: No such file)"},
		{"a task that could not be executed", slurm, control.LaunchFailed{Exit: 2, Text: "srun: error: b: task 0: Exited with exit code 2"}, "host b: mpivrun was not found there ("},
		{"the same, and srun itself ends well", slurm, control.LaunchFailed{Text: "srun: error: b: task 0: Exited with exit code 2"}, "host b: mpivrun was not found there ("},
		{"srun", slurm, control.LaunchFailed{Exit: 1, Text: "srun: error: Unable to create step: Job expired"}, "host b: no agent was started there, srun ended with code 1: "},
		{"nothing is said", Launch{Command: []string{"rsh"}}, control.LaunchFailed{Exit: 3}, "host b: no agent was started there, rsh ended with code 3: it said nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, c.l.explain("host b", c.f), c.says)
		})
	}
}

func TestWhatALaunchSaid(t *testing.T) {
	noneLeft(t)
	for script, want := range map[string]string{
		"echo welcome; echo no route to it >&2; exit 3": "welcome\nno route to it\n",
		"read boots; echo $boots; exit 3":               "[{}]\n",
	} {
		said := new(tail)
		code, err := new(launcher).wait([]string{"sh", "-c", script}, []byte("[{}]\n"), said, false)
		require.NoError(t, err)
		require.Equal(t, 3, code)
		require.Equal(t, want, said.String())
	}
}

// Nobody waits for what a command has started, though it holds the command's output open, or writes on.
func TestALaunchEndsBeforeWhatItStarted(t *testing.T) {
	noneLeft(t)
	for _, goesOn := range []string{"sleep 60", "while echo more && sleep 0.02; do :; done 2>/dev/null"} {
		said, began := new(tail), time.Now()
		code, err := new(launcher).wait([]string{"sh", "-c", goesOn + " & echo PID $!; exit 3"}, nil, said, false)
		require.NoError(t, err)
		require.Equal(t, 3, code)
		require.Less(t, time.Since(began), 20*time.Second)
		_, after, found := strings.Cut(said.String(), "PID ")
		require.True(t, found, said)
		var pid int
		_, err = fmt.Sscan(after, &pid)
		require.NoError(t, err)
		syscall.Kill(pid, syscall.SIGKILL) // unless it has ended, as nobody reads what it writes
	}
}

func TestALaunchThatCannotBe(t *testing.T) {
	noneLeft(t)
	code, err := new(launcher).wait([]string{"/nowhere/ssh"}, nil, new(tail), false)
	require.ErrorContains(t, err, "no such file")
	require.Equal(t, -1, code)
}
