//go:build linux

package main

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

// A field is a lab in which a job is disturbed, one for each job: what is lost there stays lost.
type field struct {
	s     *stage
	job   *survivor
	end   func()
	first string // the host where mpivrun is

	next   time.Time     // before which no other host may be lost
	parted bool          // two were apart for long
	seen   int           // hosts that are known to be given up
	ending time.Duration // within which the job's processes have ended

	mu     sync.Mutex // guards what follows
	lost   []string   // hosts, on purpose
	apart  []string   // hosts that do not reach the first of them now
	frozen string     // a host that is stopped now
	hosts  []string   // that the job began with, or came to have
	extra  []string   // hosts of the lab that it does not have yet
	down   []string   // of lost, those that can be added again
	adding bool       // one of them is being added
}

// Hosts of a field. As many may be lost as leave three, so that there is a majority of those who decide.
var (
	fieldHosts = []string{"X", "Y", "Z", "W", "V", "U"} // of the job from the beginning
	extraHosts = []string{"T", "S", "R"}                // to be added
)

const (
	lossesMost   = 3
	fieldSpares  = 4
	fieldSilence = time.Second

	// Between two losses a copy of each snapshot must get to another host, and if the leader is
	// lost another must lead first.
	lossPause   = 2500 * time.Millisecond
	leaderPause = 6 * time.Second
)

// field starts a job over the hosts of a new lab.
func (d *desk) field(ctx context.Context) (*field, error) {
	o := lab.Options{Networks: []lab.Network{{Name: "lan", Rate: lab.Gbit}}}
	c := cast{ranks: surviveRanks, program: d.survivorProgram(), options: survival("--spares", strconv.Itoa(fieldSpares), "--snapshot", "0.2",
		"--silence", strconv.FormatFloat(fieldSilence.Seconds(), 'g', -1, 64), "--map-by", "node", "--oversubscribe",
		"--transport", d.over(), "--timeout", strconv.Itoa(int(surviveTime/time.Second)))}
	for _, h := range fieldHosts {
		o.Hosts = append(o.Hosts, lab.Host{Name: h})
		c.hosts = append(c.hosts, h+":1")
	}
	for _, h := range extraHosts {
		o.Hosts = append(o.Hosts, lab.Host{Name: h})
	}
	l, err := lab.New(o)
	if err != nil {
		return nil, err
	}
	f := &field{s: &stage{d, l}, first: fieldHosts[0], ending: endTime, hosts: slices.Clone(fieldHosts), extra: slices.Clone(extraHosts)}
	if d.outlive {
		h, err := f.s.outlive(ctx, c)
		if err != nil {
			l.Close()
			return nil, err
		}
		f.job, f.end = h.survivor(), h.end
		return f, nil
	}
	p, err := f.s.play(ctx, c)
	if err != nil {
		l.Close()
		return nil, err
	}
	f.job, f.end = p.survivor, p.end
	return f, nil
}

// close ends the lab, and the job with it.
func (f *field) close() {
	if f == nil {
		return
	}
	f.end()
	<-f.job.done
	f.s.close()
}

// turn is what is done of an act: where no host may be lost now a process is killed instead.
func (f *field) turn(a act) act {
	if f == nil {
		return a
	}
	gone := f.gone()
	if n := len(gone); n > f.seen { // it may be one that nobody wanted to lose
		f.seen, f.next = n, later(f.next, time.Now().Add(lossPause))
	}
	f.mu.Lock()
	for _, h := range f.lost {
		if !slices.Contains(gone, h) {
			gone = append(gone, h)
		}
	}
	hosts := len(f.hosts)
	f.mu.Unlock()
	early := time.Now().Before(f.next)
	switch {
	case a.deed == deedApart && early && f.s.d.outlive: // who leads may not be known yet, and from him nobody may be apart
		a.deed = deedKill
	case a.deed.fatal() && (early || hosts-len(gone) <= len(fieldHosts)-lossesMost):
		a.deed = deedKill
	}
	return a
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// gone is the hosts that the job has given up. One that was added again is another, of the same name.
func (f *field) gone() (all []string) {
	f.job.mu.Lock()
	defer f.job.mu.Unlock()
	for _, h := range f.job.state.Hosts {
		all = slices.DeleteFunc(all, func(name string) bool { return name == h.Name })
		if h.Lost {
			all = append(all, h.Name)
		}
	}
	return all
}

// toHost does to a host what is drawn. errOver: the job is ending.
func (w *disturber) toHost(ctx context.Context, a act, others *sync.WaitGroup) error {
	f, s := w.field, w.field.job
	hosts := f.candidates(a.deed)
	if len(hosts) == 0 {
		w.done[a.deed]--
		return nil
	}
	host := hosts[int(a.host*float64(len(hosts)))]
	switch a.deed {
	case deedBlink, deedApart:
		rest := slices.DeleteFunc(f.s.lab.Hosts(), func(h string) bool { return h == host })
		return w.part(ctx, a, host, rest, others)
	case deedPause:
		w.noted(a.deed, "%s for %v", host, a.blink)
		return f.freeze(ctx, host, a.blink, others)
	}
	// Whoever is there must have somewhere to go, and all others must be somewhere.
	err := s.await(ctx, patience, func() bool { return !s.runningLocked() || f.roomLocked(host) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	running, pid := s.runningLocked(), 0
	for _, h := range s.state.Hosts {
		if h.Name == host {
			pid = h.Agent.PID
		}
	}
	s.mu.Unlock()
	if !running {
		return errOver
	}
	w.noted(a.deed, "%s", host)
	w.hosts++
	f.loses(host, a.deed != deedCutOff)
	f.next = time.Now().Add(lossPause)
	if a.deed == deedLeader || host == f.first {
		f.next = time.Now().Add(leaderPause)
	}
	switch a.deed {
	case deedHost:
		return f.s.lab.Signal(host, syscall.SIGKILL)
	case deedCutOff:
		f.ending = control.AlivePatient + endTime // its network is waited for
		return f.s.lab.Cut(host, "lan")
	case deedFreeze:
		f.next = f.next.Add(fieldSilence)
		return f.freeze(ctx, host, frozenFor+a.blink, others)
	}
	if pid == 0 {
		return errors.New("host " + host + ": it is not known which process its agent is")
	}
	return syscall.Kill(pid, syscall.SIGKILL)
}

// loses notes that a host is about to be lost.
func (f *field) loses(host string, again bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost = append(f.lost, host)
	if again {
		f.down = append(f.down, host)
	}
}

// freeze stops a host for a while.
func (f *field) freeze(ctx context.Context, host string, long time.Duration, others *sync.WaitGroup) error {
	f.mu.Lock()
	f.frozen = host
	f.mu.Unlock()
	if err := f.s.lab.Signal(host, syscall.SIGSTOP); err != nil {
		return err
	}
	others.Go(func() {
		_ = f.job.pause(ctx, long)                // whatever the reason, that is the end of it
		_ = f.s.lab.Signal(host, syscall.SIGCONT) // the lab may be gone
		f.mu.Lock()
		defer f.mu.Unlock()
		f.frozen = ""
	})
	return nil
}

// part has a host reach none of the rest for a while; if it is to be apart from one, one of them.
func (w *disturber) part(ctx context.Context, a act, host string, rest []string, others *sync.WaitGroup) error {
	f, long := w.field, a.blink
	if a.deed == deedApart {
		rest = slices.DeleteFunc(f.candidates(deedApart), func(h string) bool { return h == host })
		if len(rest) == 0 {
			return nil
		}
		rest, long, f.parted = rest[:1], apartBlinks*a.blink, true
	}
	f.next = later(f.next, time.Now().Add(long+lossPause)) // who is apart may be left, or given up
	w.noted(a.deed, "%s from %s for %v", host, strings.Join(rest, ","), long)
	f.mu.Lock()
	f.apart = append([]string{host}, rest...)
	f.mu.Unlock()
	// Not their cables: the kernel takes up to a second to notice that one is back.
	if err := f.s.lab.Partition([]string{host}, rest); err != nil {
		return err
	}
	others.Go(func() {
		_ = f.job.pause(ctx, long) // whatever the reason, that is the end of it
		_ = f.s.lab.Partition()    // the lab may be gone
		f.mu.Lock()
		defer f.mu.Unlock()
		f.apart = nil
	})
	return nil
}

// drain has the operator empty a host, and open it again after a while. errOver: the job is ending.
func (w *disturber) drain(ctx context.Context, a act, others *sync.WaitGroup) error {
	f, s := w.field, w.field.job
	hosts := f.candidates(deedDrain)
	if len(hosts) == 0 {
		w.done[a.deed]--
		return nil
	}
	host := hosts[int(a.host*float64(len(hosts)))]
	if err := s.await(ctx, patience, func() bool { return !s.runningLocked() || f.roomLocked(host) }); err != nil {
		return err
	}
	w.noted(a.deed, "%s for %v", host, a.lasts)
	s.mu.Lock()
	s.drained[host] = true
	s.mu.Unlock()
	others.Go(func() {
		if w.order(s, agent.Question{Op: "drain", Host: host}) == nil {
			_ = s.pause(ctx, a.lasts)                                  // whatever the reason, that is the end of it
			_ = w.order(s, agent.Question{Op: "uncordon", Host: host}) // it may be lost, and that is noted
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.drained, host)
	})
	return nil
}

// add has the operator add a host, one at a time.
func (w *disturber) add(others *sync.WaitGroup) {
	f := w.field
	gone := f.gone()
	f.mu.Lock()
	defer f.mu.Unlock()
	host := ""
	for _, h := range f.down {
		if slices.Contains(gone, h) && h != f.frozen {
			host = h
		}
	}
	again := host != ""
	switch {
	case f.adding || !again && len(f.extra) == 0:
		w.done[deedAdd]--
		return
	case !again:
		host = f.extra[0]
	}
	f.adding = true
	w.noted(deedAdd, "%s", host)
	others.Go(func() {
		err := w.order(f.job, agent.Question{Op: "add", Host: host, Slots: 1})
		if err == nil && again {
			_ = w.order(f.job, agent.Question{Op: "uncordon", Host: host}) // it was in quarantine; a refusal is noted
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.adding = false
		is := func(h string) bool { return h == host }
		switch {
		case err != nil && again:
		case err != nil:
			f.extra = slices.DeleteFunc(f.extra, is)
		case again:
			f.lost, f.down = slices.DeleteFunc(f.lost, is), slices.DeleteFunc(f.down, is)
		default:
			f.extra, f.hosts = slices.DeleteFunc(f.extra, is), append(f.hosts, host)
		}
	})
}

// candidates is the hosts to which a deed can be done. mpivrun shows the job on the first, so that one stays, but for
// an agent that can be outlived.
func (f *field) candidates(d deed) (all []string) {
	leader, gone := f.leader(), f.gone()
	f.job.mu.Lock()
	drained := maps.Clone(f.job.drained)
	f.job.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hosts {
		switch {
		case d == deedDrain && drained[h]:
		case slices.Contains(f.lost, h) || slices.Contains(gone, h) || h == f.frozen:
		case (d == deedBlink || d == deedApart) && len(f.apart) > 0: // a lab has one partition
		case (d == deedPause || d == deedFreeze) && f.frozen != "":
		case d == deedApart && (f.parted || h == leader): // the job may have left a host for that, and has one less; who does not reach the leader is given up
		case len(f.apart) > 0 && (h == f.apart[0] || len(f.apart) == 2 && h == f.apart[1]):
		case d == deedLeader && h != leader:
		case (d == deedHost || d == deedCutOff || d == deedFreeze) && h == f.first:
		case d == deedAgent && h == leader:
		case d == deedFreeze && h == leader && !f.s.d.outlive:
		default:
			all = append(all, h)
		}
	}
	return all
}

// leader is the host of the agent that leads.
func (f *field) leader() (host string) {
	host = f.first
	for _, l := range f.job.stderr.all() {
		if before, ok := strings.CutSuffix(l.text, " "+leadsNow); ok {
			host = before[strings.LastIndexByte(before, ' ')+1:]
		}
	}
	return host
}

// roomLocked tells whether a host can be lost: each rank is in a process, and for those that are on it there are
// spare processes elsewhere.
func (f *field) roomLocked(host string) bool {
	s, there, room := f.job, 0, 0
	for r := range surviveRanks {
		p := s.ofLocked(r)
		if p < 0 {
			return false
		}
		if s.state.Processes[p].Host == host {
			there++
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range s.sparesLocked() {
		if h := s.state.Processes[p].Host; h != host && h != f.frozen && !slices.Contains(f.lost, h) {
			room++
		}
	}
	return room >= there
}

// look takes stock of a field when its job has ended.
func (w *disturber) look(f *field) error {
	if f == nil {
		return nil
	}
	for _, h := range f.gone() {
		if !slices.Contains(f.lost, h) {
			w.surprises++
			w.d.note("run %d: host %s was given up, to which no more was done than a short cut; mpivrun said of it: %s; what was done: %s", w.runs, h, f.saidOf(h), strings.Join(w.log, "; "))
		}
	}
	left, err := f.s.leftAfter(f.ending)
	if left > 0 {
		w.leftOver += left
		w.d.note("run %d: %d processes are left; lost were %s", w.runs, left, strings.Join(f.lost, ", "))
	}
	return err
}

// saidOf is what mpivrun has said of the agent of a host, and when.
func (f *field) saidOf(host string) string {
	var lines []string
	for _, l := range f.job.stderr.all() {
		if strings.Contains(l.text, "host "+host+": ") {
			lines = append(lines, l.at.UTC().Format("15:04:05.000 ")+l.text)
		}
	}
	return strings.Join(lines, "; ")
}

// reportLab claims what is of hosts.
func (w *disturber) reportLab() {
	d := w.d
	d.note("%d hosts lost", w.hosts)
	d.claim(claim{what: "hosts given up to which no more was done than a short cut", measured: float64(w.surprises)})
	d.claim(claim{what: "processes that are left after jobs", measured: float64(w.leftOver)})
}

// survivor follows the job by asking how it stands, until its first front ends.
func (h *heirloom) survivor() *survivor {
	s := &survivor{cmd: h.first.cmd.Cmd, stdout: &h.first.stdout, stderr: &h.first.stderr, heirloom: h, done: make(chan struct{}),
		changed: make(chan struct{}), ready: map[int]bool{}, killed: map[int]bool{}, drained: map[string]bool{}}
	go func() {
		defer close(s.done)
		for h.first.runs() {
			if now := h.state(); now != nil {
				s.stand(*now)
			}
			select {
			case <-h.first.done:
			case <-time.After(pollEvery):
			}
		}
		s.err = h.first.err
	}()
	return s
}

// stand is told how the job stands.
func (s *survivor) stand(now events.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = now
	for i, p := range now.Processes {
		s.ready[i] = p.Phase == events.PhaseRunning
	}
	close(s.changed)
	s.changed = make(chan struct{})
}
