package agent

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/replica"
)

// A job that outlives its head has a deputy on each host, the first included, and the head
// in the process of one of them. The head has no processes of its own: its own host is to
// it as the others are. See docs/decisions/0020-heads.md.

// A first is what the agent that is to be the first head is given: the job.
type first struct {
	Job   Job    // without what is of the process that made it
	Input bool   // there is a standard input
	Apart bool   // its output and its errors go to different places
	Chaos string `json:",omitempty"`
}

// A Begun is what the first agent of a job that outlives its head tells who started it, as
// a line of JSON.
type Begun struct {
	Dir   string `json:",omitempty"` // of the job, here
	Code  int    `json:",omitempty"` // exit code that stands for Error
	Error string `json:",omitempty"`
}

// A plan is what every head has to know of the job, and that does not change.
type plan struct {
	Job       Job
	Began     time.Time // the job, by the clock of its first host
	Input     bool      // there is a standard input
	Apart     bool      // its output and its errors go to different places
	Authority identity.Secret
	Token     []byte
}

// portable is j for another process.
func (j Job) portable() Job {
	j.Stdin, j.Stdout, j.Stderr, j.Breaker, j.Chaos = nil, nil, nil, nil, nil
	return j
}

// FirstOrders is what "mpivrun agent" reads, as a line, to be the first agent of j, which
// outlives its head.
func FirstOrders(j Job) ([]byte, error) {
	j = j.withDefaults() // as they are here
	text, err := json.Marshal(first{Job: j.portable(), Input: j.Stdin != nil, Apart: apart(j.Stdout, j.Stderr), Chaos: j.Chaos.String()})
	if err != nil {
		return nil, err
	}
	line, err := json.Marshal([]control.Boot{{Version: control.AgentVersion, First: text}})
	return append(line, '\n'), err
}

// begin makes this agent the first of the job in its orders, and tells how that went.
func (d *deputy) begin() error {
	err := d.beginJob()
	b := Begun{}
	if err == nil {
		b.Dir = d.dir.Path
	} else {
		b.Error, b.Code = err.Error(), 1
		if ee, ok := errors.AsType[*exit.Error](err); ok {
			b.Code = ee.Code
		}
	}
	text, _ := json.Marshal(b)
	d.orders.Out.Write(append(text, '\n'))
	if err != nil {
		return errBegun
	}
	return nil
}

// errBegun: it could not begin, and that has been told.
var errBegun = errors.New("the job could not begin")

func (d *deputy) beginJob() (err error) {
	var f first
	if err := json.Unmarshal(d.boot.First, &f); err != nil {
		return fmt.Errorf("the job cannot be read: %w", err)
	}
	j := f.Job.withDefaults()
	if f.Chaos != "" {
		if j.Chaos, err = chaos.Parse(f.Chaos); err != nil {
			return err
		}
		if d.orders.Breaker != nil {
			if j.Breaker, err = d.orders.Breaker(j.Chaos); err != nil {
				return err
			}
		}
	}
	here := slices.IndexFunc(j.Hosts, func(h Host) bool { return h.Here })
	if here < 0 {
		return errors.New("this host is none of the job's")
	}
	d.boot.Job, d.boot.Host, d.boot.Agent, d.boot.Leads = j.Name, j.Hosts[here].Name, here+1, here+1
	d.boot.Patience, d.boot.Silence, d.boot.Grace, d.boot.Crashes, d.boot.Outlives, d.boot.Outlive = j.Launch.patience(), j.Silence, j.Grace, true, true, true
	if err := d.house(); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.asked.Close()
			d.crew.Close()
			d.dir.Remove()
			if d.copies != nil {
				d.copies.Close()
			}
		}
	}()
	if d.orders.Log {
		if err := toLog(d.dir.Path); err != nil {
			return err
		}
	}
	j.Name = d.dir.Name()
	d.boot.Job = j.Name
	authority, err := identity.NewAuthority(j.Name)
	if err != nil {
		return err
	}
	if d.boot.Credentials, err = authority.Issue(identity.Agent, d.boot.Agent); err != nil {
		return err
	}
	if d.identity, err = d.boot.Credentials.Open(); err != nil {
		return err
	}
	if d.copies, err = buddy.Listen(d.identity, d.say); err != nil {
		return err
	}
	if err := d.copies.Home(d.dir.Path); err != nil {
		return err
	}
	d.boot.Head = []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(d.copies.Port()))}
	d.office.init(d)
	a := newAgent(j)
	a.deputy, a.authority, a.apart = d, authority, f.Apart
	if f.Input {
		if err := a.openInput(); err != nil {
			return err
		}
	}
	if err := a.start(); err != nil {
		return err
	}
	d.office.sit(a)
	return nil
}

// apart tells whether lines for the one do not come between those for the other.
func apart(out, errs io.Writer) bool {
	f, ok1 := out.(*os.File)
	g, ok2 := errs.(*os.File)
	if ok1 && ok2 {
		return !sameFile(f, g)
	}
	return out != errs
}

// openInput makes the job's standard input, which a front brings.
func (a *Agent) openInput() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	a.job.Stdin = r
	a.typing = newFeeder(w, func(n int, broken bool) { a.post(func() { a.tookInput(n) }) })
	return nil
}

// tookInput tells who brings the input that n bytes more can come.
func (a *Agent) tookInput(n int) {
	if f := a.typist; f != nil {
		f.tell(control.ToFront{Taken: &control.Taken{Bytes: n}})
	}
}

// own is the index of the host that this head is on.
func (a *Agent) own() int { return a.deputy.boot.Agent - 1 }

// prepareOutliving is prepare for a job that outlives its head.
func (a *Agent) prepareOutliving() error {
	for _, h := range a.hosts {
		h.here = false // it has a deputy, as the others have
	}
	a.copies = true
	if err := a.prepareSpool(); err != nil {
		return err
	}
	if err := a.prepareChaos(); err != nil {
		return err
	}
	if err := a.noTargets(); err != nil {
		return err
	}
	if err := a.prepareFiles(); err != nil {
		return err
	}
	text, err := json.Marshal(plan{Job: a.job.portable(), Began: a.began.UTC(), Input: a.job.Stdin != nil, Apart: a.apart, Authority: a.authority.Secret(), Token: a.token})
	if err != nil {
		return err
	}
	a.pen = &pen{Pen: ledger.NewPen(new(ledger.State))}
	j := ledger.Job{Name: a.job.Name, Plan: text}
	for _, h := range a.hosts {
		j.Hosts = append(j.Hosts, h.name)
	}
	for _, p := range a.processes {
		j.Processes = append(j.Processes, a.added(p))
	}
	a.record(ledger.Entry{Job: &j})
	a.openDoor(0)
	return nil
}

// prepareSpool is prepareOutput where the output is for who shows the job.
func (a *Agent) prepareSpool() error {
	a.spool = newSpool()
	a.job.Stdout, a.job.Stderr = spooled{a.spool, false}, spooled{a.spool, true}
	return a.prepareOutput()
}

// added is p for the ledger.
func (a *Agent) added(p *process) ledger.Added {
	x := ledger.Added{Host: p.host.index, Slot: p.slot, Ranks: p.ranks}
	for i := range a.job.Programs {
		if p.prog == &a.job.Programs[i] {
			x.Program = i
		}
	}
	return x
}

// openDoor has the deputies of the job, and who shows it to users, come to this head.
func (a *Agent) openDoor(term uint64) {
	a.head = &head{a: a, launches: &a.deputy.launches, identity: a.deputy.identity, conns: map[net.Conn]bool{}, remotes: map[*remote]bool{}, ears: map[*patient.Conn]int{}, term: term, port: a.deputy.copies.Port()}
	a.deputy.copies.Handle(control.ProtocolHead, a.head.enter)
	a.deputy.copies.Handle(control.ProtocolFront, a.head.enterFront)
}

// enter serves an agent.
func (h *head) enter(c *tls.Conn, from identity.Name) {
	if from.Index < 1 || from.Index > len(*h.a.roster.Load()) || !h.take(c) {
		return
	}
	defer h.wg.Done()
	defer h.forget(c)
	h.serve(c, from.Index)
}

// take keeps c for close, which waits for wg; false after close.
func (h *head) take(c net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.conns[c] = true
	h.wg.Add(1)
	return true
}

// votersMost is how many agents decide together. More would not make a job safer that
// cannot lose so many hosts at once anyway.
const votersMost = 5

// electorate is who shall vote, by index of their hosts: an odd number, so that each
// counts, of those that are there and trusted; this head first, and then who votes already.
func (a *Agent) electorate() []int {
	able := func(i int) bool { return a.hosts[i].able() && !a.hosts[i].Distrusted && a.hosts[i].copies > 0 }
	chosen := []int{a.own()}
	add := func(i int) {
		if able(i) && !slices.Contains(chosen, i) {
			chosen = append(chosen, i)
		}
	}
	for _, i := range a.voters {
		add(i)
	}
	for i := range a.hosts {
		add(i)
	}
	n := min(len(chosen), votersMost)
	return chosen[:n-(n+1)%2]
}

// voterOf is how the agent of a host is reached by voters.
func (a *Agent) voterOf(i int) control.Voter {
	return control.Voter{Agent: i + 1, Host: a.hosts[i].name, Addrs: a.takes(a.hosts[i]).Addrs}
}

// allVoters is how all that vote are reached.
func (a *Agent) allVoters() (all []control.Voter) {
	for _, i := range a.voters {
		all = append(all, a.voterOf(i))
	}
	return all
}

// tellVoters tells all agents who votes.
func (a *Agent) tellVoters(also ...int) {
	v := control.Voters{Voters: a.allVoters()}
	for i, h := range a.hosts {
		if h.able() {
			own := v
			own.Raft = slices.Contains(a.voters, i) || slices.Contains(also, i)
			h.place.(*remote).order(control.ToAgent{Voters: &own})
		}
	}
	a.tellFronts()
}

// foundVoters begins the replication of what this head decides: all agents have joined.
func (a *Agent) foundVoters() {
	a.voters = a.electorate()
	a.record(ledger.Entry{Voters: &ledger.Voters{Hosts: a.voters}})
	if len(a.voters) < 3 {
		a.detail("the job ends with the agent of host %s: to outlive any one of them it takes the trusted agents of three hosts", a.hosts[a.own()].name)
		return
	}
	a.tellVoters()
	r, err := a.deputy.office.found(a.allVoters())
	if err != nil {
		a.warn("the job ends with the agent of host %s: %v", a.hosts[a.own()].name, err)
		return
	}
	a.found(r)
}

// found waits for the first election, and then has all agreed on.
func (a *Agent) found(r *replica.Replica) {
	a.founding, a.parties = r, 1
	a.wg.Go(func() {
		for since := time.Now(); !r.Leads(); {
			select {
			case <-a.done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if time.Since(since) > leadTime {
				since = time.Now()
				a.post(func() {
					a.warn("the job ends with the agent of host %s, as long as others do not agree that it leads", a.hosts[a.own()].name)
				})
			}
		}
		a.post(func() {
			if a.deposed != nil {
				return
			}
			a.founding = nil
			a.replicate(r)
			a.reelect() // hosts may have been lost, or added, meanwhile
			a.agreed(func() { a.detail("what the head decides is known to %d agents from now on", len(a.voters)) })
		})
	})
}

// takesPart is told that one more agent does in elections. When most of those that vote do, the first need not
// wait for the silence: until then nobody could take the head's place.
func (a *Agent) takesPart() {
	if a.founding == nil {
		return
	}
	if a.parties++; a.parties == len(a.voters)/2+1 {
		a.wg.Go(a.founding.Begin)
	}
}

// A change is of who votes.
type change struct {
	add    control.Voter
	remove int // an agent; 0: none
}

// reelect replaces voters whose hosts are lost, as far as there are others: two voters are
// worse than one, since the loss of either ends the job.
func (a *Agent) reelect() {
	if a.pen == nil || a.pen.queue == nil {
		return
	}
	next := a.electorate()
	if slices.Equal(next, a.voters) {
		return
	}
	var changes []change
	for _, i := range a.voters {
		if !slices.Contains(next, i) && a.hosts[i].lost {
			changes = append(changes, change{remove: i + 1})
		}
	}
	for _, i := range next {
		if !slices.Contains(a.voters, i) {
			changes = append(changes, change{add: a.voterOf(i)})
		}
	}
	for _, i := range a.voters {
		if !slices.Contains(next, i) && !a.hosts[i].lost {
			changes = append(changes, change{remove: i + 1})
		}
	}
	left := slices.DeleteFunc(slices.Clone(a.voters), func(i int) bool { return a.hosts[i].lost })
	a.voters = next
	a.record(ledger.Entry{Voters: &ledger.Voters{Hosts: next}})
	a.tellVoters(left...) // who votes no more does so until that is agreed on
	queue := a.pen.changes
	a.agreed(func() { queue.add(changes...) }) // a voter counts as soon as it is added: it has been told before
}

// revote makes changes to who votes, one after another, until the head ends. None may be left
// out, or others would vote than the ledger says.
func (a *Agent) revote(r *replica.Replica, queue *backlog[change]) {
	for {
		all := queue.take(a.done)
		if all == nil {
			return
		}
		for _, c := range all {
			err := a.leading(func() error {
				if c.remove != 0 {
					return r.Remove(c.remove)
				}
				return r.Add(c.add)
			})
			if err != nil {
				a.post(func() { a.detail("change who decides: %v", err) })
			}
		}
		a.post(func() {
			a.tellVoters()
			if len(a.voters) < 3 {
				a.detail("the job ends with the agent of host %s from now on: there are too few others", a.hosts[a.own()].name)
			}
		})
	}
}

// overTime is how long agents may take to hear that the job is over.
const overTime = time.Second

// sayOver has the agents end.
func (a *Agent) sayOver() {
	var all []*remote
	for _, h := range a.hosts {
		if r, ok := h.place.(*remote); ok && !h.lost {
			r.tell(control.ToAgent{Over: &control.Over{}})
			all = append(all, r)
		}
	}
	late := time.After(overTime)
	for _, r := range all {
		select {
		case <-r.over: // it has left
		case <-late:
			return
		}
	}
}

// abdicate ends a head that was deposed. The job goes on without it.
func (a *Agent) abdicate() {
	a.deputy.office.keep(a.pen)
	for t := range a.timers {
		t.Stop()
	}
	a.endChaos()
	a.closeTrace()
	for s := range a.news.subscribers {
		a.unsubscribe(s, false)
	}
	a.writers.Wait()
	if a.feeding != nil {
		a.feeding.give(0, true)
	}
	a.spool.close() // before those who show it go: nobody may be told that what is left here was taken
	a.head.close()
	if a.typing != nil {
		a.typing.close()
	}
	a.wg.Wait()
	if a.typing != nil {
		a.job.Stdin.Close() // nobody reads it any more
	}
	a.speaker.close()
	for _, f := range a.outputs {
		f.Close()
	}
}
