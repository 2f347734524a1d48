package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/mpiv"
)

// relax is a small heat2d: each rank has a value that follows its neighbours', for as
// many steps as it is told, with a state that survives.
func relax(ctx context.Context, world *mpiv.Comm) error {
	const steps = 600
	step, mine := 0, []float64{float64(world.Rank())}
	state := world.State()
	state.Protect("step", &step)
	state.Protect("mine", &mine)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	n := world.Size()
	left, right := (world.Rank()+n-1)%n, (world.Rank()+1)%n
	for ; step < steps; step++ {
		if err := state.SafePoint(ctx); err != nil {
			return err
		}
		a, b := []float64{0}, []float64{0}
		if _, err := mpiv.Sendrecv(ctx, world, mine, left, 1, b, right, 1); err != nil {
			return err
		}
		if _, err := mpiv.Sendrecv(ctx, world, mine, right, 2, a, left, 2); err != nil {
			return err
		}
		mine[0] = mine[0]/2 + a[0]/3 + b[0]/6 + 0.001*float64(step%7)
		time.Sleep(2 * time.Millisecond)
	}
	all := make([]float64, n)
	if err := mpiv.Allgather(ctx, world, mine, all); err != nil {
		return err
	}
	if world.Rank() == 0 {
		fmt.Println(all)
	}
	return nil
}

// eventsIn is the events in a file that may still grow.
func eventsIn(t *testing.T, file string) (all []events.Event) {
	t.Helper()
	text, _ := os.ReadFile(file)
	for line := range bytes.Lines(text) {
		var e events.Event
		if json.Unmarshal(line, &e) == nil {
			all = append(all, e)
		}
	}
	return all
}

// pidsIn is the operating system's numbers of the job's processes, by index.
func pidsIn(t *testing.T, file string) map[int]int {
	pids := map[int]int{}
	for _, e := range eventsIn(t, file) {
		if e.Kind == events.ProcessStarted {
			pids[*e.Process] = e.Started.PID
		}
	}
	return pids
}

// relaxing is a job of relax with 4 ranks, which has begun. It has its events in file.
func relaxing(t *testing.T, args ...string) (wait func() (out, errs string, err error), file string) {
	t.Helper()
	return relaxingAs(t, self(t), args...)
}

// relaxingAs is relaxing as that program, which runs this one.
func relaxingAs(t *testing.T, program string, args ...string) (wait func() (out, errs string, err error), file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "events")
	c := mpivrun(t, append(append([]string{"-n", "4", "--events", file}, args...), "-x", envProgram+"=relax", program)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	require.NoError(t, c.Start())
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { c.Process.Kill() })
	require.Eventually(t, func() bool {
		for _, e := range eventsIn(t, file) {
			if e.Kind == events.AllReady {
				return true
			}
		}
		return false
	}, 20*time.Second, 10*time.Millisecond, "the job never began: %s", &errs)
	return func() (string, string, error) {
		err := <-ended
		return out.String(), errs.String(), err
	}, file
}

func TestARankThatIsStoppedGoesOnElsewhere(t *testing.T) {
	wait, _ := relaxing(t)
	want, _, err := wait()
	require.NoError(t, err)
	require.NotEmpty(t, want)

	wait, file := relaxing(t, "--spares", "2", "--snapshot", "0.1")
	time.Sleep(300 * time.Millisecond)
	pid := pidsIn(t, file)[2]
	require.NotZero(t, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	time.Sleep(2 * time.Second)
	syscall.Kill(pid, syscall.SIGCONT) // it is dead, or is refused
	out, errs, err := wait()
	require.NoError(t, err, errs)
	require.Equal(t, want, out, errs)
	require.Contains(t, errs, "rank 2 on host")
	require.Contains(t, errs, "it hangs: rank 2 goes on")
	moved := 0
	for _, e := range eventsIn(t, file) {
		if e.Kind == events.RankMoved {
			moved++
			require.Equal(t, 2, *e.Rank)
			require.True(t, e.Moved.Lost)
		}
	}
	require.Equal(t, 1, moved)
}

// A shell that has started the program says how that was killed.
func TestARankThatAShellHasStartedGoesOnElsewhere(t *testing.T) {
	wait, _ := relaxing(t)
	want, _, err := wait()
	require.NoError(t, err)

	script := filepath.Join(t.TempDir(), "program")
	require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\n'"+self(t)+"'\nexit $?\n"), 0o755))
	wait, file := relaxingAs(t, script, "--spares", "2", "--snapshot", "0.1")
	shell := pidsIn(t, file)[2]
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", shell, shell))
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(children)))
	require.NoError(t, err, "the children of the shell %d", shell)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	out, errs, err := wait()
	require.NoError(t, err, errs)
	require.Equal(t, want, out, errs)
	require.Contains(t, errs, "rank 2 goes on")
}

func TestAJobThatIsStoppedAsAWholeGoesOn(t *testing.T) {
	wait, file := relaxing(t, "--spares", "1", "--snapshot", "0.1")
	pids := pidsIn(t, file)
	require.Len(t, pids, 5)
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	time.Sleep(1500 * time.Millisecond)
	for _, pid := range pids {
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT), "a process was killed")
	}
	_, errs, err := wait()
	require.NoError(t, err, errs)
	require.NotContains(t, errs, "hangs")
}

func TestABusyMachineHangsNobody(t *testing.T) {
	wait, _ := relaxing(t, "--spares", "1", "--snapshot", "0.1")
	done := make(chan struct{})
	spin := mpivrun(t, "-n", fmt.Sprint(4*runtime.NumCPU()), "--timeout", "4", "sh", "-c", "while :; do :; done")
	spin.Stderr = new(strings.Builder)
	require.NoError(t, spin.Start())
	go func() { spin.Wait(); close(done) }()
	out, errs, err := wait()
	require.NoError(t, err, errs)
	require.NotEmpty(t, out)
	require.NotContains(t, errs, "hangs")
	spin.Process.Signal(syscall.SIGTERM)
	<-done
}
