// Package leader decides where ranks run: which host or link is to blame when
// something is slow or gone, what is the matter with it, and which remedy pays.
// It is a pure state machine that is told the time. It performs nothing.
package leader

import (
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// A Machine answers inputs with actions. The same inputs at the same times get the same actions. It is
// for one goroutine.
type Machine struct {
	cfg   Config
	world *topology.Map
	ranks []rankInfo
	hosts map[string]*host
	names []string // of hosts, sorted

	now    time.Time
	began  time.Time
	leader string
	out    []Action
	ended  bool // GiveUp was said

	breaches  map[Link]*breach
	fine      map[Link]fine
	ailing    map[Port]float64 // what still goes through the ports that are blamed
	gatherEnd time.Time        // zero: nothing is being gathered
	lookAt    time.Time        // the next look at breaches that last
	told      map[string]string

	dead     []topology.Rank // in the order in which they died
	added    map[string]bool // hosts asked for
	jailed   []string        // hosts in quarantine
	drains   []string        // hosts being drained
	moves    window
	changed  map[[2]string]time.Time // when hosts, from and to, were last to use another network
	handed   string                  // the leader's host when it was last asked to hand over
	giveAt   time.Time               // when it will be asked; zero: it will not
	giveWhy  string                  // as last blamed, or ordered
	giveMust bool                    // its host is to be left
	stay     time.Time               // until when it is not asked again

	measurements []*measurement

	plans      map[adapt.ID]*underWay
	lastPlan   adapt.ID
	lastRecord uint64
}

type underWay struct {
	strategy adapt.Strategy
	record   *Record
	index    int  // in the record's plans
	moot     bool // that it was undone says nothing of the rank
}

type fine struct {
	at   time.Time
	seen float64
}

// New is the policy of a job that begins with all ranks where first has them, in
// processes that run there.
func New(cfg Config, first *topology.Map) *Machine {
	m := &Machine{
		cfg: cfg.withDefaults(), world: first, ranks: make([]rankInfo, first.Size()),
		hosts: map[string]*host{}, breaches: map[Link]*breach{}, fine: map[Link]fine{},
		told: map[string]string{}, added: map[string]bool{}, changed: map[[2]string]time.Time{}, plans: map[adapt.ID]*underWay{},
	}
	at := map[topology.Place]*process{}
	for _, p := range first.Places() {
		at[p] = m.addProcess(p)
		at[p].ready = true
	}
	for r := range first.Size() {
		p, _ := first.Place(topology.Rank(r))
		at[p].ranks = append(at[p].ranks, topology.Rank(r))
		m.hosts[p.Host].ranks++
	}
	return m
}

// Map is the map that holds, after all plans that have ended.
func (m *Machine) Map() *topology.Map { return m.world }

// Step takes one input. Time that goes back is taken to stand still.
func (m *Machine) Step(now time.Time, in Input) []Action {
	if m.ended {
		return nil
	}
	if m.began.IsZero() {
		m.began = now
	}
	if now.After(m.now) {
		m.now = now
	}
	m.out = nil
	if _, last := in.(Ending); last {
		m.conclude(func(*measurement) bool { return true })
		return m.out
	}
	m.take(in)
	m.settle()
	if m.ended { // nothing after GiveUp
		i := slices.IndexFunc(m.out, func(a Action) bool { _, ok := a.(GiveUp); return ok })
		return m.out[:i+1]
	}
	return m.out
}

func (m *Machine) take(in Input) {
	switch in := in.(type) {
	case HostJoined:
		m.hostJoined(in)
	case HostLost:
		m.hostLost(in)
	case HostReading:
		m.hostReading(in)
	case ProcessReady:
		m.processReady(in.Place)
	case ProcessLost:
		m.processLost(in)
	case Breach:
		m.breach(in)
	case Recovered:
		m.recovered(in.Link)
		if in.Seen > 0 {
			m.fine[in.Link] = fine{m.now, in.Seen}
		}
	case Fine:
		if b := m.breaches[in.Link]; b != nil && b.lent && in.Seen >= wellAgain*b.Promised {
			delete(m.breaches, in.Link)
		}
		if m.breaches[in.Link] == nil {
			m.fine[in.Link] = fine{m.now, in.Seen}
		}
	case Traffic:
		m.traffic(in)
	case StateSize:
		if in.Rank >= 0 && int(in.Rank) < len(m.ranks) {
			r := &m.ranks[in.Rank]
			r.bytes, r.copies = in.Bytes, slices.Clone(in.Copies)
			if !in.Taken.IsZero() {
				r.taken = in.Taken
			}
		}
	case PlanEnded:
		m.planEnded(in)
	case Placed:
		for _, s := range in.Ranks {
			m.placed(s)
		}
	case LeadingFrom:
		m.leader, m.giveAt, m.giveMust = in.Host, time.Time{}, false
	case Stays:
		m.stays()
	case Drain:
		m.drainHost(in)
	case Cordon:
		m.cordon(in)
	case Uncordon:
		m.uncordon(in)
	case AddHost:
		m.addHost(in)
	case Unreached:
		m.unreached(in)
	case Tick:
	default:
		panic(fmt.Sprintf("the policy has no answer to a %T", in))
	}
}

// settle does what is due, the most urgent first.
func (m *Machine) settle() {
	m.measureDue()
	m.look()
	m.handOverDue()
	m.recoverDead()
	m.drainOn()
	m.release()
}

// do orders a plan, as part of a record that is told afterwards.
func (m *Machine) do(s adapt.Strategy, rec *Record, cost float64) adapt.ID {
	p, err := planner{}.Plan(m.world, s)
	if err != nil {
		panic(fmt.Sprintf("a strategy that does not fit the map: %v", err))
	}
	m.lastPlan++
	p.ID = m.lastPlan
	m.plans[p.ID] = &underWay{strategy: s, record: rec, index: len(rec.Plans)}
	rec.Plans = append(rec.Plans, Planned{ID: p.ID, What: p.What, Cost: cost})
	m.out = append(m.out, Do{p})
	return p.ID
}

// relocate orders that a rank goes to a host that has room.
func (m *Machine) relocate(s Relocate, to string, rec *Record) {
	q := m.target(to)
	s.To = q.place
	id := m.do(s, rec, s.Cost)
	q.plan = id
	m.hosts[to].incoming++
	m.ranks[s.Rank].plan = id
	if !s.Again {
		m.moves.add(m.now)
	}
}

// moot notes of a plan that it is not the rank's doing if it comes to nothing.
func (m *Machine) moot(id adapt.ID) {
	if u := m.plans[id]; u != nil {
		u.moot = true
	}
}

func (m *Machine) record(seen ...string) *Record {
	m.lastRecord++
	return &Record{ID: m.lastRecord, At: m.now, Seen: seen}
}

func (m *Machine) tell(r *Record) {
	c := *r
	c.Plans = slices.Clone(r.Plans)
	m.out = append(m.out, Tell{c})
}

func (m *Machine) giveUp(reason string) {
	if !m.ended {
		m.ended = true
		m.out = append(m.out, GiveUp{reason})
	}
}

func (m *Machine) planEnded(in PlanEnded) {
	u := m.plans[in.ID]
	if u == nil {
		return
	}
	delete(m.plans, in.ID)
	switch s := u.strategy.(type) {
	case Relocate:
		m.relocated(in, u, s)
	case Switch:
		if in.Outcome.End == adapt.Finished {
			m.switched(u.record, s)
		}
	case Add:
		if in.Outcome.End != adapt.Finished {
			delete(m.added, s.Host)
		} else if q := m.host(s.Host).quarantine; q.holds(m.now) {
			u.record.Why = fmt.Sprintf("%s is in quarantine for another %v (%s): wait, or uncordon it", s.Host, q.until.Sub(m.now).Round(time.Second), q.why)
		}
	}
	done := &u.record.Plans[u.index]
	done.End, done.Why = in.Outcome.End, in.Outcome.Why
	done.Took, done.Stood = in.Outcome.Took.Seconds(), in.Outcome.Stood.Seconds()
	done.Epoch = m.world.Epoch()
	m.carriedOut(u.record)
	m.tell(u.record)
}

// together is how long a look waits for other plans that end.
const together = 10 * time.Millisecond

// relocated makes the map what the end of a plan says.
func (m *Machine) relocated(in PlanEnded, u *underWay, s Relocate) {
	r := &m.ranks[s.Rank]
	q := m.process(s.To)
	if q != nil && q.plan != in.ID {
		q = nil // another life of that slot
	}
	m.hosts[s.To.Host].incoming--
	r.plan = 0
	if q != nil {
		q.plan = 0
	}
	if in.Outcome.End != adapt.Finished {
		if r.dead != nil && s.Again && r.lives {
			m.spared(s.Rank)
			return
		}
		if r.dead != nil && s.Again {
			r.retry = m.now.Add(tryAgain)
			r.undone++
		}
		if u.moot {
			m.lookAt = m.now.Add(together) // elsewhere, if the reason lasts
		}
		if r.dead == nil && !u.moot {
			r.retry = m.now.Add(retryAfter)
			if r.stuck = true; m.cfg.Level == Crashes {
				m.lookAt = m.now.Add(together) // it may be recovered from its copy
			}
		}
		return
	}
	next, err := m.world.Apply(topology.Move{Rank: s.Rank, From: s.From, To: s.To})
	if err != nil {
		panic(fmt.Sprintf("plan %d is done, and its move cannot be: %v", in.ID, err))
	}
	m.world = next
	if from := m.process(s.From); from != nil {
		from.ranks = slices.DeleteFunc(from.ranks, func(o topology.Rank) bool { return o == s.Rank })
		if s.Again && len(from.ranks) == 0 { // it is out of the job: that it ends is no news
			m.dropProcess(from)
		}
	}
	if r.dead == nil {
		m.hosts[s.From.Host].ranks--
	} else {
		m.dead = slices.DeleteFunc(m.dead, func(o topology.Rank) bool { return o == s.Rank })
	}
	r.dead, r.lives, r.stuck, r.retry = nil, false, false, time.Time{}
	if !s.Again {
		r.moved = m.now
	}
	if q == nil { // it was lost after the commit
		m.die(s.Rank, &cause{
			seen:    []string{fmt.Sprintf("rank %d arrived at %v, which was lost meanwhile", s.Rank, s.To)},
			blamed:  fmt.Sprintf("process %v", s.To),
			verdict: Verdict{Crash, []string{"it was lost while the rank moved to it"}},
		})
		return
	}
	m.hosts[s.To.Host].ranks++
	q.ready = true
	q.ranks = append(q.ranks, s.Rank)
}
