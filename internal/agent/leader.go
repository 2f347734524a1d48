package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/whole"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
)

// In a job of several hosts whose ranks can move, package leader decides where they run.
// It is told here what happens, and what it decides is done by what is in survive.go. Who
// owns what: ranks whose process died are placed by recover.go, and the policy is told
// where; ranks that live are moved by the policy, or by the operator, of which it is told.

// A policy is the leader's, with what it is fed with. Owned by loop.
type policy struct {
	machine *leader.Machine
	watch   *sensors.Watch // nil: no contracts
	queue   []leader.Input // while the machine answers another
	telling bool
	ticks   int

	links      map[sensors.Link]*gathered
	copies     map[sensors.Link]*gathered // of snapshots, over these links
	flows      map[[2]int]*flow           // by process, from and to
	passages   map[[2]int]*passage
	traffics   map[string]*traffic
	promised   map[promiseKey]float64
	promisedAt time.Time
	machines   map[string]string // of hosts
	hosts      map[string]bool   // that it was told of

	left []string // hosts that ranks are kept off

	detours []*detour // under way

	gmond *gmond // nil: nothing is reported to one

	slotsAsked int // of the host that was asked for last

	lastRef int
	refs    map[string]order         // of the operator's
	said    map[uint64]leader.Record // of decisions, what was said of each
}

// An order is one of the operator's, and who waits for what the policy says to it.
type order struct {
	op, host string // as the job calls it
	reply    chan<- Answer
}

// answer answers what the policy says.
func (o order) answer(decision string) { o.reply <- Answer{Decision: decision, Host: o.host} }

type promiseKey struct {
	link sensors.Link
	size sensors.SizeClass
}

func (pol *policy) trafficOf(host string) *traffic {
	t := pol.traffics[host]
	if t == nil {
		t = &traffic{}
		pol.traffics[host] = t
	}
	return t
}

// saidMost is of how many decisions it is known what was said.
const saidMost = 256

const policyTick = 100 * time.Millisecond

// leads tells whether there is something to decide: ranks that can move, and hosts to
// which.
func (a *Agent) leads() bool {
	elsewhere := slices.ContainsFunc(a.hosts, func(h *host) bool { return !h.here && len(h.processes) > 0 })
	return elsewhere && a.job.Options.Survive != "none" && a.job.Options.Survive != "report"
}

// contractMode is what is done about contracts.
func (a *Agent) contractMode() (sensors.Mode, error) {
	if !a.leads() {
		return sensors.Off, nil
	}
	if a.job.Contracts == "" {
		return sensors.Enforce, nil
	}
	return sensors.ParseMode(a.job.Contracts)
}

// prepareContracts readies the watch over links, before anything runs.
func (a *Agent) prepareContracts() error {
	mode, err := a.contractMode()
	if err == nil {
		err = a.prepareGmond()
	}
	o := sensors.WatchOptions{Mode: mode}
	if err == nil {
		o.Thresholds, err = a.thresholds(mode)
	}
	if err != nil || mode == sensors.Off {
		return err
	}
	if a.job.ContractsFile != "" {
		if _, err := os.Stat(filepath.Dir(a.job.ContractsFile)); err != nil { // or what is learned would be lost at the end
			return fmt.Errorf("--contracts-file: %w", err)
		}
		if o.Contract, err = loadContracts(a.job.ContractsFile); err != nil {
			return fmt.Errorf("--contracts-file %w", err)
		}
	}
	if a.contracts, err = sensors.NewWatch(o); err != nil {
		return err
	}
	a.job.Options.Paths = readingEvery
	return nil
}

// loadContracts is what is stored in a file; nothing if there is none.
func loadContracts(file string) (c sensors.Contract, err error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe that nobody writes to is empty
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, err
	}
	defer f.Close()
	if c, err = sensors.Load(f); err != nil {
		return c, fmt.Errorf("%s: %w", file, brief.Error(err))
	}
	return c, nil
}

// storeContracts writes what was learned. The job is over. What other jobs have stored meanwhile stays, of links
// of which this one has learned nothing.
func (a *Agent) storeContracts() {
	if a.contracts == nil || a.job.ContractsFile == "" {
		return
	}
	defer lockBeside(a.job.ContractsFile)()
	var stored sensors.Contract
	if st, err := os.Stat(a.job.ContractsFile); err == nil && st.Mode().IsRegular() {
		if stored, err = loadContracts(a.job.ContractsFile); err != nil {
			a.warn("--contracts-file is written anew: %v", err)
		}
	}
	err := whole.Write(a.job.ContractsFile, 0o600, func(f *os.File) error { return a.contracts.Beside(stored).Store(f) })
	if err != nil {
		a.warn("--contracts-file %s: %v", a.job.ContractsFile, err)
	}
}

// lockBeside keeps other jobs from writing files of the same directory until unlock: what another stores
// between our reading and writing would be lost. Where there are no locks, or one who has it hangs, it goes on without.
func lockBeside(file string) (unlock func()) {
	if leads, err := filepath.EvalSymlinks(file); err == nil {
		file = leads
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return func() {}
	}
	const patience = 2 * time.Second
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != syscall.EWOULDBLOCK && err != syscall.EINTR {
			break
		}
	}
	return func() { dir.Close() }
}

func (p *process) place() topology.Place { return topology.Place{Host: p.host.name, Slot: p.slot} }

// processAt is the process of a place; nil if there is none.
func (a *Agent) processAt(at topology.Place) *process {
	for _, p := range a.processes {
		if p.place() == at {
			return p
		}
	}
	return nil
}

// beginPolicy starts the policy: all processes are ready.
func (a *Agent) beginPolicy() {
	if !a.leads() {
		return
	}
	var places []topology.Place
	for _, p := range a.processes {
		for _, r := range p.ranks {
			for len(places) <= r {
				places = append(places, topology.Place{})
			}
			places[r] = p.place()
		}
	}
	first := topology.New(places)
	level := leader.Level(a.job.Options.Survive)
	if level == "" {
		level = leader.Moves
	}
	a.policy = &policy{
		machine: leader.New(leader.Config{Level: level}, first), watch: a.contracts,
		links: map[sensors.Link]*gathered{}, copies: map[sensors.Link]*gathered{}, flows: map[[2]int]*flow{}, passages: map[[2]int]*passage{}, traffics: map[string]*traffic{}, promised: map[promiseKey]float64{}, machines: map[string]string{},
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{},
	}
	a.tellPolicy(leader.LeadingFrom{Host: a.hereName()})
	a.tellHosts()
	for _, p := range a.processes {
		if p.joined && !p.judged {
			a.tellPolicy(leader.ProcessReady{Place: p.place()})
		}
	}
	a.beginGmond()
	if a.job.Options.Paths > 0 {
		for _, h := range a.hosts {
			if h.here && len(h.processes) > 0 {
				readHost(a.crew, a.buddies, func(r control.HostReading) { a.post(func() { a.hostRead(h, r) }) })
			}
		}
	}
	a.every(policyTick, a.tickPolicy)
}

// tickPolicy tells the policy that time has passed, and what was read meanwhile.
func (a *Agent) tickPolicy() {
	if a.ending {
		return
	}
	a.policy.ticks++
	if a.policy.ticks%int(readingEvery/policyTick) == 0 {
		a.watchLinks(time.Now())
	}
	if a.policy.ticks%int(time.Second/policyTick) == 0 {
		a.sendersKnown()
		a.forgetPassages(time.Now())
	}
	a.watchDetours(time.Now())
	if a.policy.ticks%int(promisesEvery/policyTick) == 0 {
		a.recordPromises()
	}
	if a.policy.ticks%int(gmondEvery/policyTick) == int(gmondFirst/policyTick) {
		a.tellGmond()
	}
	a.tellPolicy(leader.Tick{})
	a.lookForLeft()
}

// tellHosts tells the policy of hosts that have processes.
func (a *Agent) tellHosts() {
	for _, h := range a.hosts {
		has := slices.ContainsFunc(h.processes, func(i int) bool {
			p := a.processes[i]
			return p.joined && !p.exited && !p.judged
		})
		if has && !h.lost && !a.policy.hosts[h.name] {
			a.policy.hosts[h.name] = true
			in := leader.HostJoined{Host: h.name, Trusted: !h.Distrusted}
			if a.severalNetworks() { // else links are not told apart by them
				for _, c := range a.networkClasses(h) {
					in.Networks = append(in.Networks, c.String())
				}
			}
			a.tellPolicy(in)
		}
	}
}

// tellPolicy gives the policy one input, and does what it answers.
func (a *Agent) tellPolicy(in leader.Input) {
	pol := a.policy
	if pol == nil || a.ending {
		return
	}
	if pol.queue = append(pol.queue, in); pol.telling {
		return
	}
	pol.telling = true
	for len(pol.queue) > 0 {
		next := pol.queue[0]
		pol.queue = pol.queue[1:]
		a.perform(pol.machine.Step(time.Now(), next))
	}
	pol.telling = false
}

// placed tells the policy where a rank is that it has not moved.
func (a *Agent) placed(rank int, at *process) {
	a.tellPolicy(leader.Placed{Ranks: []leader.Seat{{Rank: topology.Rank(rank), At: at.place()}}})
}

// memberCame tells the policy of a process that takes part.
func (a *Agent) memberCame(p *process) {
	if a.policy != nil {
		a.tellPolicy(leader.ProcessReady{Place: p.place()})
		a.tellHosts()
	}
}

// settledIn tells the policy where ranks are that were stranded, and that their processes
// are lost.
func (a *Agent) settledIn(gone []stranded, ranks []control.Placement) {
	var settled leader.Placed
	var elsewhere []func()
	for _, r := range ranks {
		at := a.processes[r.Process]
		settled.Ranks = append(settled.Ranks, leader.Seat{Rank: topology.Rank(r.Rank), At: at.place()})
		w, planned := a.survival.wanted[r.Rank]
		delete(a.survival.wanted, r.Rank)
		switch {
		case planned && w.to == at:
			w.ended(nil)
		case planned:
			elsewhere = append(elsewhere, func() {
				w.ended(fmt.Errorf("it could not go there, and went to process %d%s", at.index, a.onHost(at)))
			})
		}
	}
	a.tellPolicy(settled)
	for _, ended := range elsewhere {
		ended()
	}
	if a.policy == nil {
		return
	}
	for _, x := range gone {
		why := leader.Killed
		switch {
		case x.p.host.lost:
			why = leader.Cut
		case x.p.stop.hung != "":
			why = leader.Hung
		}
		a.tellPolicy(leader.ProcessLost{Place: x.p.place(), Why: why})
	}
	a.tellHosts()
	a.hostsGone()
}

// hostsGone tells the policy of hosts that were lost, when their ranks are elsewhere.
func (a *Agent) hostsGone() {
	if a.policy == nil {
		return
	}
	for _, h := range a.hosts {
		if a.policy.hosts[h.name] && h == a.hostNamed(h.name) && h.lost {
			delete(a.policy.hosts, h.name)
			a.tellPolicy(leader.HostLost{Host: h.name})
		}
	}
}

// tellState tells the policy what would have to be carried of a rank, and which hosts have
// a snapshot of it: one that was taken then, or, without a time, the last one.
func (a *Agent) tellState(rank int, taken time.Time) {
	if a.policy == nil {
		return
	}
	var on []string
	for _, st := range a.storedOf(rank) {
		if !slices.Contains(on, st.host.name) {
			on = append(on, st.host.name)
		}
	}
	a.tellPolicy(leader.StateSize{Rank: topology.Rank(rank), Bytes: float64(a.survival.sizes[rank]), Copies: on, Taken: taken})
}

// perform does what the policy has decided.
func (a *Agent) perform(actions []leader.Action) {
	for _, act := range actions {
		switch act := act.(type) {
		case leader.Tell:
			a.decided(act.Record)
		case leader.Do:
			executor{a}.Execute(act.Plan, func(o adapt.Outcome) {
				in := leader.PlanEnded{ID: act.Plan.ID, Outcome: o}
				if o.End == adapt.Finished {
					a.tellPolicy(in)
					return
				}
				a.after(0, func() { a.tellPolicy(in) }) // were it planned again and again, nobody else would ever be heard
			})
		case leader.GiveUp:
			a.fail(verdict{code: 1, text: act.Reason})
		case leader.HandOver:
			a.handOver(act.To, act.Why)
		}
	}
}

// An executor is the Agent as the [adapt.Executor] of the policy's plans. Each is one thing that
// survive.go, switch.go or add.go does, within a time of its own, or takes back.
type executor struct{ a *Agent }

var _ adapt.Executor = executor{}

func (x executor) Execute(plan adapt.Plan, outcome func(adapt.Outcome)) {
	a, began := x.a, time.Now()
	ended := func(err error, stood time.Duration) {
		o := adapt.Outcome{End: adapt.Finished, Took: time.Since(began), Stood: stood}
		if err != nil {
			o.End, o.Why = adapt.Undone, err.Error()
		}
		outcome(o)
	}
	switch act := plan.Act; act.Verb {
	case leader.VerbSwitch:
		a.takeDetour(act, func(err error) { ended(err, 0) })
	case leader.VerbAdd:
		a.addHost(act.To.Host, func(err error) { ended(err, 0) })
	case leader.VerbMove, leader.VerbAgain:
		rank, from, to := int(act.Rank), a.processAt(act.From), a.processAt(act.To)
		asPlanned := to
		if from != nil && to != nil && to.prog != from.prog { // of which the policy knows nothing
			to = a.freeOn(to.host, from.prog)
		}
		if from == nil || to == nil || !a.free(to) || !slices.Contains(from.ranks, rank) {
			ended(fmt.Errorf("%v has no process that is free for rank %d", act.To, rank), 0)
			return
		}
		if act.Verb == leader.VerbAgain {
			a.rescue(from, rank, to, func(err error) { ended(err, 0) })
			return
		}
		if err := a.movable(rank); err != nil {
			ended(err, 0)
			return
		}
		var mv *move
		mv = a.moveTo(rank, from, to, func(err error) { ended(err, mv.stood) })
		mv.planned = to == asPlanned
	default:
		panic(fmt.Sprintf("plan %d (%s) is to %s, and nobody can", plan.ID, plan.What, act.Verb))
	}
}

// freeOn is a process of a program on h that is free; nil if there is none.
func (a *Agent) freeOn(h *host, of *Program) *process {
	for _, p := range a.processes {
		if p.host == h && p.prog == of && a.free(p) {
			return p
		}
	}
	return nil
}

// rescue has a rank go on elsewhere from its snapshot, though its process may still
// live: that is refused from now on, with all its ranks.
func (a *Agent) rescue(p *process, rank int, to *process, ended func(error)) {
	a.survival.wanted[rank] = wish{to, ended}
	if p.judged {
		return
	}
	p.judged = true
	a.running--
	p.stop.hung = "is out of the job by the policy's decision"
	p.kill(syscall.SIGKILL)
	a.after(0, func() { // when the policy has said where its other ranks go
		if !a.ending && !a.mourning {
			a.strand(verdict{code: 1, by: p, text: fmt.Sprintf("the policy decided it (%s)", p.place())}, p)
		}
	})
}

// orderAsked gives the policy an order of the operator's, and answers with what it says.
func (a *Agent) orderAsked(q Question, reply chan<- Answer) {
	switch {
	case a.policy == nil && a.leads():
		reply <- Answer{Error: "the job has not started yet"}
		return
	case a.policy == nil:
		reply <- Answer{Error: fmt.Sprintf("%s is about hosts of a job that has several, and whose ranks can move (--survive moves or crashes)", q.Op)}
		return
	case a.ending:
		reply <- Answer{Error: "the job is ending"}
		return
	}
	q.Host = a.called(q.Host)
	a.policy.lastRef++
	ref := strconv.Itoa(a.policy.lastRef)
	a.policy.refs[ref] = order{q.Op, q.Host, reply}
	refused := q.Op == "drain" && a.policy.machine.RefusesDrain(q.Host) != "" // the next head would carry it out
	if q.Op != "add" && a.hostNamed(q.Host) != nil && !refused {
		a.record(ledger.Entry{Order: &ledger.Order{Op: q.Op, Host: q.Host}})
	}
	switch q.Op {
	case "drain":
		a.tellPolicy(leader.Drain{Host: q.Host, Ref: ref})
	case "cordon":
		a.tellPolicy(leader.Cordon{Host: q.Host, Ref: ref})
	case "uncordon":
		a.tellPolicy(leader.Uncordon{Host: q.Host, Ref: ref})
	case "add":
		a.policy.slotsAsked = q.Slots
		a.tellPolicy(leader.AddHost{Host: q.Host, Ref: ref})
	}
}
