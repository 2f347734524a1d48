package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/replica"
	"github.com/mpiv/mpiv/leader"
)

// A new head knows the ledger. What is not in it the deputies say: when all have that are
// not lost, or have had their time, which is longer for who is seen to be there, the head tells what may not have been heard of the one
// before, looks at what has happened meanwhile, and goes on.

// A reconvention is that time.
type reconvention struct {
	came   map[*host]returned
	silent *host               // that of the head before, which had the silence already, or is dead; nil: neither
	dead   *host               // that, if its agent is known to be dead: it is not waited for
	time   time.Duration       // that all have
	since  time.Time           // when it began
	waits  int                 // tenths of the time that have passed
	there  map[*host]time.Time // when one of those who had not come yet was seen to be there
	then   []func()            // to be done after it

	over context.Context // ends with it
	end  context.CancelFunc
}

// returned is a deputy that is there again, and waits to be listened to.
type returned struct {
	says   control.Rejoined
	accept chan<- bool
}

// errEmpty: the head before has not told anybody yet.
var errEmpty = errors.New("the ledger is empty")

// succeed makes the head of the job in d's process from the ledger.
func succeed(d *deputy, r *replica.Replica) (*Agent, error) {
	state := r.Ledger()
	known := state.Job != nil
	if !known {
		if state = d.office.drafted(); state == nil {
			return nil, errEmpty
		}
	}
	var p plan
	if err := json.Unmarshal(state.Job.Plan, &p); err != nil {
		return nil, fmt.Errorf("the plan of the job cannot be read: %w", err)
	}
	p.Job.Targets = "" // the file is on another host
	a := newAgent(p.Job)
	a.deputy, a.token, a.copies, a.apart = d, p.Token, true, p.Apart
	if p.Began.Before(a.since) { // unless the clock of this host is late by more than the job is old
		a.began = p.Began
	}
	var err error
	if a.authority, err = p.Authority.Open(); err != nil {
		return nil, err
	}
	if err := a.recall(state); err != nil {
		return nil, err
	}
	if p.Input {
		if err := a.openInput(); err != nil {
			return nil, err
		}
		for _, p := range a.processes[:len(state.Job.Processes)] {
			p.reads = slices.Contains(state.Job.Processes[p.index].Ranks, a.job.StdinRank)
		}
	}
	if err := a.prepareSpool(); err != nil {
		return nil, err
	}
	if err := a.recallPromises(state.Promises); err != nil {
		return nil, err
	}
	a.first = len(state.Job.Processes)
	a.publish()
	a.pen = &pen{Pen: ledger.NewPen(state), known: known}
	a.openDoor(r.Term())
	go a.lead(r)
	return a, nil
}

// lead is the life of the job under a head that was elected.
func (a *Agent) lead(r *replica.Replica) {
	defer close(a.ended)
	a.replicate(r)
	a.forsake()
	a.news.state.Seq = r.Term() << 32 // who has events of the head before is to see that these are newer
	a.emitJob()
	a.emitGone()
	a.warn("the agent of host %s leads the job from now on", a.hosts[a.own()].name)
	lost, dead := r.Lost()
	a.back = &reconvention{came: map[*host]returned{}, there: map[*host]time.Time{}, silent: a.hostOf(lost), time: max(a.job.Silence, 100*time.Millisecond), since: time.Now()}
	if dead {
		a.back.dead = a.back.silent
	}
	a.back.over, a.back.end = context.WithCancel(context.Background())
	defer a.back.end()
	if a.back.silent == nil { // it was given: nobody need be lost, but links may be full
		a.back.time = max(a.job.Silence, control.AlivePatient)
	}
	a.after(a.back.time/patient.Waits, a.await)
	a.live()
}

// forsake gives up hosts that were being added when the head before died. No other host has heard of them, and where
// they are reached that head alone knew.
func (a *Agent) forsake() {
	for i, x := range a.pen.State.Hosts {
		if x.Added == nil || len(x.Agent) > 0 || x.Lost {
			continue
		}
		h := a.hosts[i]
		h.lost = true
		a.record(ledger.Entry{HostLost: &ledger.HostLost{Host: i}})
		for _, j := range h.processes {
			p := a.processes[j]
			p.judged, p.exited, p.linkEnded, p.drained = true, true, true, true
		}
	}
}

// await waits on for those who are to come back, a tenth of their time at a time: who was itself
// stopped, or starved, for so long has not waited. Who has not come after some of it is asked whether
// it is there, and has more time if so; and without most of those who vote nothing could be decided.
func (a *Agent) await() {
	switch {
	case a.back == nil:
	case a.waitsOn():
		a.after(a.back.time/patient.Waits, a.await)
	default:
		a.reconvene()
	}
}

// waitsOn is the end of one such wait: it tells whether there is to be another.
func (a *Agent) waitsOn() bool {
	b := a.back
	b.waits++
	for _, h := range a.hosts {
		if door := a.voterOf(h.index); b.waits > patient.Waits/3 && b.silent != nil && a.awaits(h) && len(door.Addrs) > 0 {
			a.wg.Go(func() {
				if a.head.asks(b.over, door) {
					a.post(func() { b.there[h] = time.Now() })
				}
			})
		}
	}
	voters := 0
	for _, i := range a.voters {
		if _, came := b.came[a.hosts[i]]; came {
			voters++
		}
	}
	there := func(h *host) bool { return a.awaits(h) && time.Since(b.there[h]) < b.time }
	more := voters <= len(a.voters)/2 || slices.ContainsFunc(a.hosts, there)
	return b.waits < patient.Waits || more && time.Since(b.since) < control.AlivePatient
}

// awaits tells whether the agent of h is to come back.
func (a *Agent) awaits(h *host) bool {
	_, came := a.back.came[h]
	return !came && !h.lost && len(h.processes) > 0
}

// recall makes of the ledger what the head knows.
func (a *Agent) recall(state *ledger.State) error {
	var err error
	if a.hosts, _, err = layout(a.job); err != nil {
		return err
	}
	for i := len(a.hosts); i < len(state.Hosts); i++ {
		h := &host{index: i}
		if err := json.Unmarshal(state.Hosts[i].Added.Host, &h.Host); err != nil {
			return fmt.Errorf("what the ledger says of host %s cannot be read: %w", state.Hosts[i].Added.Name, err)
		}
		h.name = h.Name
		a.hosts = append(a.hosts, h)
	}
	for i, h := range a.hosts {
		h.here, h.processes, h.lost = false, nil, state.Hosts[i].Lost
		var j joinedHost
		if len(state.Hosts[i].Agent) > 0 {
			if err := json.Unmarshal(state.Hosts[i].Agent, &j); err != nil {
				return fmt.Errorf("what the ledger says of host %s cannot be read: %w", h.name, err)
			}
		}
		h.networks, h.cores, h.copies, h.router = j.Networks, j.Cores, j.Copies, j.Router
	}
	ranks := 0
	for i, x := range state.Processes {
		p := &process{index: i, ranks: slices.Clone(x.Ranks), prog: &a.job.Programs[x.Program], host: a.hosts[x.Host], slot: x.Slot,
			condemned: x.Condemned, finished: map[int]control.RankReport{}}
		p.started = true // if not, its deputy knows nothing of it
		// Of a host that was lost what has ranks is still to be recovered. What has none was no more before that,
		// or had not joined: nobody is to hear twice that the host was lost.
		if x.Gone || p.host.lost && len(x.Ranks) == 0 {
			p.judged, p.exited, p.linkEnded, p.drained = true, true, true, true
		}
		p.host.processes = append(p.host.processes, i)
		a.processes = append(a.processes, p)
		ranks += len(x.Ranks)
	}
	a.voters = state.Voters
	a.toldRun, a.toldStart = true, state.Started
	s := &a.survival
	s.epoch, s.copied, s.changed = state.Epoch(), state.Copied, time.Now()
	for r, v := range state.Covered {
		s.covered[r] = version{v.Epoch, v.Number}
	}
	for i, x := range state.Job.Processes {
		for _, r := range x.Ranks {
			s.homes[control.Life{Rank: r, Epoch: 1}] = a.processes[i].host
		}
	}
	for r := range ranks {
		s.past[r] = state.Lives(r)[1:]
	}
	for i, c := range state.Changes {
		epoch := uint32(i + 2)
		switch c.Kind {
		case ledger.Moved:
			s.homes[control.Life{Rank: c.Move.Rank, Epoch: epoch}] = a.processes[c.Move.To].host
		case ledger.Recovery:
			for _, x := range c.Recovered.Ranks {
				s.homes[control.Life{Rank: x.Rank, Epoch: epoch}] = a.processes[x.Process].host
				s.since[x.Rank] = since{epoch, version{x.From.Epoch, x.From.Number}}
			}
		}
		if c.Move != nil && !c.Ended {
			s.moving[c.Move.Rank] = &move{rank: c.Move.Rank, from: a.processes[c.Move.From], to: a.processes[c.Move.To], epoch: epoch,
				came: c.Kind == ledger.Moved, told: func(error) {}}
		}
	}
	for r := range s.covered {
		a.forgetLives(r)
	}
	for i, x := range state.Processes {
		if (x.Condemned || a.processes[i].judged) && !x.Gone && len(x.Ranks) == 0 {
			s.lost = append(s.lost, i)
		}
	}
	return nil
}

// rejoined is told that the deputy of r's host is there again. Accept is told when it is
// listened to, or that it is not.
func (a *Agent) rejoined(r *remote, says control.Rejoined, there string, accept chan<- bool) {
	h := r.host
	if h.lost || a.back == nil && h.place != r {
		a.detail("host %s: its agent comes back too late", h.name)
		a.agreed(func() { r.tell(control.ToAgent{Over: &control.Over{}}) })
		a.after(overTime, func() { accept <- false })
		return
	}
	h.place, h.clock = r, r.clock
	if before, twice := a.back.came[h]; twice {
		before.accept <- false
	}
	a.back.came[h] = returned{says, accept}
	a.emit(events.Event{Kind: events.HostJoined, Host: h.name, Agent: &events.Agent{PID: says.Joined.PID, Cores: says.Joined.Cores, Address: there}})
	waits := false
	for _, h := range a.hosts {
		if !a.awaits(h) {
			continue
		}
		if h != a.back.silent {
			return
		}
		waits = true
	}
	if waits && a.back.dead == nil {
		a.back.waits = max(a.back.waits, patient.Waits-patient.Waits/replica.VoterTurns)
		return
	}
	a.reconvene()
}

// reconvene goes on with the job, with those who are there.
func (a *Agent) reconvene() {
	if a.back == nil {
		return
	}
	came, then, dead := a.back.came, a.back.then, a.back.dead
	a.back.end()
	a.back = nil
	a.spool.expect()
	defer func() { // in the order in which they came: the last front is the one that is there
		for _, f := range then {
			f()
		}
	}()
	known := len(a.processes)
	for _, p := range a.processes {
		if !p.judged {
			a.running++
			a.draining++
		}
	}
	var missing []*host
	for _, h := range a.hosts {
		if x, here := came[h]; here {
			a.believe(h, x.says)
		} else if slices.ContainsFunc(h.processes, func(i int) bool { return !a.processes[i].judged }) {
			h.lost, h.place = false, nowhere(a, h)
			missing = append(missing, h)
			for _, i := range h.processes {
				a.processes[i].joined = a.toldStart
			}
		}
	}
	for _, h := range a.hosts {
		for g := range came {
			if h.lost || h.place != nil && slices.Contains(missing, h) {
				a.tellOfCopies(g, control.ToAgent{Fence: &control.Fence{Agent: h.index + 1}})
			}
		}
	}
	for _, x := range came {
		x.accept <- true
	}
	if !a.toldStart {
		a.fail(verdict{code: 1, text: "the agent that led the job died before ranks had started"})
	} else {
		a.emit(events.Event{Kind: events.AllReady}) // for who reads from here on
		if v := a.pen.State.Verdict; v != nil {
			a.conclude(*v)
		} else if sig := syscall.Signal(a.pen.State.Interrupted); sig != 0 {
			a.fail(verdict{code: exit.Signal + int(sig), text: fmt.Sprintf("interrupted by signal %d (%v), which the agent that led the job had passed on", sig, sig)})
		}
	}
	if !a.ending {
		a.resumePolicy()
		for h, x := range came {
			for _, i := range h.processes {
				if account := accountOf(x.says, a.processes[i]); account != nil {
					a.retell(a.processes[i], account)
				}
			}
		}
	}
	for _, h := range missing {
		if h == dead {
			a.hostLost(h, io.EOF)
		} else {
			a.hostLost(h, patient.Silent(a.job.Silence))
		}
	}
	for h, x := range came {
		a.catchUp(h, x.says, known)
	}
	if a.ending {
		return
	}
	a.limit()
	a.pairHosts()
	a.reelect()
	a.goOn()
	a.refill()
	a.letGo()
}

// nowhere is the place of a host whose agent is not there.
func nowhere(a *Agent, h *host) *remote {
	r := &remote{a: a, host: h, over: make(chan struct{}), out: make(chan control.ToAgent, 1)}
	r.once.Do(func() { close(r.over) })
	r.printer.init(r)
	return r
}

// resumePolicy has the policy begin again, with what the operator has ordered. What links
// promise it learns anew.
func (a *Agent) resumePolicy() {
	a.beginPolicy()
	if a.policy == nil {
		return
	}
	for _, o := range a.pen.State.Orders {
		switch o.Op {
		case "drain":
			a.tellPolicy(leader.Drain{Host: o.Host, Accepted: true})
		case "cordon":
			a.tellPolicy(leader.Cordon{Host: o.Host})
		}
	}
}

// believe notes what the deputy of h says of its host.
func (a *Agent) believe(h *host, says control.Rejoined) {
	h.cores, h.copies = min(max(says.Joined.Cores, 1), coresMost), says.Joined.Copies
	for _, x := range says.Processes {
		p := a.processIn(h, x.Process)
		if p == nil {
			continue
		}
		p.pid, p.hello, p.joined = x.PID, x.Hello, x.Start > 0
		if x.PID != 0 {
			a.emitOf(p, events.Event{Kind: events.ProcessStarted, Started: &events.Started{PID: x.PID}})
		}
		if x.Hello != nil {
			a.emitOf(p, events.Event{Kind: events.ProcessHello})
		}
		if x.Ready != nil {
			p.ready, p.addrs = true, x.Ready.Addrs
			a.ready++
			a.emitOf(p, events.Event{Kind: events.ProcessReady})
		}
		if x.Finished != nil {
			a.noteFinished(p, *x.Finished)
		}
		for _, s := range x.Saved {
			a.store(s.Rank, stored{version{s.Epoch, s.Number}, h, s.File})
			a.survival.sizes[s.Rank] = s.Bytes
		}
		if p.reads && !p.judged && x.Exited == nil && a.feeding == nil {
			a.typed0 = x.Input
			a.feed(p)
		}
		if p.judged && !x.Drained { // a process that is gone, but perhaps not its output
			p.drained = false
			a.draining++
		}
		if !p.judged && x.Drained {
			p.drained = true
			a.draining--
		}
	}
	for _, x := range says.Copies {
		a.store(x.Rank, stored{version{x.Epoch, x.Number}, h, x.File})
	}
	for _, l := range says.Heard {
		if home := a.survival.homes[l]; home != nil && home != h {
			a.witnessed(home, h)
		}
	}
}

// processIn is the process of that index, which is on h; nil if it is not.
func (a *Agent) processIn(h *host, index int) *process {
	if index < 0 || index >= len(a.processes) || a.processes[index].host != h {
		return nil
	}
	return a.processes[index]
}

// accountOf is what the deputy of p said of it; nil if it has not heard of it.
func accountOf(says control.Rejoined, p *process) *control.Account {
	for i := range says.Processes {
		if says.Processes[i].Process == p.index {
			return &says.Processes[i]
		}
	}
	return nil
}

// catchUp looks at what has happened on h, to the processes before known, while there was
// no head.
func (a *Agent) catchUp(h *host, says control.Rejoined, known int) {
	if h.lost {
		return
	}
	for _, i := range slices.Clone(h.processes) {
		if i >= known {
			continue
		}
		p := a.processes[i]
		x := accountOf(says, p)
		switch {
		case p.judged:
			if x != nil && x.Exited == nil {
				p.kill(syscall.SIGKILL)
			}
			continue
		case x == nil: // its start was not heard of
			p.started = false
			a.draining--
			if a.ending {
				p.judged = true
				a.running--
				continue
			}
			if err := h.place.spawn(p); err != nil {
				a.forked(p, 0, err)
			}
			continue
		}
		if x.Error != "" {
			p.started = false
			a.draining--
			a.forked(p, 0, errors.New(x.Error))
			continue
		}
		if p.condemned {
			p.kill(syscall.SIGKILL)
		}
		a.stopped(p, printable(x.Stopped))
		for _, m := range x.Arrived {
			if mv := a.survival.moving[m.Rank]; mv != nil && mv.epoch == m.Epoch {
				a.arrived(p, m)
			}
		}
		for _, m := range x.Stayed {
			a.stayed(p, m)
		}
		if x.Failed != nil {
			a.rankFailed(p, *x.Failed)
		}
		switch {
		case x.Exited != nil:
			p.linkEnded = p.linkEnded || x.Parted
			a.exited(p, syscall.WaitStatus(x.Exited.Status))
		case x.Parted:
			a.linkEnd(p)
		}
		if x.Ready != nil && x.Start == 0 && !x.Parted && !a.ending {
			a.joinLate(p)
		}
	}
}

// retell tells p the maps that it has not heard of, and what else it may not have.
func (a *Agent) retell(p *process, x *control.Account) {
	if x.Start == 0 || x.Exited != nil {
		return
	}
	for _, q := range a.processes {
		if q != p && q.joined && len(q.addrs) > 0 && q.index >= a.first {
			p.send(control.Message{Meet: &control.Meet{Index: q.index, Process: a.about(q)}}) // twice is harmless
		}
	}
	for _, d := range a.pen.State.Due(p.index, ledger.Heard{Start: x.Start, Maps: x.Maps, Leave: x.Leave}) {
		switch {
		case d.Leave:
			p.send(control.Message{Depart: &control.Depart{Rank: d.Move.Rank, To: d.Move.To, Epoch: d.Epoch, Patience: movePatience}})
		case d.Kind == ledger.Voided:
			p.send(control.Message{Place: &control.Place{Epoch: d.Epoch}})
		case d.Kind == ledger.Moved:
			p.send(control.Message{Place: &control.Place{Epoch: d.Epoch, Ranks: []control.Placement{{Rank: d.Move.Rank, Process: d.Move.To}}}})
		case d.Kind == ledger.Recovery:
			p.send(a.recovery(p, d.Recovered))
		}
	}
}

// recovery is what p is told of ranks that go on elsewhere, or in it.
func (a *Agent) recovery(p *process, c *ledger.Recovered) control.Message {
	place := control.Place{Epoch: c.Epoch, Lost: c.Lost}
	for _, x := range c.Ranks {
		place.Ranks = append(place.Ranks, control.Placement{Rank: x.Rank, Process: x.Process})
	}
	for _, x := range c.Ranks {
		if x.Process == p.index {
			lives := slices.DeleteFunc(a.livesOf(x.Rank, x.From.Epoch), func(n uint32) bool { return n >= c.Epoch })
			covered := x.File != "" && !a.survival.covered[x.Rank].before(version{x.From.Epoch, x.From.Number})
			return control.Message{Adopt: &control.Adopt{Rank: x.Rank, Epoch: c.Epoch, Snapshot: x.File, Number: x.From.Number, Covered: covered, Lives: append([]uint32{c.Epoch}, lives...), Place: place}}
		}
	}
	return control.Message{Place: &place}
}

// conclude ends the job as the head before has decided.
func (a *Agent) conclude(v ledger.Verdict) {
	if v.Code == 0 && v.Text == "" { // all ranks have finished
		for _, p := range a.processes {
			for _, r := range p.ranks {
				if !p.hasFinished(r) {
					p.finished[r] = control.RankReport{Rank: r}
				}
			}
		}
		return
	}
	a.ending, a.code = true, v.Code
	a.emit(events.Event{Kind: events.JobVerdict, Text: v.Text, Verdict: &events.Verdict{Code: v.Code}})
	if v.Text != "" { // the head before may not have come to say it
		a.say("the job ends, as the agent that led it has decided: " + v.Text)
	}
	for _, p := range a.everyone() {
		if !p.send(control.Message{Stop: &control.Stop{Reason: v.Text}}) {
			p.kill(syscall.SIGTERM)
		}
	}
	a.after(grace, a.killAll)
}
