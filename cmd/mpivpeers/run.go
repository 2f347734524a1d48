package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// An outcome is what one run gave: points, or err and no points.
type outcome struct {
	points  []point
	wall    time.Duration // of the launcher, from start to exit
	carried int64         // bytes that the network's interface carried meanwhile
	before  distance      // of the cores,
	after   distance      //   at the two ends of the run
	err     error
}

// A runner runs contenders, one at a time.
type runner struct {
	timeout  time.Duration // of one run
	alone    bool          // nothing else uses this loopback interface
	distance func() distance
}

// run runs c in s and waits until it has ended; when ctx ends or the time is
// up, it ends the launcher first, and what the launcher started.
func (r runner) run(ctx context.Context, c contender, s setting) outcome {
	argv, env := c.command(s)
	var o outcome
	before, err := readInterface(s.network())
	if err != nil {
		return outcome{err: err}
	}
	var output string
	o.before = r.distance()
	output, o.wall, o.err = execute(ctx, r.timeout, argv, env)
	o.after = r.distance()
	after, err := readInterface(s.network())
	if o.err == nil {
		o.err = err
	}
	o.carried = after - before
	if o.err == nil {
		o.err = r.checkPath(s, c.share(s), o.carried)
	}
	if o.err == nil {
		o.points, o.err = parse(s, output)
	}
	if o.err == nil && s.name == "init" {
		o.points = []point{{noSize, []float64{o.wall.Seconds() * 1e3}}}
	}
	return o
}

// checkPath refuses a run whose messages did not go where they should: over
// TCP the loopback interface must have carried them, over shared memory not.
func (r runner) checkPath(s setting, share int, carried int64) error {
	least := s.leastBytes(share)
	switch {
	case s.transport != "shm" && carried < least:
		return fmt.Errorf("not TCP over %s: %d bytes of messages, but only %d crossed the interface", s.network(), least, carried)
	case s.transport == "shm" && r.alone && least > 1<<20 && carried >= least:
		return fmt.Errorf("not shared memory: %d bytes of messages, and %d crossed the loopback interface", least, carried)
	}
	return nil
}

func readInterface(name string) (int64, error) {
	dev, err := os.ReadFile("/proc/net/dev")
	if err != nil {
		return 0, err
	}
	return interfaceBytes(string(dev), name)
}

// execute runs argv in a process group of its own and returns its standard
// output and how long it took. The first line of an error is the reason; the
// command and the end of its standard error follow.
func execute(ctx context.Context, timeout time.Duration, argv, env []string) (string, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	// A launcher that is asked to end takes its ranks with it, which one that
	// is killed cannot.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second

	start := time.Now()
	if err := cmd.Start(); err != nil {
		return "", 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	err := cmd.Wait()
	wall := time.Since(start)
	if err == nil {
		return stdout.String(), wall, nil
	}
	// What of the group is left holds on to a core, or to nothing.
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("not done after %v", timeout)
	}
	return "", wall, fmt.Errorf("%w\n%s\n%s", err, strings.Join(argv, " "), lastLines(stderr.String()))
}

// lastLines is the end of a program's complaint.
func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}
