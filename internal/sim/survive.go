package sim

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// A SurviveTally counts what happened in runs of Survive.
type SurviveTally struct {
	Steps, Iterations, Cuts, Snapshots, Covered, Moves, Undone, Kills, Leaving, Together, Recoveries, FromStart, Replayed, Overtaken, Spilled int
	Testified, Lost, Unknown                                                                                                                  int // of hosts
	Tasks                                                                                                                                     int // that were over
	Returned, Delivered, Withdrawn, Received                                                                                                  int // rumours whose sends were taken back or not, and whose receives were
	Pressed                                                                                                                                   int // processes that had to know of a move
	Drafts, Spared                                                                                                                            int // snapshots whose log was put in later, and those of which some was covered by then
}

// Unsteady is Survive at level Crashes of a program whose messages hang on chance. The
// error is nil if no life was compared with another in which it came out differently.
func Unsteady(seed uint64, tally *SurviveTally) error {
	s := newSurvival(seed, Crashes, true)
	defer s.close()
	err := s.run()
	*tally = sum(*tally, s.tally)
	return err
}

// Level is what ranks survive in a run of Survive.
type Level uint8

const (
	Moves   Level = iota // live moves, and cut connections
	Crashes              // also the end of processes
)

// Survive runs a program whose every message depends on all that came before, while
// its ranks are moved, and at level Crashes killed, at random; several at once. It
// checks that each rank ends with the same bits as in a run without faults.
func Survive(seed uint64, level Level, tally *SurviveTally) error {
	return newSurvival(seed, level, false).job(tally)
}

// Patient is Survive where most processes are told of a move only when a process says that
// they have to know; of those that share memory with the one that the rank leaves, all are
// told.
func Patient(seed uint64, level Level, tally *SurviveTally) error {
	s := newSurvival(seed, level, false)
	s.patient = rand.New(rand.NewPCG(seed, 2))
	return s.job(tally)
}

// job runs it to its end.
func (s *survival) job(tally *SurviveTally) error {
	defer s.close()
	err := s.run()
	*tally = sum(*tally, s.tally)
	if err != nil {
		return fmt.Errorf("seed %d, step %d: %w", s.seed, s.tally.Steps, err)
	}
	return nil
}

func sum(a, b SurviveTally) SurviveTally {
	return SurviveTally{a.Steps + b.Steps, a.Iterations + b.Iterations, a.Cuts + b.Cuts, a.Snapshots + b.Snapshots, a.Covered + b.Covered, a.Moves + b.Moves,
		a.Undone + b.Undone, a.Kills + b.Kills, a.Leaving + b.Leaving, a.Together + b.Together, a.Recoveries + b.Recoveries, a.FromStart + b.FromStart, a.Replayed + b.Replayed, a.Overtaken + b.Overtaken, a.Spilled + b.Spilled,
		a.Testified + b.Testified, a.Lost + b.Lost, a.Unknown + b.Unknown, a.Tasks + b.Tasks, a.Returned + b.Returned, a.Delivered + b.Delivered, a.Withdrawn + b.Withdrawn, a.Received + b.Received,
		a.Pressed + b.Pressed, a.Drafts + b.Drafts, a.Spared + b.Spared}
}

const (
	surviveSteps = 600_000
	lives        = 60 // processes that a job may come to have
	spillFrom    = 2 << 10
)

// A spill is memory in which whoever uses what was given back finds other bytes.
type spill struct{ s *survival }

func (p spill) Take(n int) []byte {
	p.s.tally.Spilled++
	return make([]byte, n)
}

func (p spill) Give(b []byte) {
	for i := range b[:cap(b)] {
		b[:cap(b)][i] = 0xee
	}
}

func (p spill) Full() bool { return false }

// A survival is one job.
type survival struct {
	seed      uint64
	rng       *rand.Rand
	level     Level
	shared    bool              // connections are stable
	unsteady  bool              // ranks throw dice, and nobody records that
	wild      bool              // ranks receive from anybody, and throw dice: the choices are recorded
	choices   [][]engine.Choice // by rank: since its last snapshot
	sent      map[[3]int]uint64 // in a wild run: what was sent first, by iteration, rank and number
	hosts     []*host           // in some wild runs; nil: there is one
	madeOn    [][]int           // by rank: the host on which each of its choices was made
	known     []int             // by rank: so many of them are known elsewhere, too
	mail      map[mail][]uint64
	came      map[mail][]uint64
	whims     *rand.Rand // draws when what is taken back; nil: nothing is
	unhears   bool       // receives are, in a wild run; otherwise sends
	tasked    bool       // ranks have tasks
	told      map[rumour]saying
	heard     map[rumour]rumour
	tired     map[engine.Match]topology.Rank // calls that were abandoned, and by whom
	network   *mem.Network
	narrow    bool
	last      int        // iteration
	want      [][]uint64 // by iteration and rank
	first     [][]topology.Rank
	engines   []*engine.Engine // by process; nil: not yet, or no more
	places    []int            // by rank: its process
	epoch     topology.Epoch
	ranks     []*worker
	dials     []*dial
	greets    []accepted
	notices   [][]notice           // by process: what it has not been told yet
	pressed   []bool               // by process: it has to know all of that
	patient   *rand.Rand           // draws who can wait to be told of a move; nil: all are told sometime
	snapshots []snapshot           // by rank: the last that is durable
	counts    map[[2]int][2]uint64 // by process and peer: messages sent and received
	quiet     bool
	fail      error
	tally     SurviveTally
}

// A notice is what a process is to be told of a map.
type notice struct {
	tell  func(e *engine.Engine)
	waits bool // until the process is pressed, or is to be told something else
}

type accepted struct {
	process int
	greet   *engine.Greeter
}

// A snapshot is a capsule, and the state of the program.
type snapshot struct {
	capsule   []byte
	iteration int
	acc       uint64
}

// halfway is for some seeds: one in four of their messages is half there for a while.
func halfway(seed uint64) func() bool {
	if r := seed % 5; r != 1 && r != 4 { // seeds that have failed before, without, are among the others
		return nil
	}
	chance := rand.New(rand.NewPCG(seed, 2))
	return func() bool { return chance.IntN(4) == 0 }
}

// lends tells whether the network of a seed lends what lasts.
func lends(seed uint64) bool { return seed%3 == 2 }

// wide is a network that takes all that comes. Of some seeds every other connection takes longer
// bodies, and lends where the others do not: what was sent over one kind is sent again over the other.
func wide(seed uint64) mem.Options {
	o := mem.Options{Depth: 8, MaxBody: 32 << 10, Lends: lends(seed), Halfway: halfway(seed)}
	if seed%4 == 1 {
		other := o
		other.MaxBody, other.Lends = 128<<10, !o.Lends
		o.Other = &other
	}
	return o
}

// networkOf is the network of a seed. Some are narrow: a long body is on its way for much of
// an iteration, and those who have to do something with it get to do it sooner.
func (s *survival) networkOf(seed uint64) mem.Options {
	s.narrow = seed%10 == 3 || seed%10 == 5
	if s.narrow {
		return mem.Options{Depth: 8, Bulk: 1, MaxBody: 32 << 10, Lends: lends(seed), Late: late(seed)}
	}
	return wide(seed)
}

// late has seven of eight looks at a connection find nothing more of a long body.
func late(seed uint64) func() bool {
	chance := rand.New(rand.NewPCG(seed, 3))
	return func() bool { return chance.IntN(8) > 0 }
}

func newSurvival(seed uint64, level Level, unsteady bool) *survival {
	s := &survival{seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), level: level, epoch: 1, last: 10}
	s.network = mem.NewNetwork(s.networkOf(seed))
	s.shared = s.rng.IntN(2) == 0
	s.wild = level == Crashes && s.rng.IntN(2) == 0 && !unsteady
	s.unsteady = unsteady
	s.sent = make(map[[3]int]uint64)
	s.counts = make(map[[2]int][2]uint64)
	if r := seed % 7; !unsteady && (level == Moves || s.wild) && (r == 3 || r == 4 || r == 6) { // seeds that have failed before, without, are among the others
		s.whims, s.unhears = rand.New(rand.NewPCG(seed, 4)), r == 4
		s.told, s.heard, s.tired = map[rumour]saying{}, map[rumour]rumour{}, map[engine.Match]topology.Rank{}
	}
	s.tasked = s.wild && seed%4 == 2
	n := 2 + s.rng.IntN(4)
	for r := range n {
		s.first = append(s.first, []topology.Rank{topology.Rank(r)})
		s.places = append(s.places, r)
	}
	s.want = undisturbed(seed, n, s.last)
	s.engines = make([]*engine.Engine, lives)
	s.notices, s.pressed = make([][]notice, lives), make([]bool, lives)
	s.snapshots = make([]snapshot, n)
	s.choices = make([][]engine.Choice, n)
	if s.wild && n > 2 && s.rng.IntN(2) == 0 {
		s.hosts, s.madeOn, s.known = make([]*host, 2+s.rng.IntN(2)), make([][]int, n), make([]int, n)
		for i := range s.hosts {
			s.hosts[i] = &host{index: i}
		}
		s.mail, s.came = map[mail][]uint64{}, map[mail][]uint64{}
	}
	for r := range n {
		e := s.start(r)
		w := &worker{rank: topology.Rank(r), box: e.Box(topology.Rank(r))}
		s.ranks = append(s.ranks, w)
		if r := s.recording(w, engine.Counts{}); r != nil {
			w.box.Record(*r)
		}
		s.begin(w)
	}
	return s
}

func (s *survival) close() {
	for _, e := range s.engines {
		if e != nil {
			e.Close()
		}
	}
}

// whole is the newest map that has been settled with all before it.
func (s *survival) whole() topology.Epoch {
	n := s.epoch
	for _, w := range s.ranks {
		if w.leaving != nil {
			n = min(n, w.by-1)
		}
	}
	return n
}

// start makes the engine of a process. It knows where the ranks are, and by which map
// but for the last it will be told.
func (s *survival) start(process int) *engine.Engine {
	cfg := engine.Config{
		Process: process, Processes: s.first, Epoch: max(s.whole()-1, 1), Room: lives - len(s.first), Keep: true, Replay: s.level == Crashes, Recorded: 32 << 10, Stepped: true,
		LogBytes: logBytes, Spill: spill{s}, Unexpected: 32 << 10,
		Connect: func(to int) { s.dials = append(s.dials, &dial{from: process, to: to}) },
		Fail:    func(err error) { s.fail = fmt.Errorf("process %d: %w", process, err) },
		Behind:  s.behind,
	}
	if cfg.Replay {
		cfg.LogBytes = spillFrom
	}
	if s.hosts != nil {
		cfg.Witness = s.hostOf(process)
	}
	e := engine.New(cfg)
	if s.hosts != nil {
		s.settle(process, e)
	}
	s.engines[process] = e
	s.notices[process] = nil
	var moved []engine.Placement
	for r, at := range s.places {
		if at != process && at != r {
			moved = append(moved, engine.Placement{Rank: topology.Rank(r), Process: at})
		}
	}
	e.Place(max(s.whole()-1, 1), moved...)
	for n := s.whole(); n <= s.epoch; n++ {
		if n > 1 && !slices.ContainsFunc(s.ranks, func(w *worker) bool { return w.leaving != nil && w.by == n }) {
			s.notices[process] = append(s.notices[process], notice{tell: func(e *engine.Engine) { e.Place(n) }})
		}
	}
	return e
}

func (s *survival) run() error {
	for ; !s.over(); s.tally.Steps++ {
		if s.tally.Steps > surviveSteps {
			return fmt.Errorf("not over after %d steps: %s", surviveSteps, s.stuck())
		}
		s.quiet = s.tally.Steps > surviveSteps/8
		if err := s.step(); err != nil {
			return err
		}
		if s.fail != nil {
			return s.fail
		}
	}
	if err := s.agree(); err != nil {
		return err
	}
	if err := s.learn(); err != nil {
		return err
	}
	if err := s.believe(); err != nil {
		return err
	}
	return s.nothingLeft()
}

// nothingLeft is an error if a message is here that has been received already. Rumours may be
// left, as who was to receive them may have taken that back.
func (s *survival) nothingLeft() error {
	for _, w := range s.ranks {
		for _, m := range w.box.Unreceived() {
			if m.Context != rumours {
				return fmt.Errorf("rank %d has received all that was for it, and there is another message: %+v", w.rank, m)
			}
		}
	}
	return nil
}

func (s *survival) over() bool {
	for _, w := range s.ranks {
		if w.box == nil || w.iteration < s.last {
			return false
		}
	}
	return true
}

func (s *survival) stuck() string {
	var b bytes.Buffer
	for r, w := range s.ranks {
		open := 0
		for _, o := range w.sends {
			if !o.done {
				open++
			}
		}
		fmt.Fprintf(&b, "rank %d in process %d: iteration %d, %d sends and %v open%s; ", r, s.places[r], w.iteration, open, w.missing(), w.gossip)
	}
	return b.String()
}

func (s *survival) step() error {
	switch s.rng.IntN(16) {
	case 0, 1, 2, 3, 4:
		return s.work(s.ranks[s.rng.IntN(len(s.ranks))])
	case 5, 6, 7, 8:
		p := s.rng.IntN(s.processes())
		for try := 0; s.narrow && s.engines[p] == nil && try < lives; try++ { // another, if there is one
			p = s.rng.IntN(s.processes())
		}
		if e := s.engines[p]; e != nil {
			e.Progress()
			if err := s.count(p, e); err != nil {
				return err
			}
		}
		if s.hosts != nil && s.rng.IntN(30) == 0 {
			s.testify(s.hosts[s.rng.IntN(len(s.hosts))])
		}
	case 9, 10:
		p := s.rng.IntN(s.processes())
		if e := s.engines[p]; e != nil && s.tellable(p) {
			n := s.notices[p][0]
			s.notices[p] = s.notices[p][1:]
			s.pressed[p] = s.pressed[p] && len(s.notices[p]) > 0
			n.tell(e)
		}
	case 11:
		s.fault()
	case 12:
		w := s.ranks[s.rng.IntN(len(s.ranks))]
		if w.draft != nil && w.box != nil && s.rng.IntN(4) == 0 { // sometime, as its receivers are saved meanwhile
			left := 0
			for _, to := range w.draft.Logged(nil) {
				left += to.Bytes
			}
			if s.tally.Drafts++; left < w.logged {
				s.tally.Spared++
			}
			w.pending.capsule = w.finish()
		} else if w.pending != nil && w.draft == nil && w.box != nil && s.rng.IntN(4) == 0 {
			s.snapshots[w.rank] = *w.pending
			w.box.Covered(w.taken)
			w.pending, w.taken = nil, nil
			s.tally.Covered++
		}
	default:
		s.connect()
	}
	return nil
}

// count sees to it that what process p has counted of its messages only grows, whichever ranks
// came and went meanwhile.
func (s *survival) count(p int, e *engine.Engine) error {
	for q := range s.processes() {
		if q == p {
			continue
		}
		sent, got := e.Traffic(q)
		now := [2]uint64{sent.Messages, got.Messages}
		for i, before := range s.counts[[2]int{p, q}] {
			if now[i] < before || now[i] > before+1<<40 {
				return fmt.Errorf("process %d has counted %d messages sent to process %d and received from it, and %d before", p, now, q, s.counts[[2]int{p, q}])
			}
		}
		s.counts[[2]int{p, q}] = now
	}
	return nil
}

// processes is how many there have been.
func (s *survival) processes() int {
	n := len(s.first)
	for n < lives && s.engines[n] != nil {
		n++
	}
	most := 0
	for i, e := range s.engines {
		if e != nil {
			most = i + 1
		}
	}
	return max(n, most)
}

// spare is a process that there has not been yet; -1 if there is none.
func (s *survival) spare() int {
	n := s.processes()
	for _, at := range s.places {
		n = max(n, at+1)
	}
	if n >= lives {
		return -1
	}
	return n
}

// enough tells whether few processes are left, so that there must be no more faults.
func (s *survival) enough() bool { return s.quiet || s.spare() < 0 || s.spare() > lives-len(s.ranks)-4 }

func (s *survival) fault() {
	if s.enough() || s.rng.IntN(20) != 0 {
		return
	}
	if !s.shared && s.rng.IntN(2) == 0 {
		if s.network.Cut(s.rng.IntN) {
			s.tally.Cuts++
		}
		return
	}
	if s.level < Crashes || s.rng.IntN(3) > 0 {
		return
	}
	if s.hosts != nil && s.rng.IntN(2) == 0 {
		if lives-s.spare() > 2*len(s.ranks)+4 {
			s.lose(s.hosts[s.rng.IntN(len(s.hosts))])
		}
		return
	}
	dead := 0
	for range 1 + s.rng.IntN(2) {
		w := s.ranks[s.rng.IntN(len(s.ranks))]
		if w.box == nil || s.spare() < 0 {
			continue
		}
		s.kill(w)
		dead++
	}
	if dead > 1 {
		s.tally.Together++
	}
}

// kill ends the process of a rank.
func (s *survival) kill(w *worker) {
	if w.leaving != nil {
		s.nothing(w.by)
		s.tally.Leaving++
	}
	s.engines[s.places[w.rank]].Close()
	s.engines[s.places[w.rank]] = nil
	*w = worker{rank: w.rank}
	s.tally.Kills++
}

// recover has a dead rank go on from its last snapshot in a new process.
func (s *survival) recover(w *worker) error {
	old, to := s.places[w.rank], s.spare()
	snap := s.snapshots[w.rank]
	if s.hosts != nil && s.hostOf(to) != s.hostOf(old) { // what it takes along hangs on what its neighbours chose
		s.testify(s.hostOf(old))
	}
	s.epoch++
	s.places[w.rank] = to
	e := s.start(to)
	c := &engine.Capsule{Rank: w.rank}
	if snap.capsule == nil {
		s.tally.FromStart++
	} else {
		var err error
		if c, err = engine.ParseCapsule(bytes.Clone(snap.capsule)); err != nil {
			return err
		}
	}
	b, err := e.Adopt(c, s.epoch, s.recording(w, engine.Counts{}))
	if err != nil {
		return err
	}
	w.box, w.iteration, w.acc = b, snap.iteration, snap.acc
	s.tally.Replayed += len(s.choices[w.rank])
	s.begin(w)
	s.tally.Recoveries++
	s.tell(s.epoch, to, w.rank, old, true)
	return nil
}

// tell has every other process told where rank r is by a map, sometime.
func (s *survival) tell(epoch topology.Epoch, to int, r topology.Rank, old int, lost bool) {
	for p, e := range s.engines {
		if e != nil && p != to {
			waits := s.patient != nil && !s.shared && !lost && p != old && s.patient.IntN(4) > 0
			s.notices[p] = append(s.notices[p], notice{waits: waits, tell: func(e *engine.Engine) {
				if lost {
					e.Fence(old)
				}
				e.Place(epoch, engine.Placement{Rank: r, Process: to, Lost: lost})
			}})
		}
	}
}

// tellable tells whether a process is to be told what it has not been told yet.
func (s *survival) tellable(p int) bool {
	return s.pressed[p] && len(s.notices[p]) > 0 || slices.ContainsFunc(s.notices[p], func(n notice) bool { return !n.waits })
}

// behind is told that a process has to know a map, which may be that of a move under way.
func (s *survival) behind(p int) {
	if s.pressed[p] = len(s.notices[p]) > 0 || slices.ContainsFunc(s.ranks, func(w *worker) bool { return w.leaving != nil }); s.pressed[p] {
		s.tally.Pressed++
	}
}

// nothing has every process told that the map of that epoch is the one before it.
func (s *survival) nothing(epoch topology.Epoch) {
	for p, e := range s.engines {
		if e != nil {
			s.notices[p] = append(s.notices[p], notice{tell: func(e *engine.Engine) { e.Place(epoch) }})
		}
	}
}

// connect takes one step of making a connection.
func (s *survival) connect() {
	if n := len(s.greets); n > 0 && s.rng.IntN(2) == 0 {
		i := s.rng.IntN(n)
		g := s.greets[i]
		if s.engines[g.process] == nil {
			s.greets = append(s.greets[:i], s.greets[i+1:]...)
		} else if done, _ := g.greet.Poll(); done {
			s.greets = append(s.greets[:i], s.greets[i+1:]...)
		}
		return
	}
	if len(s.dials) == 0 {
		return
	}
	i := s.rng.IntN(len(s.dials))
	d := s.dials[i]
	e := s.engines[d.from]
	if e == nil {
		s.dials = append(s.dials[:i], s.dials[i+1:]...)
		return
	}
	if d.greet == nil {
		if s.engines[d.to] == nil {
			if _, ok := e.Dial(d.to, 0); !ok {
				s.dials = append(s.dials[:i], s.dials[i+1:]...)
			}
			return // and again
		}
		generation, ok := e.Dial(d.to, 0)
		if !ok {
			s.dials = append(s.dials[:i], s.dials[i+1:]...)
			return
		}
		d.with = generation
		if s.shared {
			there, here := s.network.SharedPipe("mem:a", "mem:b")
			d.greet = e.Greet(here, true)
			d.greet.Expect(d.to)
			s.greets = append(s.greets, accepted{d.to, s.engines[d.to].Greet(there, false)})
		} else {
			there, here := s.network.Pipe("mem:a", "mem:b")
			d.greet = e.Greet(here, true)
			d.greet.Expect(d.to)
			s.greets = append(s.greets, accepted{d.to, s.engines[d.to].Greet(there, false)})
		}
		d.greet.Take(generation) // if it is cut already, Poll says so
		return
	}
	done, err := d.greet.Poll()
	if !done {
		return
	}
	if e.EndDial(d.to, d.with) || err == nil {
		s.dials = append(s.dials[:i], s.dials[i+1:]...)
	} else {
		d.greet = nil // and again
	}
}
