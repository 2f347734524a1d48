package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// A SurviveTally counts what happened in runs of Survive.
type SurviveTally struct {
	Steps, Iterations, Cuts, Snapshots, Covered, Moves, Undone, Kills, Leaving, Together, Recoveries, FromStart, Replayed, Overtaken int
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
	s := newSurvival(seed, level, false)
	defer s.close()
	err := s.run()
	*tally = sum(*tally, s.tally)
	if err != nil {
		return fmt.Errorf("seed %d, step %d: %w", seed, s.tally.Steps, err)
	}
	return nil
}

func sum(a, b SurviveTally) SurviveTally {
	return SurviveTally{a.Steps + b.Steps, a.Iterations + b.Iterations, a.Cuts + b.Cuts, a.Snapshots + b.Snapshots, a.Covered + b.Covered, a.Moves + b.Moves,
		a.Undone + b.Undone, a.Kills + b.Kills, a.Leaving + b.Leaving, a.Together + b.Together, a.Recoveries + b.Recoveries, a.FromStart + b.FromStart, a.Replayed + b.Replayed, a.Overtaken + b.Overtaken}
}

const (
	surviveSteps = 600_000
	lives        = 60 // processes that a job may come to have
)

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
	network   *mem.Network
	last      int        // iteration
	want      [][]uint64 // by iteration and rank
	first     [][]topology.Rank
	engines   []*engine.Engine // by process; nil: not yet, or no more
	places    []int            // by rank: its process
	epoch     topology.Epoch
	ranks     []*worker
	dials     []*dial
	greets    []accepted
	notices   [][]func(e *engine.Engine) // by process: what it has not been told yet
	snapshots []snapshot                 // by rank: the last that is durable
	quiet     bool
	fail      error
	tally     SurviveTally
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

// A worker is a rank: a program in steps.
type worker struct {
	rank      topology.Rank
	box       *engine.Box // nil: dead, or on its way
	iteration int
	acc       uint64

	at       bool // at a safe point
	sends    []outgoing
	receives []arriving
	begun    int       // of sends
	posted   int       // of receives
	pending  *snapshot // taken, not durable yet
	taken    *engine.Capsule
	leaving  *engine.Departure
	by       topology.Epoch // leaving: the map by which it will be elsewhere
}

type outgoing struct {
	m    engine.Match
	mode engine.Mode
	body []byte
	r    engine.Request
	done bool
}

type arriving struct {
	m    engine.Match
	buf  []byte
	size int
	r    engine.Request
	done bool
}

func newSurvival(seed uint64, level Level, unsteady bool) *survival {
	s := &survival{seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), level: level, epoch: 1, last: 10}
	s.network = mem.NewNetwork(mem.Options{Depth: 8, MaxBody: 32 << 10})
	s.shared = s.rng.IntN(2) == 0
	s.wild = level == Crashes && s.rng.IntN(2) == 0 && !unsteady
	s.unsteady = unsteady
	s.sent = make(map[[3]int]uint64)
	n := 2 + s.rng.IntN(4)
	for r := range n {
		s.first = append(s.first, []topology.Rank{topology.Rank(r)})
		s.places = append(s.places, r)
	}
	s.want = undisturbed(seed, n, s.last)
	s.engines = make([]*engine.Engine, lives)
	s.notices = make([][]func(*engine.Engine), lives)
	s.snapshots = make([]snapshot, n)
	s.choices = make([][]engine.Choice, n)
	for r := range n {
		e := s.start(r)
		w := &worker{rank: topology.Rank(r), box: e.Box(topology.Rank(r))}
		s.ranks = append(s.ranks, w)
		s.record(w, nil, 0, 0)
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
		Process: process, Processes: s.first, Epoch: max(s.whole()-1, 1), Room: lives - len(s.first), Keep: true, Replay: s.level == Crashes, Stepped: true,
		LogBytes: logBytes, Unexpected: 32 << 10,
		Connect: func(to int) { s.dials = append(s.dials, &dial{from: process, to: to}) },
		Fail:    func(err error) { s.fail = fmt.Errorf("process %d: %w", process, err) },
	}
	e := engine.New(cfg)
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
			s.notices[process] = append(s.notices[process], func(e *engine.Engine) { e.Place(n) })
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
		fmt.Fprintf(&b, "rank %d in process %d: iteration %d, %d sends and %v open; ", r, s.places[r], w.iteration, open, w.missing())
	}
	return b.String()
}

func (w *worker) missing() (all []engine.Match) {
	for _, o := range w.receives {
		if !o.done {
			all = append(all, o.m)
		}
	}
	return all
}

func (s *survival) step() error {
	switch s.rng.IntN(16) {
	case 0, 1, 2, 3, 4:
		return s.work(s.ranks[s.rng.IntN(len(s.ranks))])
	case 5, 6, 7, 8:
		if e := s.engines[s.rng.IntN(s.processes())]; e != nil {
			e.Progress()
		}
	case 9, 10:
		p := s.rng.IntN(s.processes())
		if e := s.engines[p]; e != nil && len(s.notices[p]) > 0 {
			f := s.notices[p][0]
			s.notices[p] = s.notices[p][1:]
			f(e)
		}
	case 11:
		return s.fault()
	case 12:
		w := s.ranks[s.rng.IntN(len(s.ranks))]
		if w.pending != nil && w.box != nil && s.rng.IntN(4) == 0 {
			s.snapshots[w.rank] = *w.pending
			w.box.Covered(w.taken)
			w.pending, w.taken = nil, nil
			s.tally.Covered++
		}
	default:
		return s.connect()
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

func (s *survival) fault() error {
	if s.enough() || s.rng.IntN(20) != 0 {
		return nil
	}
	if !s.shared && s.rng.IntN(2) == 0 {
		if s.network.Cut(s.rng.IntN) {
			s.tally.Cuts++
		}
		return nil
	}
	if s.level < Crashes || s.rng.IntN(3) > 0 {
		return nil
	}
	dead := 0
	for range 1 + s.rng.IntN(2) {
		w := s.ranks[s.rng.IntN(len(s.ranks))]
		if w.box == nil || s.spare() < 0 {
			continue
		}
		if w.leaving != nil {
			s.nothing(w.by)
			s.tally.Leaving++
		}
		s.engines[s.places[w.rank]].Close()
		s.engines[s.places[w.rank]] = nil
		*w = worker{rank: w.rank}
		s.tally.Kills++
		dead++
	}
	if dead > 1 {
		s.tally.Together++
	}
	return nil
}

// recover has a dead rank go on from its last snapshot in a new process.
func (s *survival) recover(w *worker) error {
	old, to := s.places[w.rank], s.spare()
	snap := s.snapshots[w.rank]
	s.epoch++
	s.places[w.rank] = to
	e := s.start(to)
	c := &engine.Capsule{Rank: w.rank}
	if snap.capsule == nil {
		s.tally.FromStart++
	} else {
		var err error
		if c, err = engine.ParseCapsule(snap.capsule); err != nil {
			return err
		}
	}
	b, err := e.Adopt(c, s.epoch)
	if err != nil {
		return err
	}
	w.box, w.iteration, w.acc = b, snap.iteration, snap.acc
	s.record(w, slices.Clone(s.choices[w.rank]), 0, 0)
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
			s.notices[p] = append(s.notices[p], func(e *engine.Engine) {
				if lost {
					e.Fence(old)
				}
				e.Place(epoch, engine.Placement{Rank: r, Process: to, Lost: lost})
			})
		}
	}
}

// nothing has every process told that the map of that epoch is the one before it.
func (s *survival) nothing(epoch topology.Epoch) {
	for p, e := range s.engines {
		if e != nil {
			s.notices[p] = append(s.notices[p], func(e *engine.Engine) { e.Place(epoch) })
		}
	}
}

// work does one thing of a rank.
func (s *survival) work(w *worker) error {
	switch {
	case w.box == nil:
		if s.spare() >= 0 && s.rng.IntN(8) == 0 {
			return s.recover(w)
		}
		return nil
	case w.leaving != nil:
		return s.leave(w)
	case w.iteration >= s.last:
		return nil
	case w.at:
		if moved, err := s.safePoint(w); moved || err != nil {
			return err
		}
	}
	if w.at && s.unsteady {
		w.acc += uint64(s.rng.IntN(3))
		for i := range w.sends {
			o := &w.sends[i]
			o.body = text(w.acc, int(o.m.Peer), int(o.m.Tag), len(o.body))
		}
	}
	if w.at && s.wild {
		w.acc += s.dice(w)
		for i := range w.sends { // what is sent hangs on the dice
			o := &w.sends[i]
			o.body = text(w.acc, int(o.m.Peer), int(o.m.Tag), len(o.body))
			o.m.Tag = int32(w.iteration) // so that nobody's next iteration takes the place of this one's
		}
	}
	w.at = false
	return s.progress(w)
}

// safePoint takes a snapshot, or begins to move.
func (s *survival) safePoint(w *worker) (moved bool, err error) {
	if s.enough() {
		return false, nil
	}
	switch s.rng.IntN(6) {
	case 0:
		if s.spare() < 0 {
			return false, nil
		}
		d, err := w.box.BeginDepart()
		if err != nil {
			return false, err
		}
		s.epoch++
		w.leaving, w.by = &d, s.epoch
		return true, nil
	case 1, 2:
		if s.level < Crashes || w.box.Replaying() {
			return false, nil
		}
		c, err := w.box.Capture()
		if err != nil {
			return false, err
		}
		raw := c.Append(nil)
		if w.taken, err = engine.ParseCapsule(raw); err != nil {
			return false, fmt.Errorf("parse a capsule of %d bytes: %w", len(raw), err)
		}
		w.pending = &snapshot{raw, w.iteration, w.acc}
		s.tally.Snapshots++
		if s.wild { // choices count from a snapshot on, so it is there at once
			s.snapshots[w.rank] = *w.pending
			w.box.Saved()
			s.choices[w.rank] = nil
			w.box.Covered(w.taken)
			w.pending = nil
			s.tally.Covered++
		}
	}
	return false, nil
}

// leave goes on with a move.
func (s *survival) leave(w *worker) error {
	e := s.engines[s.places[w.rank]]
	if !w.leaving.Ready() {
		if s.rng.IntN(200) == 0 {
			s.undo(w)
			s.tally.Undone++
			return nil
		}
		e.Progress()
		return nil
	}
	to := s.spare()
	if to < 0 {
		s.undo(w)
		return nil
	}
	old, epoch := s.places[w.rank], w.by
	if epoch < s.epoch {
		s.tally.Overtaken++
	}
	posts, polls := w.box.Chosen()
	c, err := w.leaving.End(to, epoch)
	if err != nil {
		return err
	}
	raw := c.Append(nil)
	if c, err = engine.ParseCapsule(raw); err != nil {
		return fmt.Errorf("parse a capsule of %d bytes: %w", len(raw), err)
	}
	s.places[w.rank] = to
	there := s.start(to)
	if w.box, err = there.Adopt(c, epoch); err != nil {
		return err
	}
	again := s.choices[w.rank]
	s.choices[w.rank] = nil
	s.record(w, again, posts, polls)
	s.choices[w.rank] = again
	w.leaving, w.pending, w.taken = nil, nil, nil
	s.tally.Moves++
	s.tell(epoch, to, w.rank, old, false)
	return nil
}

// record has the choices of a rank recorded, in a wild run.
func (s *survival) record(w *worker, again []engine.Choice, posts, polls uint32) {
	if s.wild {
		w.box.Record(func(c engine.Choice) { s.choices[w.rank] = append(s.choices[w.rank], c) }, again, posts, polls)
	}
}

// dice is a decision that comes out as it did in an earlier life.
func (s *survival) dice(w *worker) uint64 {
	if before, known := w.box.Decide(); known {
		return before.Seq
	}
	n := uint64(s.rng.IntN(3))
	if n > 0 {
		w.box.Decided(0, n)
	}
	return n
}

// undo has a rank stay that was to leave.
func (s *survival) undo(w *worker) {
	w.leaving.Undo(errors.New("enough"))
	w.leaving = nil
	s.nothing(w.by)
}

// begin readies the next iteration.
func (s *survival) begin(w *worker) {
	w.at = true
	w.sends, w.receives, w.begun, w.posted = nil, nil, 0, 0
	if w.iteration >= s.last {
		return
	}
	for to := range s.ranks0() {
		for k := range messages(s.seed, w.iteration, int(w.rank), to) {
			size := length(s.seed, w.iteration, int(w.rank), to, k)
			mode := engine.Standard
			if size%5 == 0 && to != int(w.rank) {
				mode = engine.Synchronous
			}
			w.sends = append(w.sends, outgoing{m: engine.Match{Context: 16, Peer: topology.Rank(to), Tag: int32(k)}, mode: mode, body: text(w.acc, to, k, size)})
		}
	}
	for from := range s.ranks0() {
		for k := range messages(s.seed, w.iteration, from, int(w.rank)) {
			size := length(s.seed, w.iteration, from, int(w.rank), k)
			a := arriving{m: engine.Match{Context: 16, Peer: topology.Rank(from), Tag: int32(k)}, buf: make([]byte, size), size: size}
			if s.wild {
				a.m.Peer, a.m.Tag, a.buf = engine.AnySource, int32(w.iteration), make([]byte, 100_100)
			}
			w.receives = append(w.receives, a)
		}
	}
}

func (s *survival) ranks0() int { return len(s.first) }

// progress begins or ends a message; when all have ended, the iteration has.
func (s *survival) progress(w *worker) error {
	if w.begun < len(w.sends) && s.rng.IntN(2) == 0 { // in order, as the same program does it
		o := &w.sends[w.begun]
		key := [3]int{w.iteration, int(w.rank), w.begun}
		if was, again := s.sent[key]; again && !s.unsteady && was != fold(0, o.body) {
			return fmt.Errorf("rank %d sends message %d of iteration %d with other bytes than in an earlier life", w.rank, w.begun, w.iteration)
		}
		s.sent[key] = fold(0, o.body)
		o.r = w.box.Isend(o.m, o.body, o.mode)
		w.begun++
		return nil
	}
	if w.posted < len(w.receives) && s.rng.IntN(2) == 0 {
		o := &w.receives[w.posted]
		o.r = w.box.Irecv(o.m, o.buf)
		w.posted++
		return nil
	}
	open := w.posted < len(w.receives) || w.begun < len(w.sends)
	for i := range w.sends[:w.begun] {
		o := &w.sends[i]
		if !o.done {
			_, done, err := o.r.Test()
			if err != nil {
				return err
			}
			o.done = done
		}
		open = open || !o.done
	}
	for i := range w.receives[:w.posted] {
		o := &w.receives[i]
		if !o.done {
			st, done, err := o.r.Test()
			if err != nil {
				return err
			}
			if o.done = done; done && s.wild {
				o.buf = o.buf[:st.Bytes]
			} else if done && st.Bytes != o.size {
				return fmt.Errorf("rank %d, iteration %d: %d bytes of rank %d, want %d", w.rank, w.iteration, st.Bytes, o.m.Peer, o.size)
			}
		}
		open = open || !o.done
	}
	if !open {
		for _, o := range w.receives {
			w.acc = fold(w.acc, o.buf)
		}
		if want := s.want[w.iteration][w.rank]; w.acc != want && !s.wild && !s.unsteady {
			return fmt.Errorf("rank %d has %x after iteration %d, want %x", w.rank, w.acc, w.iteration, want)
		}
		w.iteration++
		s.tally.Iterations++
		s.begin(w)
	}
	return nil
}

// connect takes one step of making a connection.
func (s *survival) connect() error {
	if n := len(s.greets); n > 0 && s.rng.IntN(2) == 0 {
		i := s.rng.IntN(n)
		g := s.greets[i]
		if s.engines[g.process] == nil {
			s.greets = append(s.greets[:i], s.greets[i+1:]...)
		} else if done, _ := g.greet.Poll(); done {
			s.greets = append(s.greets[:i], s.greets[i+1:]...)
		}
		return nil
	}
	if len(s.dials) == 0 {
		return nil
	}
	i := s.rng.IntN(len(s.dials))
	d := s.dials[i]
	e := s.engines[d.from]
	if e == nil {
		s.dials = append(s.dials[:i], s.dials[i+1:]...)
		return nil
	}
	if d.greet == nil {
		if s.engines[d.to] == nil {
			if _, ok := e.Dial(d.to, 0); !ok {
				s.dials = append(s.dials[:i], s.dials[i+1:]...)
			}
			return nil // and again
		}
		generation, ok := e.Dial(d.to, 0)
		if !ok {
			s.dials = append(s.dials[:i], s.dials[i+1:]...)
			return nil
		}
		d.with = generation
		if s.shared {
			there, here := s.network.SharedPipe("mem:a", "mem:b")
			d.greet = e.Greet(here, true)
			s.greets = append(s.greets, accepted{d.to, s.engines[d.to].Greet(there, false)})
		} else {
			there, here := s.network.Pipe("mem:a", "mem:b")
			d.greet = e.Greet(here, true)
			s.greets = append(s.greets, accepted{d.to, s.engines[d.to].Greet(there, false)})
		}
		d.greet.Take(generation) // if it is cut already, Poll says so
		return nil
	}
	done, err := d.greet.Poll()
	if !done {
		return nil
	}
	if e.EndDial(d.to, d.with) || err == nil {
		s.dials = append(s.dials[:i], s.dials[i+1:]...)
	} else {
		d.greet = nil // and again
	}
	return nil
}

// undisturbed is what each rank has after each iteration when nothing goes wrong.
func undisturbed(seed uint64, n, iterations int) (all [][]uint64) {
	accs := make([]uint64, n)
	for i := range iterations {
		next := make([]uint64, n)
		for to := range n {
			next[to] = accs[to]
			for from := range n {
				for k := range messages(seed, i, from, to) {
					next[to] = fold(next[to], text(accs[from], to, k, length(seed, i, from, to, k)))
				}
			}
		}
		accs = next
		all = append(all, accs)
	}
	return all
}

func mix(v ...uint64) uint64 {
	h := fnv.New64a()
	for _, x := range v {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], x)
		h.Write(b[:])
	}
	return h.Sum64()
}

// messages is how many messages one rank sends another in an iteration.
func messages(seed uint64, iteration, from, to int) int {
	return int((mix(seed, uint64(iteration), uint64(from), uint64(to)) >> 20) % 3)
}

// length is that of one of them, in bytes.
func length(seed uint64, iteration, from, to, k int) int {
	x := mix(seed, uint64(iteration), uint64(from), uint64(to), uint64(k)) >> 16
	if x%4 == 0 {
		return 8 + int((x>>8)%100_000)
	}
	return 8 + int((x>>8)%100)
}

func text(acc uint64, to, k, size int) []byte {
	b := make([]byte, (size+7)/8*8)
	x := mix(acc, uint64(to), uint64(k))
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], x)
		x = x*6364136223846793005 + 1442695040888963407
	}
	return b[:size]
}

func fold(acc uint64, b []byte) uint64 { return xxhash.Sum64(b)*31 + acc*6364136223846793005 + 1 }
