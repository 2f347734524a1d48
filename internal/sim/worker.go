package sim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A worker is a rank: a program in steps.
type worker struct {
	rank      topology.Rank
	box       *engine.Box // nil: dead, or on its way
	iteration int
	acc       uint64

	at       bool // at a safe point
	sends    []outgoing
	receives []arriving
	begun    int // of sends
	posted   int // of receives
	gossip   *gossip
	tasks    []task
	pending  *snapshot     // taken, not durable yet
	draft    *engine.Draft // of pending, as long as its log is not in it
	logged   int           // bytes of that when it was taken
	taken    engine.Covers
	leaving  *engine.Departure
	by       topology.Epoch // leaving: the map by which it will be elsewhere
}

type outgoing struct {
	m     engine.Match
	mode  engine.Mode
	body  []byte
	given []byte // what is sent: body, until it is
	r     engine.Request
	done  bool
}

type arriving struct {
	m    engine.Match
	buf  []byte
	from int // once done
	size int
	r    engine.Request
	done bool
}

func (w *worker) missing() (all []engine.Match) {
	for _, o := range w.receives {
		if !o.done {
			all = append(all, o.m)
		}
	}
	return all
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
		if s.hosts != nil { // a snapshot waits for what it hangs on
			s.testify(s.hostOf(s.places[w.rank]))
		}
		draft, covers, err := w.box.Draft(func() {})
		if err != nil {
			return false, err
		}
		w.draft, w.taken = draft, covers
		w.pending = &snapshot{nil, w.iteration, w.acc}
		w.logged = 0
		for _, to := range draft.Logged(nil) {
			w.logged += to.Bytes
		}
		s.tally.Snapshots++
		if s.wild { // choices count from a snapshot on, so it is there at once
			w.pending.capsule = w.finish()
			s.snapshots[w.rank] = *w.pending
			w.box.Saved(func() { s.forget(w.rank) })
			w.box.Covered(w.taken)
			w.pending = nil
			s.tally.Covered++
		}
	}
	return false, nil
}

// finish puts the log into the pending snapshot.
func (w *worker) finish() []byte {
	d := w.draft
	w.draft = nil
	capsule, _ := d.Finish(nil) // there is always room
	return capsule
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
	done := w.box.Chosen()
	raw, err := w.leaving.End(to, epoch)
	if err != nil {
		return err
	}
	c, err := engine.ParseCapsule(raw)
	if err != nil {
		return fmt.Errorf("parse a capsule of %d bytes: %w", len(raw), err)
	}
	if s.hosts != nil { // so does what a rank takes along
		s.testify(s.hostOf(old))
	}
	s.places[w.rank] = to
	there := s.start(to)
	if w.box, err = there.Adopt(c, epoch, s.recording(w, done)); err != nil {
		return err
	}
	w.leaving, w.pending, w.taken, w.draft = nil, nil, nil, nil
	s.tally.Moves++
	s.tell(epoch, to, w.rank, old, false)
	return nil
}

// recording is how the choices of a rank are recorded by its next life, in a wild run; nil in others.
func (s *survival) recording(w *worker, done engine.Counts) *engine.Recording {
	if !s.wild {
		return nil
	}
	if s.hosts != nil {
		s.hostOf(s.places[w.rank]).recorded++ // another host is to know what this life knows
	}
	return &engine.Recording{Record: func(c engine.Choice) { s.chose(w.rank, c) }, Again: slices.Clone(s.choices[w.rank]), Done: done}
}

// dice is a decision that comes out as it did in an earlier life.
func (s *survival) dice(w *worker) uint64 {
	n, before, known := w.box.Decide()
	if known {
		return before.Seq
	}
	eyes := uint64(s.rng.IntN(3))
	if eyes > 0 {
		w.box.Decided(n, 0, eyes)
	}
	return eyes
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
	w.gossip, w.tasks = s.gossips(w), s.tasks(w)
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
	w.beginTasks()
	if w.begun < len(w.sends) && s.rng.IntN(2) == 0 { // in order, as the same program does it
		o := &w.sends[w.begun]
		if !w.box.HasTurn(o.m) {
			return nil
		}
		key := [3]int{w.iteration, int(w.rank), w.begun}
		if was, again := s.sent[key]; again && !s.unsteady && s.hosts == nil && was != fold(0, o.body) {
			return fmt.Errorf("rank %d sends message %d of iteration %d with other bytes than in an earlier life", w.rank, w.begun, w.iteration)
		}
		s.sent[key] = fold(0, o.body)
		o.given = slices.Clone(o.body)
		o.r = w.box.Isend(o.m, o.given, o.mode)
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
	if w.gossip != nil {
		more, err := s.spread(w)
		if err != nil {
			return err
		}
		open = open || more
	}
	if len(w.tasks) > 0 {
		more, err := s.labour(w)
		if err != nil {
			return err
		}
		open = open || more
	}
	for i := range w.sends[:w.begun] {
		o := &w.sends[i]
		if !o.done {
			_, done, err := o.r.Test()
			if err != nil {
				return err
			}
			if o.done = done; done {
				clear(o.given) // it is the program's again
			}
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
				o.buf, o.from = o.buf[:st.Bytes], int(st.Source)
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
		if err := w.endTasks(); err != nil {
			return err
		}
		if want := s.want[w.iteration][w.rank]; w.acc != want && !s.wild && !s.unsteady {
			return fmt.Errorf("rank %d has %x after iteration %d, want %x", w.rank, w.acc, w.iteration, want)
		}
		s.account(w)
		s.remember(w)
		w.iteration++
		s.tally.Iterations++
		s.begin(w)
	}
	return nil
}
