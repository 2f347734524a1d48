//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A job is an mpivrun in a lab.
type job struct {
	cmd    *lab.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	done   chan struct{} // closed when it has ended, and all its lines are told
	err    error         // how; set before done is closed
	dir    string
}

// start starts mpivrun on the first host of l, over the slots that slots gives for
// each host, those of zero left out. line gets what the job prints, on one
// goroutine.
func (d *desk) start(ctx context.Context, l *lab.Lab, slots map[string]int, line func(string), options []string, program ...string) (*job, error) {
	agent, err := l.LaunchAgent()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "mpivtrials-")
	if err != nil {
		return nil, err
	}
	j := &job{done: make(chan struct{}), dir: dir}
	ranks := 0
	var hosts strings.Builder
	for text := range strings.Lines(l.Hostfile(1)) {
		name, rest, _ := strings.Cut(text, " ")
		if n := slots[name]; n > 0 {
			ranks += n
			fmt.Fprintf(&hosts, "%s %s", name, strings.Replace(rest, "slots=1", fmt.Sprintf("slots=%d", n), 1))
		}
	}
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, []byte(hosts.String()), 0o644); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	words := append([]string{"-q", "--hostfile", file, "-n", fmt.Sprint(ranks), "--launch-agent", strings.Join(agent, " ")}, options...)
	j.cmd = l.Command(ctx, l.Hosts()[0], filepath.Join(d.bin, "mpivrun"), append(words, program...)...)
	j.cmd.Stderr = &j.stderr
	j.cmd.WaitDelay = 5 * time.Second
	in, err := j.cmd.StdinPipe()
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	j.stdin = in
	out, err := j.cmd.StdoutPipe()
	if err == nil {
		err = j.cmd.Start()
	}
	if err != nil {
		in.Close()
		os.RemoveAll(dir)
		return nil, err
	}
	go j.run(out, line)
	return j, nil
}

func (j *job) run(out io.Reader, line func(string)) {
	defer close(j.done)
	defer os.RemoveAll(j.dir)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line(lines.Text())
	}
	j.err = errors.Join(lines.Err(), j.cmd.Wait())
	if j.err != nil {
		j.err = fmt.Errorf("mpivrun: %w; it said: %s", j.err, strings.TrimSpace(j.stderr.String()))
	}
}

// finish tells the job to end, by the end of its input, and waits for it.
func (j *job) finish(patience time.Duration) error {
	j.stdin.Close()
	select {
	case <-j.done:
		return j.err
	case <-time.After(patience):
		j.kill()
		return fmt.Errorf("the job did not end within %v of being told to", patience)
	}
}

// kill ends the job whatever it does; once it has ended it does nothing.
func (j *job) kill() {
	j.stdin.Close()
	_ = j.cmd.Cancel() // it may be gone
	<-j.done
}

// sleep waits, unless ctx or the job ends before.
func (j *job) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-j.done:
		return fmt.Errorf("the job ended too early: %w", errors.Join(j.err, errEnded))
	}
}

var errEnded = errors.New("no rank should have finished yet")
