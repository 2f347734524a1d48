package leader

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/internal/seeds"
	"github.com/mpiv/mpiv/topology"
)

// TestRandomFaults runs jobs of up to 20 hosts in which everything fails at random, with
// an executor that does too, and whose messages are lost and repeated, and checks each
// action.
func TestRandomFaults(t *testing.T) {
	counts := map[string]int{}
	newWorld(t, 457, map[string]int{}).run() // a rank is recovered and another is hopeless at the same time
	n := seeds.Each(t, 60, func(seed uint64) { newWorld(t, seed, counts).run() })
	t.Logf("%v", counts)
	if n >= 60 {
		for _, what := range []string{"alive", "recovered", "copied alive", "undone", "abandoned", "done", "refused", "refill", "hand over", "give up", "drained", "release", "another path", "record", "measured", "fenced", "lost", "repeated"} {
			require.Positive(t, counts[what], "no job had %q: %v", what, counts)
		}
	}
}

// TestRefusals runs the same jobs, and cuts, where no plan that moves a rank can ever begin: the policy must not spend
// a moment on planning the same thing again and again.
func TestRefusals(t *testing.T) {
	refused := 0
	seeds.Each(t, 60, func(seed uint64) {
		counts := map[string]int{}
		w := newWorld(t, seed, counts)
		w.refuses = true
		w.run()
		refused += counts["refused at once"]
	})
	require.Positive(t, refused)
}

// A world is what is true, beside a policy that is told of it.
type world struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	counts map[string]int
	cfg    Config
	m      *Machine
	now    time.Time
	log    []Entry
	did    [][]Action

	names   []string
	joined  map[string]HostJoined
	first   *topology.Map
	at      []topology.Place // where each rank is, by the plans that are done
	to      [][]Flow
	alive   map[topology.Place]bool
	gone    map[topology.Place]bool // out of the job, as the policy knows
	silent  map[topology.Place]bool
	plans   map[adapt.ID]*execution
	orders  map[topology.Rank]bool
	drained map[string]bool
	moves   []time.Time // of living ranks
	moved   map[topology.Rank]time.Time
	links   map[Link]bool // breached
	later   []timed
	over    bool

	refuses bool // no rank can move
	refused int  // plans at this moment
}

type timed struct {
	at time.Time
	in Input
}

type execution struct {
	plan   adapt.Plan
	runner *adapt.Runner
	next   adapt.Next
	ready  time.Time // when the act under way will be done
	until  time.Time // with every act at its deadline, there and back
}

func newWorld(t *testing.T, seed uint64, counts map[string]int) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), counts: counts, now: start,
		joined: map[string]HostJoined{}, alive: map[topology.Place]bool{}, gone: map[topology.Place]bool{}, silent: map[topology.Place]bool{},
		plans: map[adapt.ID]*execution{}, orders: map[topology.Rank]bool{}, drained: map[string]bool{}, moved: map[topology.Rank]time.Time{}, links: map[Link]bool{},
	}
	w.cfg = Config{Level: Crashes, MovesPerMinute: 1 + w.rng.IntN(20)}
	if w.rng.IntN(4) == 0 {
		w.cfg.Level = Moves
	}
	for i := range 2 + w.rng.IntN(19) {
		name := fmt.Sprintf("h%02d", i)
		j := HostJoined{Host: name, Slots: w.rng.IntN(4), Spares: w.rng.IntN(3), Trusted: w.rng.IntN(5) > 0, Networks: []Network{{"lan", topology.LAN}}}
		if w.rng.IntN(3) == 0 {
			j.Networks = append(j.Networks, Network{"san", topology.SAN})
		}
		if i == 0 {
			j.Slots = 1
		}
		w.names, w.joined[name] = append(w.names, name), j
		for slot := range j.Slots {
			w.at = append(w.at, topology.Place{Host: name, Slot: slot})
		}
	}
	w.first = topology.New(w.at)
	w.m = New(w.cfg, w.first)
	for _, name := range w.names {
		j := w.joined[name]
		w.step(j)
		for slot := range j.Slots + j.Spares {
			w.alive[topology.Place{Host: name, Slot: slot}] = true
			w.step(ProcessReady{topology.Place{Host: name, Slot: slot}})
		}
	}
	w.step(LeadingFrom{w.names[0]})
	w.to = make([][]Flow, len(w.at))
	for r := range w.at {
		for range w.rng.IntN(4) {
			if o := w.rng.IntN(len(w.at)); o != r {
				w.to[r] = append(w.to[r], Flow{To: topology.Rank(o), Rate: 1e6 * float64(1+w.rng.IntN(9))})
			}
		}
		slices.SortFunc(w.to[r], func(a, b Flow) int { return int(a.To) - int(b.To) })
		w.to[r] = slices.CompactFunc(w.to[r], func(a, b Flow) bool { return a.To == b.To })
		w.step(Traffic{topology.Rank(r), w.to[r]})
	}
	return w
}

func (w *world) require(ok bool, format string, args ...any) {
	if !ok {
		w.t.Fatalf("%s\nat %v; %s", fmt.Sprintf(format, args...), w.now.Sub(start), seeds.Replay("./leader", w.t.Name(), w.seed))
	}
}

func (w *world) run() {
	for !w.over && w.now.Before(start.Add(3*time.Minute)) {
		w.now = w.now.Add(100 * time.Millisecond)
		w.refused = 0
		if w.rng.IntN(15) == 0 && w.now.Before(start.Add(2*time.Minute)) {
			w.fault()
		}
		for i := 0; i < len(w.later) && !w.over; {
			if w.later[i].at.After(w.now) {
				i++
				continue
			}
			in := w.later[i].in
			w.later = slices.Delete(w.later, i, i+1)
			w.true(in)
		}
		w.execute()
		for id, e := range w.plans {
			w.require(!w.now.After(e.until), "plan %d never ends: it is in step %d, %v", id, e.next.Step, e.next.Phase)
		}
		w.step(Tick{})
	}
	for id := range w.m.plans {
		w.require(w.over || w.plans[id] != nil, "the policy thinks that plan %d goes on", id)
	}
	again := New(w.cfg, w.first)
	for i, e := range w.log {
		got := again.Step(e.At, e.In)
		w.require(reflect.DeepEqual(got, w.did[i]), "replay of %T: %v, want %v", e.In, got, w.did[i])
	}
}

func (w *world) place() topology.Place {
	var all []topology.Place
	for p := range w.alive {
		all = append(all, p)
	}
	if len(all) == 0 {
		return topology.Place{Host: w.names[0], Slot: 99}
	}
	slices.SortFunc(all, func(a, b topology.Place) int { return cmp.Or(strings.Compare(a.Host, b.Host), a.Slot-b.Slot) })
	return all[w.rng.IntN(len(all))]
}

func (w *world) after(most time.Duration, in Input) {
	w.later = append(w.later, timed{w.now.Add(time.Duration(w.rng.Int64N(int64(most)))), in})
}

// fault lets something happen, and later its end.
func (w *world) fault() {
	h, o := w.names[w.rng.IntN(len(w.names))], w.names[w.rng.IntN(len(w.names))]
	p := w.place()
	kinds := 14
	if w.refuses {
		kinds++
	}
	switch w.rng.IntN(kinds) {
	case 0, 1:
		w.true(ProcessLost{Place: p, Why: Killed})
	case 2:
		w.true(Silent{p, w.now})
		w.after(3*time.Second, Heard{p})
	case 3:
		if w.rng.IntN(3) == 0 {
			w.true(HostLost{Host: h, Why: Cut})
			w.after(20*time.Second, w.joined[h])
		}
	case 4:
		p := agent(h)
		w.true(Silent{p, w.now})
		w.after(2*time.Second, Heard{p})
		w.after(9*time.Second, w.joined[h])
	case 5, 6, 7: // a host's outward links
		for _, to := range w.names {
			l := Link{h, to, "lan"}
			if to != h && w.rng.IntN(4) > 0 {
				w.true(Breach{Link: l, Promised: 1e7, Seen: 1e6 * w.rng.Float64() * 8, Since: w.now})
				w.after(40*time.Second, Recovered{Link: l})
			}
		}
	case 8:
		if h != o {
			l := Link{h, o, "lan"}
			w.true(Breach{Link: l, Promised: 1e7, Seen: 1e6, Since: w.now, Limited: w.rng.IntN(4) == 0})
			w.after(20*time.Second, Recovered{Link: l})
		}
	case 9:
		w.true(HostReading{Host: h, Cores: 2, Busy: 0.3, Others: 1.7, Pressure: 0.9})
		w.after(20*time.Second, HostReading{Host: h, Cores: 2, Busy: 0.3})
	case 10:
		r := topology.Rank(w.rng.IntN(len(w.at)))
		w.orders[r] = true
		w.true(MoveRank{r, h, "op"})
		delete(w.orders, r)
	case 11:
		w.drained[h] = true
		w.true(Drain{h, "op"})
		w.after(30*time.Second, Uncordon{h, "op"})
	case 12:
		r := w.rng.IntN(len(w.at))
		in := StateSize{Rank: topology.Rank(r), Bytes: 1e6 * float64(w.rng.IntN(200)), Taken: w.now, Copies: []string{w.at[r].Host, o}}
		w.true(in)
	case 13:
		w.true(LeadingFrom{h})
	case 14:
		if h != o {
			w.true(Unreached{Pairs: [][2]string{{h, o}}, For: 4 * time.Second})
		}
	}
}

// true makes an input true, and tells the policy.
func (w *world) true(in Input) {
	switch in := in.(type) {
	case ProcessLost:
		delete(w.alive, in.Place)
		w.gone[in.Place] = true
	case HostLost:
		for p := range w.alive {
			if p.Host == in.Host {
				w.gone[p] = true
			}
		}
	case Silent:
		w.silent[in.Place] = true
	case Heard:
		delete(w.silent, in.Place)
	case HostJoined:
		delete(w.silent, agent(in.Host))
	case Breach:
		w.links[in.Link] = true
	case Recovered:
		delete(w.links, in.Link)
	case Uncordon:
		delete(w.drained, in.Host)
	}
	w.step(in)
}

func (w *world) step(in Input) {
	if w.over {
		return
	}
	w.log = append(w.log, Entry{w.now, in})
	acts := w.m.Step(w.now, in)
	w.did = append(w.did, acts)
	records := map[adapt.ID]Record{}
	for _, a := range acts {
		if t, ok := a.(Tell); ok {
			for _, p := range t.Record.Plans {
				records[p.ID] = t.Record
			}
		}
	}
	var refused []adapt.ID
	for i, a := range acts {
		switch a := a.(type) {
		case Do:
			rec, ok := records[a.Plan.ID]
			w.require(ok, "plan %d (%s) is in no record", a.Plan.ID, a.Plan.What)
			if w.refuses && len(a.Plan.Moves) > 0 {
				refused = append(refused, a.Plan.ID)
				break
			}
			w.begin(a.Plan, rec)
		case Abandon:
			if w.plans[a.ID] == nil && w.refuses {
				break
			}
			w.counts["abandoned"]++
			w.require(w.plans[a.ID] != nil, "plan %d was abandoned, and is not under way", a.ID)
			e := w.plans[a.ID]
			w.take(e, e.runner.Step(w.now, adapt.Abandon{Why: a.Why}))
		case Tell:
			w.counts["record"]++
			if a.Record.Measured != nil {
				w.counts["measured"]++
				w.require(slices.ContainsFunc(a.Record.Plans, func(p Planned) bool { return p.End == adapt.Finished }), "measured what was not carried out: %v", a.Record)
			}
			if kind, _, _ := strings.Cut(a.Record.Chosen, ":"); !strings.HasPrefix(kind, "move rank") {
				w.counts[kind]++
			}
			if strings.Contains(a.Record.Why, "is empty, and cordoned") {
				w.counts["drained"]++
			}
		case HandOver:
			w.counts["hand over"]++
			w.require(a.To != w.m.leader, "hand over to itself")
			if w.rng.IntN(3) == 0 {
				w.counts["stays"]++
				w.after(time.Second, Stays{})
			}
		case GiveUp:
			w.counts["give up"]++
			if w.cfg.Level == Crashes {
				w.hopeless(a.Reason)
			}
			w.over = true
			w.require(i == len(acts)-1, "something is done after GiveUp")
		}
	}
	for _, id := range refused {
		w.counts["refused at once"]++
		w.refused++
		w.require(w.refused <= 4*len(w.at), "the policy plans without end: %d plans at a moment for %d ranks", w.refused, len(w.at))
		w.step(PlanEnded{ID: id, Outcome: adapt.Outcome{End: adapt.Undone, Why: "it cannot begin"}})
	}
}

// hopeless checks that a job whose ranks could be recovered was given up for a reason.
func (w *world) hopeless(reason string) {
	isolated := 0
	for _, name := range w.names {
		if w.silent[agent(name)] {
			isolated++
		}
	}
	switch {
	case strings.Contains(reason, "has its snapshot"):
		w.counts["no snapshot"]++
	case strings.Contains(reason, "no other host that is well has room"):
		w.counts["no room"]++
	case strings.Contains(reason, "have been silent"):
		w.counts["isolated"]++
		w.require(isolated > 0, "%s: none is", reason)
	case w.refuses && strings.Contains(reason, "plans to recover it were undone"):
	default:
		w.require(false, "given up without need: %s", reason)
	}
}

// begin checks a plan, and begins it.
func (w *world) begin(p adapt.Plan, rec Record) {
	until := w.now
	for _, s := range p.Steps {
		until = until.Add(3 * (max(s.Within, s.Back, adapt.DefaultWithin) + time.Second)) // do, undo, fence
	}
	w.plans[p.ID] = &execution{plan: p, runner: adapt.NewRunner(p), until: until}
	defer func() {
		e := w.plans[p.ID]
		w.take(e, e.runner.Step(w.now, adapt.Begin{}))
	}()
	if len(p.Moves) == 0 {
		return
	}
	mv := p.Moves[0]
	w.require(len(p.Moves) == 1, "%s moves several ranks", p.What)
	w.require(w.at[mv.Rank] == mv.From, "%s: it is at %v", p.What, w.at[mv.Rank])
	for id, e := range w.plans {
		w.require(id == p.ID || len(e.plan.Moves) == 0 || e.plan.Moves[0].Rank != mv.Rank, "rank %d is in plans %d and %d", mv.Rank, id, p.ID)
		w.require(id == p.ID || len(e.plan.Moves) == 0 || e.plan.Moves[0].To != mv.To, "%v is the target of plans %d and %d", mv.To, id, p.ID)
	}
	alive := slices.ContainsFunc(p.Steps, func(s adapt.Step) bool { return s.Do.Verb == VerbSave })
	lost := w.gone[mv.From] || w.silent[mv.From] || w.silent[agent(mv.From.Host)]
	if !alive {
		w.counts["recovered"]++
		w.gone[mv.From] = true // with all that is there
	} else {
		w.counts["alive"]++
	}
	elective := alive || !lost && rec.Chosen != "recover" // what was lost may be heard of again by now
	if elective {
		if !alive {
			w.counts["copied alive"]++
		}
		w.concerned(mv, rec)
		w.moves = append(w.moves, w.now)
		recent := slices.DeleteFunc(slices.Clone(w.moves), func(at time.Time) bool { return w.now.Sub(at) >= time.Minute })
		w.require(len(recent) <= w.cfg.MovesPerMinute, "%d moves within a minute", len(recent))
		if last, ok := w.moved[mv.Rank]; ok {
			w.require(w.now.Sub(last) >= 30*time.Second, "rank %d moves again after %v", mv.Rank, w.now.Sub(last))
		}
	}
	w.room(mv.To.Host)
}

// concerned checks that a living rank which moves is one that the trouble, or an order, is about.
func (w *world) concerned(mv topology.Move, rec Record) {
	from := mv.From.Host
	crosses := func(ok func(a, b string) bool) bool {
		for r := range w.to {
			for _, f := range w.to[r] {
				a, b := w.at[r].Host, w.at[f.To].Host
				if (topology.Rank(r) == mv.Rank || f.To == mv.Rank) && a != b && ok(a, b) {
					return true
				}
			}
		}
		return false
	}
	switch blamed := rec.Blamed; {
	case rec.Verdict == Order:
		w.require(w.orders[mv.Rank] || w.drained[from], "nobody wants rank %d to move: %+v", mv.Rank, rec)
	case strings.HasPrefix(blamed, "host "):
		host := strings.TrimSuffix(strings.Fields(blamed)[1], ",")
		w.require(host == from, "rank %d leaves %s, and %s is blamed", mv.Rank, from, blamed)
		peers := len(w.to[mv.Rank]) > 0 || slices.ContainsFunc(w.to, func(to []Flow) bool {
			return slices.ContainsFunc(to, func(f Flow) bool { return f.To == mv.Rank })
		})
		w.require(rec.Verdict == Starve || !peers || w.shares(mv) || crosses(func(a, b string) bool { return a == host || b == host }), "rank %d does not use what is blamed: %+v", mv.Rank, rec)
	case strings.HasPrefix(blamed, "link "):
		l, _, _ := strings.Cut(strings.Fields(blamed)[1], " ")
		a, b, _ := strings.Cut(l, "→")
		known := crosses(func(string, string) bool { return true })
		w.require((from == a || from == b) && (!known || crosses(func(x, y string) bool { return x == a && y == b })), "rank %d does not use %s: %+v", mv.Rank, blamed, rec)
	default:
		w.require(false, "rank %d moves because of %q", mv.Rank, blamed)
	}
}

// shares says whether others are in the process of a rank that moves.
func (w *world) shares(mv topology.Move) bool {
	n := 0
	for _, p := range w.at {
		if p == mv.From {
			n++
		}
	}
	return n > 1
}

// room checks that a host is not overfilled by what is there and on its way. Whether a process still belongs
// to the job is the policy's word, which may wait for a place with what it has declared lost.
func (w *world) room(host string) {
	moving := map[topology.Rank]topology.Move{}
	for _, e := range w.plans {
		if len(e.plan.Moves) > 0 {
			moving[e.plan.Moves[0].Rank] = e.plan.Moves[0]
		}
	}
	n := 0
	for r, p := range w.at {
		mv, ok := moving[topology.Rank(r)]
		if ok && mv.To.Host == host {
			n++
		}
		if p.Host == host && !w.gone[p] && w.m.process(p) != nil && !(ok && mv.To.Host == host) {
			n++
		}
	}
	j := w.joined[host]
	w.require(n <= j.Slots+j.Spares, "%s has or expects %d ranks, and room for %d+%d", host, n, j.Slots, j.Spares)
}

// take notes what an execution is to do next; the end of the plan comes with the next tick.
func (w *world) take(e *execution, next adapt.Next) {
	if next.Perform || next.Phase == adapt.Ended {
		e.next = next
		e.ready = w.now.Add(time.Duration(w.rng.IntN(400)) * time.Millisecond)
		if w.rng.IntN(40) == 0 {
			e.ready = w.now.Add(time.Hour) // it hangs
		}
	}
}

func (w *world) execute() {
	var ids []adapt.ID
	for id := range w.plans {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		e := w.plans[id]
		if e == nil || w.over {
			continue
		}
		if e.next.Phase == adapt.Ended {
			w.end(e)
			continue
		}
		act := e.next.Act
		there := act.At.Slot < 0 || w.alive[act.At] && !w.silent[act.At] || act.Verb == VerbFence
		switch {
		case there && !w.now.Before(e.ready) && w.rng.IntN(50) == 0:
			w.take(e, e.runner.Step(w.now, adapt.Failed{Step: e.next.Step, Phase: e.next.Phase, Err: errors.New("it does not work")}))
		case there && !w.now.Before(e.ready):
			done := adapt.Done{Step: e.next.Step, Phase: e.next.Phase}
			w.perform(act)
			switch w.rng.IntN(40) {
			case 0: // nobody hears that it is done
				w.counts["lost"]++
				e.ready = w.now.Add(time.Hour)
				continue
			case 1: // it is asked for twice
				w.counts["repeated"]++
				w.perform(act)
			case 2: // it is heard of twice
				w.counts["repeated"]++
				w.take(e, e.runner.Step(w.now, done))
			}
			w.take(e, e.runner.Step(w.now, done))
		case !w.now.Before(e.next.Deadline):
			w.take(e, e.runner.Step(w.now, adapt.Tick{}))
		}
	}
}

func (w *world) perform(a adapt.Act) {
	switch a.Verb {
	case VerbStart:
		w.alive[a.To] = true
		w.step(ProcessReady{a.To})
	case VerbEnd:
		if w.alive[a.To] {
			w.true(ProcessLost{Place: a.To, Why: Killed})
		}
	case VerbFence:
		w.counts["fenced"]++
	case VerbSwitch:
		w.counts["another path"]++
	}
}

func (w *world) end(e *execution) {
	out := e.next.Outcome
	w.counts[string(out.End)]++
	delete(w.plans, e.plan.ID)
	if out.End == adapt.Finished {
		for _, mv := range e.plan.Moves {
			w.at[mv.Rank] = mv.To
			if slices.ContainsFunc(e.plan.Steps, func(s adapt.Step) bool { return s.Do.Verb == VerbSave }) {
				w.moved[mv.Rank] = w.now
			}
		}
	}
	for _, p := range out.Fenced {
		w.gone[p] = true
	}
	w.step(PlanEnded{ID: e.plan.ID, Outcome: out})
	if w.rng.IntN(20) == 0 {
		w.counts["repeated"]++
		w.step(PlanEnded{ID: e.plan.ID, Outcome: out})
	}
	next := w.m.Map()
	for r, p := range w.at {
		got, _ := next.Place(topology.Rank(r))
		w.require(got == p, "rank %d is at %v, and in the map at %v", r, p, got)
	}
}
