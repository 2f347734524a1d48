//go:build linux

// Package inlab does to the hosts of a lab what a schedule of faults says, from a
// process that the lab runs.
package inlab

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/chaos/lab"
)

// floodMost is how long a flood lasts at most.
const floodMost = 10 * time.Minute

// A Lab is the one that this process is in. Its methods are for one goroutine.
type Lab struct {
	path   string
	hosts  []string
	links  []link
	floods map[string]*flood // by host
}

// A link is a cable of a host, or a router.
type link struct {
	host, network string
	rate          string // before any fault
}

// A flood is one that goes on.
type flood struct {
	cmd    *exec.Cmd
	tied   io.Closer // its input: it ends with it
	lines  chan string
	errors *bytes.Buffer // read when lines is closed
}

// Find returns the lab that this process is in, by the variable that mpivlab sets.
func Find() (*Lab, error) {
	path := os.Getenv(lab.Variable)
	if path == "" {
		return nil, fmt.Errorf("it needs a lab, and this is none: run it in one, as mpivlab --hosts X,Y -- mpivrun …, or say with %s where one is", lab.Variable)
	}
	l := &Lab{path: path, floods: map[string]*flood{}}
	shown, err := lab.Control(path, "show")
	if err != nil {
		return nil, fmt.Errorf("ask the lab at %s: %w", path, err)
	}
	hosts, err := lab.Control(path, "hostfile")
	if err != nil {
		return nil, fmt.Errorf("ask the lab at %s: %w", path, err)
	}
	for line := range strings.Lines(hosts) {
		l.hosts = append(l.hosts, strings.Fields(line)[0])
	}
	l.links = parseLinks(shown)
	return l, nil
}

// parseLinks reads what a lab shows of itself.
func parseLinks(shown string) (all []link) {
	_, lines, _ := strings.Cut(shown, "\n") // behind the heads of columns: a host may be called HOST
	for line := range strings.Lines(lines) {
		if f := strings.Fields(line); len(f) >= 4 && f[0] != "partition:" {
			all = append(all, link{host: f[0], network: f[1], rate: f[3]})
		}
	}
	return all
}

// of is the cables that f is about.
func (l *Lab) of(f chaos.Fault) (all []link) {
	for _, c := range l.links {
		if c.host == f.Host && (f.Network == "" || c.network == f.Network) {
			all = append(all, c)
		}
	}
	return all
}

// Prepare looks whether the lab has the hosts of f, and chooses from where to flood:
// the last host that is not busy.
func (l *Lab) Prepare(f chaos.Fault, busy []string) (chaos.Fault, error) {
	names := slices.Concat(f.Groups...)
	if len(names) == 0 {
		names = []string{f.Host}
	}
	if f.Attacker != "" {
		names = append(names, f.Attacker)
	}
	for _, h := range names {
		if !slices.Contains(l.hosts, h) {
			return f, fmt.Errorf("the lab has no host %s, but %s", h, strings.Join(l.hosts, ", "))
		}
	}
	if f.Host != "" && len(l.of(f)) == 0 {
		return f, fmt.Errorf("host %s is not on a network %s: mpivlab show tells which there are", f.Host, f.Network)
	}
	if f.Kind != chaos.KindFlood {
		return f, nil
	}
	if f.Length > floodMost {
		return f, fmt.Errorf("a flood lasts %v at most, not %v", floodMost, f.Length)
	}
	if _, err := mpivlab(); err != nil {
		return f, err
	}
	for _, h := range slices.Backward(l.hosts) {
		if f.Attacker == "" && h != f.Host && !slices.Contains(busy, h) {
			f.Attacker = h
		}
	}
	if f.Attacker == "" {
		return f, fmt.Errorf("the job has processes on all other hosts of the lab: say from which the flood comes, as in flood %s from %s", f.Host, l.hosts[len(l.hosts)-1])
	}
	return f, nil
}

// Begin does f, which Prepare has returned.
func (l *Lab) Begin(f chaos.Fault) error {
	if f.Kind == chaos.KindFlood {
		return l.flood(f)
	}
	return l.ask(l.words(f, false))
}

// End undoes f.
func (l *Lab) End(f chaos.Fault) (string, error) {
	if f.Kind == chaos.KindFlood {
		return l.endFlood(f)
	}
	return "", l.ask(l.words(f, true))
}

// words is what the lab is asked to do f, or to undo it.
func (l *Lab) words(f chaos.Fault, end bool) (all [][]string) {
	if len(f.Groups) > 0 {
		words := []string{"partition"}
		for _, g := range f.Groups {
			if !end {
				words = append(words, strings.Join(g, ","))
			}
		}
		return [][]string{words}
	}
	for _, c := range l.of(f) {
		switch {
		case f.Kind == chaos.KindSlow && end:
			all = append(all, []string{"rate", c.host, c.network, c.rate})
		case f.Kind == chaos.KindSlow:
			all = append(all, []string{"rate", c.host, c.network, f.Rate})
		case end:
			all = append(all, []string{"heal", c.host, c.network})
		default:
			all = append(all, []string{"cut", c.host, c.network})
		}
	}
	return all
}

func (l *Lab) ask(all [][]string) error {
	var errs []error
	for _, words := range all {
		if _, err := lab.Control(l.path, words...); err != nil {
			errs = append(errs, fmt.Errorf("mpivlab %s: %w", strings.Join(words, " "), err))
		}
	}
	return errors.Join(errs...)
}

// mpivlab is where that program is: beside this one, or in PATH.
func mpivlab() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "mpivlab")
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath("mpivlab")
	if err != nil {
		return "", errors.New("a flood needs the program mpivlab, beside mpivrun or in PATH")
	}
	return path, nil
}

// How long a flood may take to begin, and to end.
const (
	floodBegins = 10 * time.Second
	floodEnds   = 5 * time.Second
)

// flood begins f, and returns when the host serves and requests go there.
func (l *Lab) flood(f chaos.Fault) error {
	path, err := mpivlab()
	if err != nil {
		return err
	}
	long := floodMost
	if f.Length > 0 {
		long = min(long, f.Length+floodEnds) // who ordered it ends it before
	}
	fl := &flood{cmd: exec.Command(path, "flood", "--tied", "--from", f.Attacker, "--for", long.String(), f.Host), lines: make(chan string, 2), errors: new(bytes.Buffer)}
	fl.cmd.Env = append(os.Environ(), lab.Variable+"="+l.path)
	fl.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is not for it
	fl.cmd.Stderr, fl.cmd.WaitDelay = fl.errors, floodEnds
	in, err := fl.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := fl.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := fl.cmd.Start(); err != nil {
		return err
	}
	fl.tied = in
	go fl.listen(out)
	select {
	case _, ok := <-fl.lines:
		if ok {
			l.floods[f.Host] = fl
			return nil
		}
		return fmt.Errorf("the flood did not begin: %s", fl.said())
	case <-time.After(floodBegins):
		fl.end()
		return fmt.Errorf("the flood did not begin within %v: %s", floodBegins, fl.said())
	}
}

// listen passes on the two lines that a flood says, and waits for its end.
func (fl *flood) listen(out io.Reader) {
	defer close(fl.lines)
	defer fl.cmd.Wait() // who reaps orphans may have been first
	for s := bufio.NewScanner(out); s.Scan(); {
		select {
		case fl.lines <- s.Text():
		default:
		}
	}
}

// end ends the flood and returns what it said at last.
func (fl *flood) end() (last string) {
	fl.tied.Close()
	patience := time.AfterFunc(floodEnds, func() { fl.cmd.Process.Kill() })
	defer patience.Stop()
	for line := range fl.lines {
		last = line
	}
	return last
}

// said is the errors of a flood that has ended.
func (fl *flood) said() string {
	return strings.TrimSpace(strings.TrimPrefix(fl.errors.String(), "mpivlab: "))
}

func (l *Lab) endFlood(f chaos.Fault) (string, error) {
	fl := l.floods[f.Host]
	delete(l.floods, f.Host)
	last := fl.end()
	if said := fl.said(); said != "" {
		return "", fmt.Errorf("the flood ended with: %s", said)
	}
	return last, nil
}
