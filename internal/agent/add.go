package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
)

// A host that is added to a running job gets an agent, and that some spare processes. When
// all of them are ready the others are told of them, and the host is one of the job's.
// Until then nobody but the head knows of it, so that one that does not come leaves no trace.
// A host that was lost is added as another, of the same name: what was there stays refused.

// An adding is of one host.
type adding struct {
	slots int
	ended func(error) // told once
}

// addTime is what it may take to add a host, asking and answering.
const addTime = 2 * time.Minute

// addPatience is how long the agent of a host that is added and its processes may take.
func (a *Agent) addPatience() time.Duration {
	return min(a.job.Launch.patience(), addTime-10*time.Second)
}

// hostNamed is the host of that name that was added last; nil: there is none.
func (a *Agent) hostNamed(name string) (last *host) {
	for _, h := range a.hosts {
		if h.name == name {
			last = h
		}
	}
	return last
}

// called is what the job calls the host of that name, which may be written with another user, or without; name if
// it has none.
func (a *Agent) called(name string) string {
	place := func(s string) string { return s[strings.LastIndexByte(s, '@')+1:] }
	if a.hostNamed(name) != nil {
		return name
	}
	for _, h := range a.hosts {
		if place(h.name) == place(name) {
			return h.name
		}
	}
	return name
}

// addAsked adds the host that q is about, and answers when it is there.
func (a *Agent) addAsked(q Question, reply chan<- Answer) {
	if err := a.canAdd(max(q.Slots, 1)); err != nil {
		reply <- Answer{Error: err.Error()}
		return
	}
	a.orderAsked(q, reply)
}

// canAdd is why no host with so many processes can be added; nil: it can be tried.
func (a *Agent) canAdd(slots int) error {
	switch level := a.job.Options.Survive; {
	case level == "none" || level == "report":
		return fmt.Errorf("the job runs with --survive %s: its ranks cannot go to a host that is added (start it with --survive moves or crashes)", level)
	case !a.leads():
		return errors.New("the job began with processes on one host only, and no host can be added to it (start it with --host or --hostfile on two or more)")
	case a.back != nil:
		return errors.New("another agent is taking over the job: ask again")
	case !a.toldStart || a.ending || a.interrupts > 0:
		return errors.New("the job has not started yet, or is ending")
	case a.job.Launch.Slurm:
		return errors.New("srun has started the agents of this job, and starts no more of them: start the job with --launch-agent ssh (or another command) to add hosts")
	case a.copies && !a.survival.copied:
		return errors.New("the job began on one host only, so its snapshots have no copies on others, and no host can be added")
	case len(a.processes)+slots > a.first+a.roomFor():
		return fmt.Errorf("a job may come to have %d processes more than it began with, and %d more would be too many", a.roomFor(), slots)
	}
	return nil
}

// addHost has an agent started on a host; ended is told when its processes take part, or
// why they do not.
func (a *Agent) addHost(name string, ended func(error)) {
	h := &host{Host: Host{Name: name, Slots: max(a.policy.slotsAsked, 1)}, index: len(a.hosts), name: name}
	h.adding = &adding{slots: h.Slots, ended: ended}
	a.hosts = append(a.hosts, h)
	a.publish()
	text, err := json.Marshal(h.Host)
	if err != nil {
		panic(fmt.Sprintf("agent: %v", err)) // there is nothing in it that could
	}
	a.record(ledger.Entry{HostAdded: &ledger.HostAdded{Name: name, Host: text}})
	b, err := a.bootOf(h)
	if err != nil {
		a.notAdded(h, err)
		return
	}
	b.Head = a.familiar(b.Head)
	b.Voters = a.allVoters()
	a.detail("host %s: an agent is started there", name)
	a.agreed(func() { a.head.launches.start(b, a.launchFailed) })
	a.after(a.addPatience(), func() { a.tooLate(h) })
}

// familiar is those of addrs, host:port, by which an agent comes with an address that the
// processes there are can dial: of the same version of IP as their own. If there is none it
// is all.
func (a *Agent) familiar(addrs []string) (same []string) {
	i := slices.IndexFunc(a.hosts, (*host).able)
	if i < 0 {
		return addrs
	}
	networks := a.networksOf(a.hosts[i])
	own, err := netip.ParseAddr(networks[len(networks)-1].Address)
	if err != nil {
		return addrs
	}
	for _, text := range addrs {
		if at, err := netip.ParseAddrPort(text); err == nil && at.Addr().Is4() == own.Is4() {
			same = append(same, text)
		}
	}
	if same == nil {
		return addrs
	}
	return same
}

// likeThe is a process of the i-th program, in turn.
func (a *Agent) likeThe(i int) *process {
	prog := &a.job.Programs[i%len(a.job.Programs)]
	return a.processes[slices.IndexFunc(a.processes, func(p *process) bool { return p.prog == prog })]
}

// tooLate gives up a host that is not there in time.
func (a *Agent) tooLate(h *host) {
	text := fmt.Sprintf("no agent has joined from host %s within %v: can it reach this host at one of %v?", h.name, a.addPatience(), a.head.addresses())
	if h.place != nil {
		text = fmt.Sprintf("host %s: its processes run there, and have not called mpiv.Main within %v", h.name, a.addPatience())
	}
	a.notAdded(h, errors.New(text))
}

// populate starts the processes of a host that is added: its agent is there.
func (a *Agent) populate(h *host) {
	for i := range h.adding.slots {
		if _, err := a.newSpare(h, a.likeThe(i)); err != nil {
			a.notAdded(h, fmt.Errorf("start a spare process: %w", err))
			return
		}
	}
	if err := a.runOn(h); err != nil {
		a.notAdded(h, err)
	}
}

// readyToJoin has the processes of a host that is added take part, when all are ready.
func (a *Agent) readyToJoin(h *host) {
	for _, i := range h.processes {
		if !a.processes[i].ready {
			return
		}
	}
	ended := h.adding.ended
	h.adding = nil
	a.recordJoined(h)
	a.record(ledger.Entry{Order: &ledger.Order{Op: "uncordon", Host: h.name}}) // of one of that name before
	if a.copies {
		for _, g := range a.hosts {
			if g.lost {
				a.tellOfCopies(h, control.ToAgent{Fence: &control.Fence{Agent: g.index + 1}})
			}
		}
	}
	a.pairHosts()
	for _, i := range h.processes {
		a.joinLate(a.processes[i])
	}
	a.vote()
	a.detail("host %s: its processes take part from now on", h.name)
	a.agreed(func() { ended(nil) }) // another head would know of it
}

// vote tells a host that was added who votes, and has it vote, too, if that is of use.
func (a *Agent) vote() {
	switch {
	case a.deputy == nil:
	case a.pen.queue == nil && len(a.voters) < 3: // they were too few
		a.foundVoters()
	default:
		a.tellVoters()
		a.reelect()
	}
}

// notAdded gives up a host that is being added, and the job goes on without it.
func (a *Agent) notAdded(h *host, why error) {
	if h.adding != nil {
		a.drop(h, why)
		a.goOn() // ranks may have waited for its processes
		a.refill()
	}
}

// drop ends what there is of a host that is being added.
func (a *Agent) drop(h *host, why error) {
	ended := h.adding.ended
	h.adding, h.lost = nil, true
	a.record(ledger.Entry{HostLost: &ledger.HostLost{Host: h.index}})
	if r, there := h.place.(*remote); there {
		a.emit(events.Event{Kind: events.HostLost, Host: h.name, Text: why.Error()})
		r.tell(control.ToAgent{Over: &control.Over{}})
		a.after(overTime, func() { r.end(why) })
	}
	a.endAll(h)
	ended(why)
}

// endAll takes all processes of a host for ended, and returns those that were not before.
func (a *Agent) endAll(h *host) (ended []*process) {
	for _, i := range h.processes {
		p := a.processes[i]
		p.linkEnded, p.exited = true, true
		if p.started && !p.drained {
			a.drained(p)
		}
		if !p.judged {
			p.judged = true
			a.running--
			ended = append(ended, p)
		}
	}
	return ended
}
