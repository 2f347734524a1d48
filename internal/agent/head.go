package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/socket"
)

// A head is where the job's other agents connect. Who is no agent of the job
// gets no further than a TLS handshake.
type head struct {
	a        *Agent
	identity *identity.Identity
	listener *gate.Gate
	launches *launcher
	wg       sync.WaitGroup
	port     int    // where agents connect
	term     uint64 // of this head's election; 0: it was not elected
	shaking  door.Handshakes

	refused int // owned by the Agent's loop

	mu         sync.Mutex // guards what follows
	conns      map[net.Conn]bool
	remotes    map[*remote]bool      // who are told something
	ears       map[*patient.Conn]int // by connection: the agents of other hosts
	cutOff     time.Time             // when last nothing was heard of any of them
	cutOffTold bool                  // the user knows
	closed     bool
}

// openHead makes the job's authority and begins to listen.
func (a *Agent) openHead() error {
	var err error
	if a.authority, err = identity.NewAuthority(a.job.Name); err != nil {
		return err
	}
	own, err := a.authority.Issue(identity.Agent, 0)
	if err != nil {
		return err
	}
	h := &head{a: a, launches: new(launcher), conns: map[net.Conn]bool{}, remotes: map[*remote]bool{}, ears: map[*patient.Conn]int{}}
	if h.identity, err = own.Open(); err != nil {
		return err
	}
	h.listener, err = door.Listen(func(from netip.AddrPort, err error) { a.post(func() { a.strangerRefused(from, err) }) })
	if err != nil {
		return fmt.Errorf("listen for the agents of other hosts: %w", err)
	}
	if a.job.Options.Survive == "crashes" {
		if a.buddies, err = buddy.Listen(h.identity, a.ofCopies); err != nil {
			h.listener.Close()
			return err
		}
		if err = a.buddies.Home(a.dir.Path); err != nil {
			a.buddies.Close()
			h.listener.Close()
			return err
		}
		a.copies = true
	}
	h.port = h.listener.Addr().(*net.TCPAddr).Port
	a.head = h
	h.wg.Go(h.accept)
	return nil
}

// accept admits agents until close.
func (h *head) accept() {
	for {
		c, err := h.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors; they may come back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !h.keep(c) {
			c.Close()
			return
		}
		socket.Persist(c)
		h.wg.Go(func() {
			defer h.forget(c)
			conn, index, err := h.admit(c)
			if crowded := h.shaking.Ended(c); err == nil {
				err = crowded
			}
			if err != nil {
				h.a.post(func() { h.a.strangerRefused(c.RemoteAddr(), err) })
				return
			}
			h.listener.Member(c.RemoteAddr())
			h.serve(conn, index)
		})
	}
}

// strangerRefused is told of a connection that came to nothing.
func (a *Agent) strangerRefused(from fmt.Stringer, err error) {
	a.refusedOne(a.hereName(), err.Error())
	a.head.refused++
	switch n := a.head.refused; {
	case n < door.RefusalsTold:
		a.detail("a connection from %s was refused: %v", from, err)
	case n == door.RefusalsTold:
		a.detail("a connection from %s was refused: %v; of more like it nothing will be said", from, err)
	}
}

// admit finds out which agent is at the other end of c.
func (h *head) admit(c net.Conn) (*tls.Conn, int, error) {
	c.SetDeadline(time.Now().Add(door.ShakeTime))
	conn := tls.Server(c, h.identity.TLS())
	if err := conn.Handshake(); err != nil {
		return nil, 0, err
	}
	name, err := h.identity.Verify(conn.ConnectionState().PeerCertificates[0])
	if err == nil && (name.Role != identity.Agent || name.Index < 1 || name.Index > len(*h.a.roster.Load())) {
		err = fmt.Errorf("%v is no agent of another host", name)
	}
	c.SetDeadline(time.Time{})
	return conn, name.Index, err
}

func (h *head) keep(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.conns[c] = true
	h.shaking.Begin(c, door.Shakes+2*len(*h.a.roster.Load()))
	return true
}

func (h *head) forget(c net.Conn) {
	c.Close()
	h.mu.Lock()
	delete(h.conns, c)
	h.mu.Unlock()
}

// speak has r told what is due, until its connection ends or close.
func (h *head) speak(r *remote) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.remotes[r] = true
	h.wg.Go(func() {
		r.write()
		h.mu.Lock()
		delete(h.remotes, r)
		h.mu.Unlock()
		close(r.silent)
	})
}

// partingTime is how long close lets agents be told what is still due to them.
const partingTime = time.Second

// close ends every connection: agents that are told so, or lose theirs, leave.
func (h *head) close() {
	h.mu.Lock()
	h.closed = true
	told := slices.Collect(maps.Keys(h.remotes))
	h.mu.Unlock()
	late, stop := context.WithTimeout(context.Background(), partingTime)
	defer stop()
	for _, r := range told {
		close(r.parting)
	}
	for _, r := range told {
		select {
		case <-r.silent:
		case <-late.Done():
			r.end(errors.New("it does not read what it is told"))
			<-r.silent
		}
	}
	h.mu.Lock()
	for c := range h.conns {
		c.Close()
	}
	h.mu.Unlock()
	if h.listener != nil {
		h.listener.Close()
	}
	h.wg.Wait()
	if h.a.deputy == nil { // or what it started may outlive it
		h.launches.close()
	}
}

// addresses is where this host can be reached, as far as is known here.
func (h *head) addresses() []string {
	port := strconv.Itoa(h.port)
	var global, loopback []string
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || n.IP.IsLinkLocalUnicast():
		case n.IP.IsLoopback():
			loopback = append(loopback, net.JoinHostPort(n.IP.String(), port))
		default:
			global = append(global, net.JoinHostPort(n.IP.String(), port))
		}
	}
	if len(global) == 0 {
		return loopback
	}
	return global
}

// launchAll has agents started on the other hosts: a few from here, and each of
// them has some more to start.
func (a *Agent) launchAll() {
	boots := make([]control.Boot, 0, len(a.hosts))
	var err error
	for _, h := range a.hosts {
		if h.here || len(h.processes) == 0 || err != nil || a.deputy != nil && h.index == a.own() {
			continue
		}
		var b control.Boot
		b, err = a.bootOf(h)
		boots = append(boots, b)
	}
	if err != nil {
		a.forgetAll()
		a.fail(verdict{code: 1, text: err.Error()})
		return
	}
	a.boots = map[int]control.Boot{}
	a.detail("agents start on %d hosts", len(boots))
	a.after(a.job.Launch.patience(), a.absent)
	if a.job.Launch.Slurm {
		a.head.launches.srun(boots, a.launchFailed)
		return
	}
	distrusted := func(b control.Boot) bool { return a.hosts[b.Agent-1].Distrusted }
	leaves := slices.DeleteFunc(slices.Clone(boots), func(b control.Boot) bool { return !distrusted(b) })
	for _, b := range append(tree(slices.DeleteFunc(boots, distrusted)), leaves...) {
		a.noteBelow(b)
		a.head.launches.start(b, a.launchFailed)
	}
}

// bootOf is what the agent of h is started with.
func (a *Agent) bootOf(h *host) (b control.Boot, err error) {
	b = control.Boot{
		Version: control.AgentVersion, Job: a.job.Name, Agent: h.index + 1, Host: h.name,
		Head: a.head.addresses(), Launch: a.job.Launch.words(), Quote: a.job.Launch.shell(),
		Patience: a.job.Launch.patience() * 3 / 4, Silence: a.job.Silence, Grace: a.graceOf(), Crashes: a.copies, Outlives: a.copies || a.job.Options.Survive == "report", Outlive: a.deputy != nil,
	}
	if b.Outlive {
		b.Leads = a.own() + 1
	}
	if b.Command, err = a.agentCommand(); err == nil {
		b.Credentials, err = a.authority.Issue(identity.Agent, b.Agent)
	}
	return b, err
}

// noteBelow keeps what agents below b are to be told: one that another agent
// cannot start is started from here, with those below it.
func (a *Agent) noteBelow(b control.Boot) {
	for _, c := range tree(b.Children) {
		a.boots[c.Agent] = c
		a.noteBelow(c)
	}
}

// agentCommand is the command that is an agent on other hosts.
func (a *Agent) agentCommand() ([]string, error) {
	path := a.job.Launch.Mpivrun
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find the path of mpivrun for other hosts (give it with --mpivrun): %w", err)
		}
		path = self
	}
	return []string{path, "agent"}, nil
}

// launchFailed is told, by any goroutine, that a launch command has ended.
func (a *Agent) launchFailed(f control.LaunchFailed) {
	a.post(func() { a.notLaunched(f, false) })
}

// notLaunched is told that the command which was to start an agent has ended.
// If another agent gave it, it is tried once more from here: the two hosts may
// not be able to reach each other as this one can.
func (a *Agent) notLaunched(f control.LaunchFailed, byAnother bool) {
	if f.Agent < 1 || f.Agent > len(a.hosts) {
		return
	}
	h := a.hosts[f.Agent-1]
	if h.place != nil || h.lost { // it has joined, and is seen to end
		if f.Exit != 0 && !byAnother && strings.TrimSpace(f.Text) != "" {
			a.detail("host %s: the command that started its agent ended with code %d: %s", h.name, f.Exit, f.Text)
		}
		if a.job.Launch.Slurm && !h.lost && !byAnother {
			// Slurm keeps the agents alive, and their input open.
			a.fail(verdict{code: 1, text: fmt.Sprintf("srun, which started the agents of the other nodes, ended with code %d: was it killed?", f.Exit)})
		}
		return
	}
	if h.adding != nil {
		a.notAdded(h, errors.New(a.job.Launch.explain("host "+h.name, f)))
		return
	}
	if a.ending || len(h.processes) == 0 {
		return
	}
	if byAnother {
		if b, started := a.boots[f.Agent]; started {
			delete(a.boots, f.Agent) // once
			a.detail("host %s: no agent could be started from another host (%s); it is started from here", h.name, strings.TrimSpace(f.Text))
			a.head.launches.start(b, a.launchFailed)
		}
		return
	}
	name := "host " + h.name
	if a.job.Launch.Slurm {
		name = hostNames(a.notJoined()) // one command is for all
	}
	a.fail(verdict{code: 1, text: a.job.Launch.explain(name, f)})
}

// notJoined is the hosts whose agents have not joined.
func (a *Agent) notJoined() []string {
	var silent []string
	for _, h := range a.hosts {
		if h.place == nil && len(h.processes) > 0 {
			silent = append(silent, h.name)
		}
	}
	return silent
}

// absent names the hosts whose agents have not joined.
func (a *Agent) absent() {
	if a.toldRun || a.ending {
		return
	}
	silent := a.notJoined()
	a.fail(verdict{code: 1, text: fmt.Sprintf("no agent has joined from %s within %v: can it reach this host at one of %v? (--launch-timeout gives it longer)",
		hostNames(silent), a.job.Launch.patience(), a.head.addresses())})
}

func hostNames(names []string) string {
	if len(names) == 1 {
		return "host " + names[0]
	}
	more := ""
	if len(names) > 5 {
		names, more = names[:5], fmt.Sprintf(" and %d more", len(names)-5)
	}
	return "hosts " + strings.Join(names, ", ") + more
}
