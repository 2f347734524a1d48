package leader

import (
	"cmp"
	"fmt"
	"maps"
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

// TestRandomFaults runs jobs of up to 20 hosts in which everything fails at random, beside an agent that does as
// internal/agent does: plans as a whole, of which some come to nothing, and lost processes by itself, of which it tells.
// Each action is checked.
func TestRandomFaults(t *testing.T) {
	counts := map[string]int{}
	n := seeds.Each(t, 60, func(seed uint64) { newWorld(t, seed, counts).run() })
	t.Logf("%v", counts)
	if n >= 60 {
		for _, what := range []string{"alive", "copied alive", "elsewhere", "revived", "broken", "undone", "done", "refused", "refused at once", "moved by the operator", "added",
			"hand over", "drained", "release", "another path", "record", "measured", "lost host", "repeated"} {
			require.Positive(t, counts[what], "no job had %q: %v", what, counts)
		}
	}
}

// TestRefusals runs the same jobs where no plan that moves a rank can ever begin: the policy must not spend
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

// A world is what is true, and the agent that tells a policy of it.
type world struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand
	counts map[string]int
	cfg    Config
	m      *Machine
	now    time.Time
	log    []entry
	did    [][]Action

	names   []string
	joined  map[string]HostJoined
	lost    map[string]bool // hosts
	slots   map[string]int  // ever used
	spares  int             // that the agent sees to
	first   *topology.Map
	at      []topology.Place // where each rank is
	to      [][]Flow
	alive   map[topology.Place]bool
	moving  []*execution
	wanted  map[topology.Rank]adapt.Plan // where a rank of a process that is out is to go on
	out     []topology.Place             // processes that the policy does without
	gone    []ProcessLost                // whose ranks are not elsewhere yet
	plans   map[adapt.ID]time.Time       // and by when they must have ended
	drained map[string]bool
	moves   []time.Time // of living ranks
	moved   map[topology.Rank]time.Time
	queue   []Input // while the policy answers another
	telling bool
	later   []timed
	over    bool

	refuses bool // no rank can move
	refused int  // plans at this moment
}

type timed struct {
	at time.Time
	in Input
}

// An execution is a move, or something else that takes time.
type execution struct {
	plan adapt.Plan // ID 0: it is the operator's
	end  time.Time
	ok   bool
	came bool // should it break, the rank is there already
}

func newWorld(t *testing.T, seed uint64, counts map[string]int) *world {
	w := &world{
		t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), counts: counts, now: start,
		joined: map[string]HostJoined{}, lost: map[string]bool{}, slots: map[string]int{}, alive: map[topology.Place]bool{},
		wanted: map[topology.Rank]adapt.Plan{}, plans: map[adapt.ID]time.Time{}, drained: map[string]bool{}, moved: map[topology.Rank]time.Time{},
	}
	w.cfg = Config{Level: Crashes, MovesPerMinute: 1 + w.rng.IntN(20)}
	if w.rng.IntN(4) == 0 {
		w.cfg.Level = Moves
	}
	var spares []topology.Place
	for i := range 2 + w.rng.IntN(19) {
		name := fmt.Sprintf("h%02d", i)
		j := HostJoined{Host: name, Trusted: w.rng.IntN(5) > 0, Networks: []string{"lan"}}
		if w.rng.IntN(3) == 0 {
			j.Networks = append(j.Networks, "san")
		}
		w.names, w.joined[name] = append(w.names, name), j
		for range max(w.rng.IntN(4), 1-i) {
			p := w.slot(name)
			for range 1 + w.rng.IntN(2)*w.rng.IntN(3) { // some processes have several ranks
				w.at = append(w.at, p)
			}
			w.alive[p] = true
		}
		for range w.rng.IntN(3) {
			spares = append(spares, w.slot(name))
		}
	}
	w.first, w.spares = topology.New(w.at), len(spares)
	w.m = New(w.cfg, w.first)
	w.step(LeadingFrom{w.names[0]})
	for _, name := range w.names {
		w.step(w.joined[name])
	}
	for _, p := range spares {
		w.alive[p] = true
		w.step(ProcessReady{p})
	}
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

// slot is a place on a host that was never used.
func (w *world) slot(host string) topology.Place {
	w.slots[host]++
	return topology.Place{Host: host, Slot: w.slots[host] - 1}
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
		due := slices.DeleteFunc(slices.Clone(w.later), func(l timed) bool { return l.at.After(w.now) })
		w.later = slices.DeleteFunc(w.later, func(l timed) bool { return !l.at.After(w.now) })
		for _, l := range due {
			w.true(l.in)
		}
		w.execute()
		w.goOn()
		for id, until := range w.plans {
			w.require(w.over || !w.now.After(until), "plan %d never ends", id)
		}
		w.step(Tick{})
		for r, p := range w.at {
			got, _ := w.m.Map().Place(topology.Rank(r))
			w.require(w.over || got == p, "rank %d is at %v, and in the map at %v", r, p, got)
		}
	}
	for id := range w.m.plans {
		_, known := w.plans[id]
		w.require(w.over || known, "the policy thinks that plan %d goes on", id)
	}
	again := New(w.cfg, w.first)
	for i, e := range w.log {
		got := again.Step(e.at, e.in)
		w.require(reflect.DeepEqual(got, w.did[i]), "replay of %T: %v, want %v", e.in, got, w.did[i])
	}
}

func (w *world) processes() []topology.Place {
	return slices.SortedFunc(maps.Keys(w.alive), func(a, b topology.Place) int { return cmp.Or(strings.Compare(a.Host, b.Host), a.Slot-b.Slot) })
}

func (w *world) ranksAt(p topology.Place) (all []topology.Rank) {
	for r := range w.at {
		if w.at[r] == p {
			all = append(all, topology.Rank(r))
		}
	}
	return all
}

func (w *world) underWay(which func(a adapt.Act) bool) bool {
	return slices.ContainsFunc(w.moving, func(e *execution) bool { return which(e.plan.Act) })
}

// free is the processes that can take a rank.
func (w *world) free() (all []topology.Place) {
	for _, p := range w.processes() {
		if len(w.ranksAt(p)) == 0 && !w.underWay(func(a adapt.Act) bool { return a.To == p }) {
			all = append(all, p)
		}
	}
	return all
}

func (w *world) after(most time.Duration, in Input) {
	w.later = append(w.later, timed{w.now.Add(time.Duration(w.rng.Int64N(int64(most)))), in})
}

// fault lets something happen, and later its end.
func (w *world) fault() {
	h, o := w.names[w.rng.IntN(len(w.names))], w.names[w.rng.IntN(len(w.names))]
	r := topology.Rank(w.rng.IntN(len(w.at)))
	switch w.rng.IntN(15) {
	case 0, 1:
		if all := w.processes(); w.cfg.Level == Crashes && len(all) > 0 {
			w.kill(all[w.rng.IntN(len(all))], Killed)
		}
	case 2:
		w.loseHost(h)
	case 3:
		w.step(AddHost{h, "op"})
	case 4, 5, 6: // a host's outward links
		for _, to := range w.names {
			l := Link{h, to, "lan"}
			if to != h && w.rng.IntN(4) > 0 {
				w.true(Breach{Link: l, Promised: 1e7, Seen: 1e6 * w.rng.Float64() * 8, Since: w.now})
				w.after(40*time.Second, Recovered{Link: l})
			}
		}
	case 7:
		if h != o {
			l := Link{h, o, "lan"}
			w.true(Breach{Link: l, Promised: 1e7, Seen: 1e6, Since: w.now})
			w.after(20*time.Second, Recovered{Link: l})
		}
	case 8:
		w.true(HostReading{Host: h, Cores: 2, Busy: 0.3, Others: 1.7, Pressure: 0.9})
		w.after(20*time.Second, HostReading{Host: h, Cores: 2, Busy: 0.3})
	case 9, 10:
		if free := w.free(); len(free) > 0 && w.movable(r) {
			w.counts["moved by the operator"]++
			w.move(adapt.Plan{Act: adapt.Act{Verb: VerbMove, Rank: r, From: w.at[r], To: free[w.rng.IntN(len(free))]}})
		}
	case 11:
		w.drained[h] = true
		w.true(Drain{Host: h, Ref: "op"})
		w.after(30*time.Second, Uncordon{h, "op"})
	case 12:
		w.true(StateSize{Rank: r, Bytes: 1e6 * float64(w.rng.IntN(200)), Taken: w.now, Copies: []string{w.at[r].Host, o}})
	case 13:
		if !w.lost[h] {
			w.true(LeadingFrom{h})
		}
	case 14:
		if h != o {
			w.drained[h], w.drained[o] = true, true
			w.true(Unreached{Pairs: [][2]string{{h, o}}, For: 4 * time.Second})
			w.after(30*time.Second, Uncordon{h, "op"})
			w.after(30*time.Second, Uncordon{o, "op"})
		}
	}
}

// true makes an input true, and tells the policy.
func (w *world) true(in Input) {
	switch in := in.(type) {
	case Uncordon:
		delete(w.drained, in.Host)
	case ProcessReady:
		if w.lost[in.Place.Host] {
			return
		}
		w.alive[in.Place] = true
	}
	w.step(in)
}

// step tells the policy, and does what it says.
func (w *world) step(in Input) {
	if w.queue = append(w.queue, in); w.telling {
		return
	}
	w.telling = true
	for len(w.queue) > 0 && !w.over {
		next := w.queue[0]
		w.queue = w.queue[1:]
		w.log = append(w.log, entry{w.now, next})
		acts := w.m.Step(w.now, next)
		w.did = append(w.did, acts)
		w.perform(acts)
	}
	w.telling = false
}

func (w *world) perform(acts []Action) {
	records := map[adapt.ID]Record{}
	for _, a := range acts {
		if t, ok := a.(Tell); ok {
			for _, p := range t.Record.Plans {
				records[p.ID] = t.Record
			}
		}
	}
	for i, a := range acts {
		switch a := a.(type) {
		case Do:
			rec, ok := records[a.Plan.ID]
			w.require(ok, "plan %d (%s) is in no record", a.Plan.ID, a.Plan.What)
			w.begin(a.Plan, rec)
		case Tell:
			w.counts["record"]++
			if a.Record.Measured != nil {
				w.counts["measured"]++
				w.require(slices.ContainsFunc(a.Record.Plans, func(p Planned) bool { return p.End == adapt.Finished }), "measured what was not carried out: %v", a.Record)
			}
			kind, _, _ := strings.Cut(a.Record.Chosen, ":")
			w.counts[kind]++
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
			w.hopeless(a.Reason)
			w.over = true
			w.require(i == len(acts)-1, "something is done after GiveUp")
		}
	}
}

// hopeless checks that the policy has given up for a reason.
func (w *world) hopeless(reason string) {
	switch {
	case strings.Contains(reason, "has its snapshot"):
		w.counts["no snapshot"]++
	case strings.Contains(reason, "no other host that is well has room"):
		w.counts["no room"]++
	case w.refuses && strings.Contains(reason, "plans to recover it were undone"):
	default:
		w.require(false, "given up without need: %s", reason)
	}
}

// begin checks a plan, and begins it.
func (w *world) begin(p adapt.Plan, rec Record) {
	w.plans[p.ID] = w.now.Add(2 * time.Minute)
	mv := p.Act
	if mv.Rank < 0 {
		w.other(p)
		return
	}
	known := w.m.Map() // what is true may be news, of which the policy is about to be told
	from, _ := known.Place(mv.Rank)
	w.require(from == mv.From, "%s: it is at %v", p.What, from)
	w.require(!slices.Contains(known.Places(), mv.To), "%s: others are there", p.What)
	w.require(!slices.ContainsFunc(w.moving, func(e *execution) bool {
		return e.plan.ID != 0 && (e.plan.Act.Rank == mv.Rank || e.plan.Act.To == mv.To)
	}), "%s: another plan has the rank, or its target", p.What)
	if mv.Verb == VerbMove {
		w.counts["alive"]++
	} else {
		w.counts["copied alive"]++
	}
	first := slices.IndexFunc(rec.Plans, func(q Planned) bool { return strings.Contains(q.What, fmt.Sprintf("rank %d ", mv.Rank)) })
	if rec.Verdict != CutOff && (mv.Verb == VerbMove || rec.Plans[first].ID == p.ID) { // who is cut off goes at once, and who is out must
		w.concerned(mv, rec)
		w.inBudget(mv)
	}
	switch {
	case w.refuses, w.at[mv.Rank] != mv.From, !slices.Contains(w.free(), mv.To), mv.Verb == VerbMove && !w.movable(mv.Rank):
		w.counts["refused at once"]++
		w.refused++
		w.require(w.refused <= 4*len(w.at), "the policy plans without end: %d plans at a moment for %d ranks", w.refused, len(w.at))
		w.ended(p, "it cannot begin")
	case mv.Verb == VerbAgain:
		w.wanted[mv.Rank] = p
		if w.alive[mv.From] {
			delete(w.alive, mv.From)
			w.out = append(w.out, mv.From)
		}
	default:
		w.move(p)
	}
}

// inBudget checks that a rank which need not move may.
func (w *world) inBudget(mv adapt.Act) {
	w.moves = append(w.moves, w.now)
	recent := slices.DeleteFunc(slices.Clone(w.moves), func(at time.Time) bool { return w.now.Sub(at) >= time.Minute })
	w.require(len(recent) <= w.cfg.MovesPerMinute, "%d moves within a minute", len(recent))
	if last, ok := w.moved[mv.Rank]; ok {
		w.require(w.now.Sub(last) >= 30*time.Second, "rank %d moves again after %v", mv.Rank, w.now.Sub(last))
	}
}

// other begins a plan that moves no rank.
func (w *world) other(p adapt.Plan) {
	e := &execution{plan: p, end: w.now.Add(time.Duration(w.rng.IntN(2000)) * time.Millisecond), ok: w.rng.IntN(5) > 0}
	if p.Act.Verb == VerbSwitch {
		w.counts["another path"]++
	}
	w.moving = append(w.moving, e)
}

// movable says whether a rank can leave its process alive.
func (w *world) movable(r topology.Rank) bool {
	return w.alive[w.at[r]] && !w.underWay(func(a adapt.Act) bool { return a.Rank == r })
}

func (w *world) move(p adapt.Plan) {
	e := &execution{plan: p, end: w.now.Add(time.Duration(w.rng.IntN(3000)) * time.Millisecond), ok: w.rng.IntN(8) > 0, came: w.rng.IntN(3) == 0}
	if w.rng.IntN(20) == 0 {
		e.end, e.ok = w.now.Add(10*time.Second), false // no safe point
	}
	w.moving = append(w.moving, e)
}

// ended tells the policy how a plan ended: that it came to nothing a moment later, or it would hear of nothing else.
func (w *world) ended(p adapt.Plan, why string) {
	if p.ID == 0 {
		return
	}
	in := PlanEnded{ID: p.ID, Outcome: adapt.Outcome{End: adapt.Finished, Why: why}}
	if why != "" {
		in.Outcome.End = adapt.Undone
	}
	w.counts[string(in.Outcome.End)]++
	delete(w.plans, p.ID)
	if why != "" {
		w.later = append(w.later, timed{w.now, in})
		return
	}
	w.step(in)
	if w.rng.IntN(20) == 0 {
		w.counts["repeated"]++
		w.step(in)
	}
}

// execute ends what is due.
func (w *world) execute() {
	for _, e := range slices.Clone(w.moving) {
		i := slices.Index(w.moving, e)
		if i < 0 || e.end.After(w.now) {
			continue
		}
		w.moving = slices.Delete(w.moving, i, i+1)
		if !e.ok {
			w.ended(e.plan, "it does not work")
			continue
		}
		switch act := e.plan.Act; act.Verb {
		case VerbMove:
			w.at[act.Rank] = act.To
			w.ended(e.plan, "")
			if e.plan.ID == 0 {
				w.step(Placed{[]Seat{{act.Rank, act.To}}})
			} else {
				w.moved[act.Rank] = w.now
			}
		case VerbAdd:
			w.counts["added"]++
			delete(w.lost, act.To.Host)
			w.step(w.joined[act.To.Host])
			w.true(ProcessReady{w.slot(act.To.Host)})
			w.ended(e.plan, "")
		default:
			w.ended(e.plan, "")
		}
	}
}

func (w *world) kill(p topology.Place, why Loss) {
	if w.alive[p] {
		delete(w.alive, p)
		w.strand(p, why)
	}
}

// strand has the ranks of a process that is lost wait for another. A move that it takes part in is broken, and its other
// end lost too.
func (w *world) strand(p topology.Place, why Loss) {
	w.gone = append(w.gone, ProcessLost{p, why})
	for _, e := range slices.Clone(w.moving) {
		act := e.plan.Act
		if act.Verb != VerbMove || act.From != p && act.To != p {
			continue
		}
		w.counts["broken"]++
		w.moving = slices.DeleteFunc(w.moving, func(o *execution) bool { return o == e })
		if _, wanted := w.wanted[act.Rank]; e.came && !wanted {
			w.at[act.Rank] = act.To
			w.step(Placed{[]Seat{{act.Rank, act.To}}})
		}
		w.ended(e.plan, "a process that takes part has died")
		w.kill(act.From, Killed)
		w.kill(act.To, Killed)
	}
}

func (w *world) loseHost(h string) {
	if w.lost[h] || w.cfg.Level == Moves && slices.ContainsFunc(w.at, func(p topology.Place) bool { return p.Host == h }) ||
		w.underWay(func(a adapt.Act) bool { return w.cfg.Level == Moves && a.To.Host == h }) {
		return // or the job ends
	}
	w.counts["lost host"]++
	w.lost[h] = true
	for _, p := range w.processes() {
		if p.Host == h {
			w.kill(p, Cut)
		}
	}
	w.after(30*time.Second, AddHost{h, "op"})
}

// goOn has the ranks of all that is lost go on, when there is a process for each and its state has come there, and
// starts other spares.
func (w *world) goOn() {
	for _, p := range w.out {
		w.strand(p, Hung)
	}
	w.out = nil
	if len(w.gone) > 0 && w.rng.IntN(3) > 0 {
		free := w.free()
		var placed Placed
		var done, elsewhere []adapt.Plan
		for _, g := range w.gone {
			for _, r := range w.ranksAt(g.Place) {
				p, wanted := w.wanted[r]
				i := slices.Index(free, p.Act.To)
				if i < 0 {
					i = slices.IndexFunc(free, func(p topology.Place) bool { return w.m.Takes(p.Host) })
				}
				if i = max(i, 0); len(free) == 0 {
					w.over = w.spares == 0 || !slices.ContainsFunc(w.names, func(h string) bool { return !w.lost[h] }) // else one is started
					return
				}
				placed.Ranks = append(placed.Ranks, Seat{r, free[i]})
				if wanted && free[i] == p.Act.To {
					done = append(done, p)
				} else if wanted {
					elsewhere = append(elsewhere, p)
				}
				free = slices.Delete(free, i, i+1)
			}
		}
		gone := w.gone
		w.gone = nil
		for r, p := range w.wanted {
			if !slices.ContainsFunc(placed.Ranks, func(s Seat) bool { return s.Rank == r }) {
				elsewhere = append(elsewhere, p) // a move of the operator's was faster
			}
		}
		slices.SortFunc(elsewhere, func(a, b adapt.Plan) int { return int(a.ID) - int(b.ID) })
		clear(w.wanted)
		for _, s := range placed.Ranks {
			w.counts["revived"]++
			w.at[s.Rank] = s.At
		}
		for _, p := range done {
			w.ended(p, "")
		}
		w.step(placed)
		for _, p := range elsewhere {
			w.counts["elsewhere"]++
			w.ended(p, "it could not go there")
		}
		for _, g := range gone {
			w.step(g)
		}
	}
	if len(w.gone) == 0 {
		for _, h := range w.names {
			if w.lost[h] && w.m.hosts[h].joined {
				w.step(HostLost{h})
			}
		}
	}
	var able []string
	for _, h := range w.names {
		if !w.lost[h] {
			able = append(able, h)
		}
	}
	starting := 0
	for _, l := range w.later {
		if _, ok := l.in.(ProcessReady); ok {
			starting++
		}
	}
	need := 0
	for _, g := range w.gone {
		need += len(w.ranksAt(g.Place))
	}
	if w.spares > 0 && w.cfg.Level == Crashes && len(able) > 0 && len(w.free())+starting < max(w.spares, need) {
		w.after(2*time.Second, ProcessReady{w.slot(able[w.rng.IntN(len(able))])})
	}
}

// concerned checks that a living rank which moves is one that the trouble, or an order, is about.
func (w *world) concerned(mv adapt.Act, rec Record) {
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
		w.require(w.drained[from], "nobody wants rank %d to move: %+v", mv.Rank, rec)
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
func (w *world) shares(mv adapt.Act) bool {
	n := 0
	for _, p := range w.at {
		if p == mv.From {
			n++
		}
	}
	return n > 1
}
