package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// In some runs each rank has a rumour for the next one in each iteration, and waits for one of
// the rank before. Either may be taken back while it is under way. Where choices are recorded,
// what the rank does from then on hangs on whether that was in time. There it is either the
// sends that are taken back or the receives, as both at once is more than is promised: what a
// receive got just before its process died, and its sender knows, could find it cancelled in the
// next life. Where sends are taken back a rank that waits is told whether there is a rumour for it,
// and waits no longer if not.

const rumours = 18 // their context

// A rumour is the one that a rank had in an iteration.
type rumour struct{ rank, iteration int }

// news is whether a rumour was told, from one rank to the next.
type news struct {
	out, in       []byte
	send, receive engine.Request
	begun, sent   bool
	heard         bool
}

// message is the rumour in so many bytes.
func (r rumour) message(acc uint64, size int) []byte {
	b := text(acc, r.rank, r.iteration, size)
	binary.LittleEndian.PutUint64(b, uint64(r.rank))
	binary.LittleEndian.PutUint64(b[8:], uint64(r.iteration))
	return b
}

// A saying is how one was told in the end.
type saying struct {
	told bool // it did not come back
	mode engine.Mode
}

// A gossip is a rumour to tell, and one to hear.
type gossip struct {
	mode          engine.Mode
	send, receive engine.Match
	size          int
	said, room    []byte
	tires         bool // it abandons a call, and says so
	tell, hear    engine.Request
	news          *news // nil where receives are taken back
	begun         bool
	done, due     whims
	told          bool // the send did not come back
	hears         bool // nor did the receive, which has
	heard         rumour
}

// whims are what a rank has done with its gossip, or is to do.
type whims uint8

const (
	told   whims = 1 << iota // the send has ended
	heard                    // the receive has ended
	untell                   // the send was asked back
	unhear                   // the receive was asked back

	toldAndHeard = told | heard
)

// gossips is that of a rank in its next iteration; nil: it has none.
func (s *survival) gossips(w *worker) *gossip {
	if s.whims == nil || w.iteration >= s.last {
		return nil
	}
	n, r := len(s.first), int(w.rank)
	x := mix(s.seed, uint64(w.iteration), uint64(r), 77)
	g := &gossip{size: 16 + length(s.seed, w.iteration, r, r, 7), room: make([]byte, 100_100)}
	switch {
	case s.wild && s.unhears: // nobody is told that it was received
		g.size = min(g.size, 1000)
	case x%3 > 0:
		g.mode = engine.Synchronous
	}
	g.tires = x>>9%4 == 0 && !s.tasked // what it says to all would wait for its turn
	g.send = engine.Match{Context: rumours, Peer: topology.Rank((r + 1) % n), Tag: int32(w.iteration)}
	g.receive = engine.Match{Context: rumours, Peer: topology.Rank((r + n - 1) % n), Tag: engine.AnyTag}
	if s.wild && !s.unhears { // what is waited for no longer must not be the next one
		g.receive.Tag = g.send.Tag
	}
	if x>>8%2 == 0 {
		g.receive.Peer = engine.AnySource
	}
	return g
}

// tiring is the call that w abandons.
func (g *gossip) tiring(w *worker) engine.Match {
	return engine.Match{Context: 20, Tag: g.send.Tag*100 + int32(w.rank)}
}

// common is a call that all abandon who tire in an iteration.
func (g *gossip) common() engine.Match { return engine.Match{Context: 21, Tag: g.send.Tag} }

// anyone is who has abandoned a call that several have.
const anyone topology.Rank = -1

func (s *survival) others(r topology.Rank) iter.Seq[topology.Rank] {
	return func(yield func(topology.Rank) bool) {
		for to := range topology.Rank(len(s.first)) {
			if to != r && !yield(to) {
				return
			}
		}
	}
}

// spread goes on with w's gossip, after all else has begun. False when it is at its end.
func (s *survival) spread(w *worker) (open bool, err error) {
	g := w.gossip
	switch {
	case w.begun < len(w.sends) || w.posted < len(w.receives) || g.ended():
	case !g.begun && !w.box.HasTurn(g.send):
	case !g.begun:
		g.said = rumour{int(w.rank), w.iteration}.message(w.acc, g.size)
		if g.tires {
			w.box.Abandon(g.tiring(w), "it is tired", s.others(w.rank))
			w.box.Abandon(g.common(), "others may be, too", s.others(w.rank))
		}
		g.tell, g.hear, g.begun = w.box.Isend(g.send, g.said, g.mode), w.box.Irecv(g.receive, g.room), true
		if s.wild && !s.unhears {
			g.news = &news{out: make([]byte, 1), in: make([]byte, 1)}
			before := topology.Rank((int(w.rank) + len(s.first) - 1) % len(s.first))
			g.news.receive = w.box.Irecv(engine.Match{Context: 19, Peer: before, Tag: g.send.Tag}, g.news.in)
		}
	default:
		if g.due == 0 && g.done&toldAndHeard != toldAndHeard {
			g.due = s.look(w)
		}
		err = g.goOn(w)
	}
	return !g.ended(), err
}

func (g *gossip) ended() bool {
	return g.done&toldAndHeard == toldAndHeard && (g.news == nil || g.news.sent && g.news.heard)
}

// goOn tells the next rank what has become of w's rumour, and gives up that of the rank before
// if there is none.
func (n *news) goOn(w *worker) error {
	g := w.gossip
	tell := engine.Match{Context: 19, Peer: g.send.Peer, Tag: g.send.Tag}
	if g.done&told != 0 && !n.begun && w.box.HasTurn(tell) {
		if n.begun = true; g.told {
			n.out[0] = 1
		}
		n.send = w.box.Isend(tell, n.out, engine.Standard)
	}
	var err error
	if n.begun && !n.sent {
		if _, n.sent, err = n.send.Test(); err != nil {
			return err
		}
	}
	if !n.heard {
		if _, n.heard, err = n.receive.Test(); err != nil {
			return err
		}
		if n.heard && n.in[0] == 0 {
			w.box.Cancel(g.hear)
		}
	}
	return nil
}

// look is a decision of w: which of its two requests have ended, and which it asks back.
func (s *survival) look(w *worker) (due whims) {
	g := w.gossip
	var n uint32
	if s.wild {
		var before engine.Choice
		var known bool
		if n, before, known = w.box.Decide(); known {
			return whims(before.Seq)
		}
	}
	for _, x := range []struct {
		r           engine.Request
		ended, back whims
		may         bool
	}{{g.tell, told, untell, !s.wild || !s.unhears}, {g.hear, heard, unhear, !s.wild || s.unhears}} {
		switch {
		case g.done&x.ended != 0:
		case x.r.Finished():
			due |= x.ended
		case x.may && g.done&x.back == 0 && s.whims.IntN(60) == 0:
			due |= x.back
		}
	}
	if s.wild && due != 0 {
		w.box.Decided(n, 0, uint64(due))
	}
	return due
}

// goOn does what is due. What has ended in an earlier life may not have yet.
func (g *gossip) goOn(w *worker) error {
	if g.due&untell != 0 {
		w.box.Cancel(g.tell)
	}
	if g.due&unhear != 0 {
		w.box.Cancel(g.hear)
	}
	if g.news != nil {
		if err := g.news.goOn(w); err != nil {
			return err
		}
	}
	g.done |= g.due & (untell | unhear)
	g.due &^= untell | unhear
	if g.due&told != 0 {
		_, done, err := g.tell.Test()
		if err != nil && !errors.Is(err, engine.ErrCancelled) {
			return err
		}
		if done {
			g.told = err == nil
			clear(g.said)
			g.done, g.due = g.done|told, g.due&^told
		}
	}
	if g.due&heard != 0 {
		st, done, err := g.hear.Test()
		if err != nil && !errors.Is(err, engine.ErrCancelled) {
			return err
		}
		if done {
			if g.hears = err == nil; g.hears {
				g.heard = rumour{int(binary.LittleEndian.Uint64(g.room)), int(binary.LittleEndian.Uint64(g.room[8:]))}
				g.room = g.room[:st.Bytes]
			}
			g.done, g.due = g.done|heard, g.due&^heard
		}
	}
	return nil
}

// remember notes what came of w's gossip in this life, and has the rank learn from it.
func (s *survival) remember(w *worker) {
	g := w.gossip
	if g == nil {
		return
	}
	me := rumour{int(w.rank), w.iteration}
	s.told[me] = saying{g.told, g.mode}
	if g.tires {
		s.tired[g.tiring(w)], s.tired[g.common()] = w.rank, anyone
	}
	if delete(s.heard, me); g.hears {
		s.heard[me] = g.heard
	}
	if g.told {
		s.tally.Delivered++
	} else {
		s.tally.Returned++
	}
	if g.hears {
		s.tally.Received++
	} else {
		s.tally.Withdrawn++
	}
	if !s.wild {
		return
	}
	w.acc = fold(w.acc, fmt.Append(nil, g.told, g.hears, g.heard))
	if g.hears {
		w.acc = fold(w.acc, g.room)
	}
}

// learn has all ranks hear of all calls that were abandoned.
func (s *survival) learn() error {
	for steps := 0; s.fail == nil; steps++ {
		m, by, to := s.unheard()
		if m == nil {
			return nil
		}
		if steps > surviveSteps/8 {
			return fmt.Errorf("rank %d never hears that rank %d has abandoned call %d", to, by, m.Tag)
		}
		for p, e := range s.engines {
			if e == nil {
				continue
			}
			if e.Progress(); len(s.notices[p]) > 0 {
				s.notices[p][0].tell(e)
				s.notices[p] = s.notices[p][1:]
			}
		}
		if s.hosts != nil {
			s.testify(s.hosts[steps%len(s.hosts)])
		}
		s.connect()
	}
	return s.fail
}

// unheard is a call that was abandoned, by whom, and a rank that has not heard of it; nil if there is none.
func (s *survival) unheard() (call *engine.Match, by, to topology.Rank) {
	for m, by := range s.tired {
		for _, w := range s.ranks {
			if why := w.box.Abandoned(m.Context, m.Tag); why == nil || by != anyone && why.By != by {
				return &m, by, w.rank
			}
		}
	}
	return nil, 0, 0
}

// believe is an error if somebody has heard what was taken back, or what another has heard, too, or
// nobody what had to be.
func (s *survival) believe() error {
	by := map[rumour]rumour{}
	for who, what := range s.heard {
		if !s.told[what].told {
			return fmt.Errorf("rank %d has heard in iteration %d what rank %d had taken back in iteration %d", who.rank, who.iteration, what.rank, what.iteration)
		}
		if other, twice := by[what]; twice {
			return fmt.Errorf("rank %d has heard twice, in iterations %d and %d, what rank %d told in %d", who.rank, who.iteration, other.iteration, what.rank, what.iteration)
		}
		by[what] = who
	}
	for what, x := range s.told {
		if _, heard := by[what]; x.told && x.mode == engine.Synchronous && !heard {
			return fmt.Errorf("nobody has heard what rank %d told in iteration %d", what.rank, what.iteration)
		}
	}
	return nil
}

func (g *gossip) String() string {
	if g == nil {
		return ""
	}
	return fmt.Sprintf(", rumour of %d bytes in mode %d begun %t asked back %t ended %t, heard begun %t asked back %t ended %t", g.size, g.mode,
		g.begun, g.done&untell != 0, g.done&told != 0, g.begun, g.done&unhear != 0, g.done&heard != 0)
}
