package main

import (
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/rundir"
)

// attach shows a job that outlives its mpivrun until it ends, and exits as it does.
func attach(args []string, stdout, stderr *os.File) int {
	if len(args) > 1 || len(args) == 1 && strings.HasPrefix(args[0], "-") {
		return report(stderr, usage("mpivrun attach takes one job and no options: mpivrun attach [JOB]"))
	}
	name := ""
	if len(args) == 1 {
		name = args[0]
	}
	dir := ""
	j, err := choose(name)
	if err == nil {
		dir = j.Dir
	} else if dir = rundir.Left(name); dir == "" {
		return report(stderr, err)
	}
	return show(dir, stdout, stderr, os.Stdin)
}

// outlive starts j in an agent of its own, and shows it.
func outlive(j agent.Job, stdout, stderr *os.File) int {
	self, err := os.Executable()
	if err != nil {
		return report(stderr, err)
	}
	dir, err := agent.Detach(j, []string{self, "agent"})
	if err != nil {
		return report(stderr, err)
	}
	return show(dir, stdout, stderr, j.Stdin)
}

// show shows the job in dir, and passes on input and signals, until it ends.
func show(dir string, stdout, stderr, stdin *os.File) int {
	v := &agent.Viewer{Stdin: stdin, Stdout: stdout, Stderr: stderr}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2)
	// A terminal that goes, or a pipe that nobody reads, is no reason for the job to end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	type end struct {
		code int
		err  error
	}
	ended := make(chan end, 1)
	go func() {
		code, err := v.Attach(dir)
		ended <- end{code, err}
	}()
	var n interrupts
	for {
		select {
		case s := <-signals:
			if n.enough(s) {
				return exit.Signal + int(s.(syscall.Signal))
			}
			v.Signal(s.(syscall.Signal))
		case e := <-ended:
			if e.err != nil {
				return report(stderr, e.err)
			}
			return e.code
		}
	}
}
