package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// A Job is what [Run] runs: mpivrun with Args, which are its options, the program and
// the program's arguments.
type Job struct {
	Mpivrun  string   // Empty means mpivrun, looked for in PATH.
	Before   []string // words in front of it, such as mpivlab exec X. Usually none.
	Args     []string
	Schedule Schedule // none: nothing happens to the job

	Dir string   // working directory. Empty means this one's.
	Env []string // "VAR=value", on top of this process's environment
}

// A Result is how a job went.
type Result struct {
	Code           int // exit code of mpivrun
	Stdout, Stderr string
	History        History
}

// endGrace is what mpivrun has to end its job, which it kills after five seconds.
const endGrace = 10 * time.Second

// Run runs a job and does to it what the schedule says. A job that fails is no error:
// see Code. When ctx ends, so does the job, and the error is that of ctx.
func Run(ctx context.Context, j Job) (Result, error) {
	var r Result
	tmp, err := filepath.Abs(os.TempDir()) // mpivrun may work in another directory
	if err != nil {
		return r, fmt.Errorf("chaos: %w", err)
	}
	dir, err := os.MkdirTemp(tmp, "mpiv-chaos-")
	if err != nil {
		return r, fmt.Errorf("chaos: %w", err)
	}
	defer os.RemoveAll(dir)
	words := slices.Clone(j.Before)
	if j.Mpivrun == "" {
		j.Mpivrun = "mpivrun"
	}
	words = append(words, j.Mpivrun)
	history := filepath.Join(dir, "history")
	if len(j.Schedule) > 0 {
		if slices.Contains(j.Schedule, nil) {
			return r, fmt.Errorf("chaos: the schedule: %w", errNil)
		}
		if _, err := Parse(j.Schedule.String()); err != nil {
			return r, fmt.Errorf("chaos: the schedule: %w", err)
		}
		words = append(words, "--chaos", j.Schedule.String(), "--chaos-history", history)
	}
	words = append(words, j.Args...)

	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = endGrace
	cmd.Dir, cmd.Env = j.Dir, append(os.Environ(), j.Env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	r.Stdout, r.Stderr = stdout.String(), stderr.String()
	if cmd.ProcessState == nil {
		return r, fmt.Errorf("chaos: start mpivrun (Job.Mpivrun says where it is): %w", err)
	}
	r.Code = cmd.ProcessState.ExitCode()
	if ctx.Err() != nil {
		return r, fmt.Errorf("chaos: the job was ended: %w", ctx.Err())
	}
	f, err := os.Open(history)
	if errors.Is(err, os.ErrNotExist) { // nothing was ordered, or the job did not begin
		return r, nil
	}
	if err != nil {
		return r, fmt.Errorf("chaos: %w", err)
	}
	defer f.Close()
	r.History, err = ReadHistory(f)
	return r, err
}
