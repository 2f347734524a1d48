package agent

import (
	"fmt"
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

// What a command said before it ended is known then, though what it has started holds its output open.
func TestWhatALaunchSaid(t *testing.T) {
	for script, want := range map[string]string{
		"echo welcome; echo no route to it >&2; exit 3": "welcome\nno route to it\n",
		"sleep 20 & echo $!; exit 3":                    "",
		"read boots; echo $boots; exit 3":               "[{}]\n",
	} {
		l, said := new(launcher), new(tail)
		began := time.Now()
		code, err := l.wait([]string{"sh", "-c", script}, []byte("[{}]\n"), said, false)
		require.NoError(t, err)
		require.Equal(t, 3, code)
		require.Less(t, time.Since(began), 10*time.Second)
		if pid := 0; want == "" {
			_, err := fmt.Sscan(said.String(), &pid)
			require.NoError(t, err)
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			continue
		}
		require.Equal(t, want, said.String())
	}
}

func TestALaunchThatCannotBe(t *testing.T) {
	noneLeft(t)
	code, err := new(launcher).wait([]string{"/nowhere/ssh"}, nil, new(tail), false)
	require.ErrorContains(t, err, "no such file")
	require.Equal(t, -1, code)
}
