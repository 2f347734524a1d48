//go:build linux

package launchtest

import (
	"context"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var agentOf = regexp.MustCompile(`host (\w): its agent has joined .* PID (\d+),`)

// With --outlive: mpivrun is killed, then the agent that leads while a rank moves, then, when
// another leads, the job is shown from there. It prints what it prints undisturbed.
func TestMpivrunAndTheHeadKilled(t *testing.T) {
	ways(t, func(t *testing.T, s *site, args []string) {
		program := []string{s.program("heat2d"), "--tolerance", "1e-4"}
		want := s.run(append([]string{"-n", "4"}, program...)...)
		require.Zero(t, want.code, "%v", want)

		r := s.start(append(append(args, "--host", "X,Y,Z,W", "--map-by", "node", "--oversubscribe", "-n", "4", "--spares", "4", "--snapshot", "0.2", "--outlive", "--verbose"), program...)...)
		r.errs.await(t, "known to 3 agents", 1)
		r.errs.await(t, "ranks start", 1)
		agents := map[string]int{}
		for _, m := range agentOf.FindAllStringSubmatch(r.errs.String(), -1) {
			agents[m[1]], _ = strconv.Atoi(m[2])
		}
		require.Len(t, agents, 4)
		r.signal(syscall.SIGKILL)
		r.wait()

		// All hosts have one file system here: the first directory is X's, and its agent is to die.
		job := "heat2d-" + strconv.Itoa(r.cmd.Process.Pid) + "-2"
		ctx, stop := context.WithTimeout(context.Background(), 100*time.Second)
		defer stop()
		again := &running{s: s, cmd: s.Command(ctx, "W", s.program("mpivrun"), "attach", job)}
		again.cmd.Env = append(again.cmd.Env, s.env...)
		again.cmd.Stdout, again.cmd.Stderr = &again.out, &again.errs
		require.NoError(t, again.cmd.Start())
		move := s.start("move", "1", job)
		time.Sleep(40 * time.Millisecond)
		require.NoError(t, syscall.Kill(agents["X"], syscall.SIGKILL))
		move.wait() // it moves, or stays: nobody may answer
		end := again.wait()
		require.Zero(t, end.code, "%v", end)
		require.Contains(t, end.errs, "leads the job from now on", "%v", end)
		require.Equal(t, want.out, r.out.String()+end.out, "%v", end)
		require.Equal(t, 1, strings.Count(end.errs, "rank 0 goes on from"), "%v", end)
		s.gone()
	})
}
