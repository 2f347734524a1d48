package engine

import (
	"time"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A WaitInfo is a call of a rank that sleeps.
type WaitInfo struct {
	ID    uint64 // unlike that of any other sleep in this process
	Op    string
	PCs   []uintptr // of the caller, innermost first
	Begun []uintptr // of what began the operation, where that is known
	Since time.Time
	Until time.Time  // when its context ends; zero: never
	Any   bool       // one of Needs ends it; otherwise it needs all
	Needs []NeedInfo // none: what it waits for is under way
	Task  bool       // it waits for another goroutine of the library, whose wait stands for it
}

// A NeedInfo is a message or a receive that a call waits for.
type NeedInfo struct {
	Peer       topology.Rank   // or AnySource:
	Of         []topology.Rank // then one of these sends; nil: any rank
	Receive    bool            // it waits for the peer to receive; otherwise to send
	OnItsWay   bool            // nobody has to do anything for it but the processes of the two
	Turn       bool            // it waits for another send of the rank, as it did in an earlier life
	Save       bool            // it waits for a snapshot of the peer, before which no more can be kept for it
	Context    uint32
	Comm       string // what NameContext called Context
	Tag        int32  // or AnyTag
	Number     uint64 // of the message to a peer in another process that is to receive it
	Check      uint16
	Unexpected []int32 // tags of messages from that peer which are here and do not match
	Near       []Near  // if there are none: messages with that tag from others, or on other communicators
}

// A Near is a message that nearly matches.
type Near struct {
	Peer topology.Rank
	Comm string
}

// Unreceived is what is here for the box's rank and was not received, in the
// order of arrival, as the receives that would match it.
func (b *Box) Unreceived() (all []Match) {
	b.e.Progress()
	b.mu.Lock()
	defer b.mu.Unlock()
	for a := b.unexpected.head; a != nil; a = a.allNext {
		all = append(all, Match{Context: a.header.Context, Peer: a.header.Source, Tag: a.header.Tag, Check: a.header.Check})
	}
	return all
}

// A Count is how many messages have gone to or come from a peer.
type Count struct {
	Peer topology.Rank
	N    uint64
	Held uint64 // of those sent: they wait for room in the log
}

// Waits is the calls of the box's rank that sleep now.
func (b *Box) Waits() []WaitInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []WaitInfo
	for _, w := range b.waits {
		info := WaitInfo{ID: w.id, Op: w.call.Op, PCs: append([]uintptr(nil), w.pcs[:w.npcs]...), Since: w.since, Until: w.until}
		if w.call.Begun != nil {
			info.Begun = append(info.Begun, w.call.Begun[:]...)
		}
		if o := w.goal.one; o != nil {
			if !o.isCancelled() || time.Since(w.since) > 2*againPatience { // else see skipCancelled
				info.Needs = b.needsLocked(info.Needs, o)
			}
			info.Task = o.kind == KindTask
		} else {
			info.Any = true
			for _, r := range w.goal.any {
				if r.op == nil || r.finished() {
					continue
				}
				before := len(info.Needs)
				if info.Needs = b.needsLocked(info.Needs, r.op); len(info.Needs) == before && r.op.kind != KindTask {
					info.Needs = nil // this one has its message, which is on its way: it ends the call
					break
				}
			}
		}
		all = append(all, info)
	}
	return all
}

func (b *Box) needsLocked(needs []NeedInfo, o *op) []NeedInfo {
	switch {
	case o.box != b || o.kind == KindTask:
		return needs
	case o.peer == AnySource && o.kind != KindSend && o.queue == nil:
		return needs // it has its message, which is on its way
	}
	n := NeedInfo{Peer: o.peer, Receive: o.kind == KindSend, Context: o.context, Comm: b.names[o.context], Tag: o.tag, Check: o.check}
	if o.peer == AnySource {
		n.Of = b.members[o.context]
	}
	switch {
	case n.Receive:
		n.sends(o)
	case o.kind == kindTurn:
		n.Turn = true
	case o.queue == nil:
		n.OnItsWay = true
	default:
		for a := b.unexpected.head; a != nil && len(n.Unexpected) < 8; a = a.allNext {
			if a.header.Context == o.context && (a.header.Source == o.peer || o.peer == AnySource) {
				n.Unexpected = append(n.Unexpected, a.header.Tag)
			}
		}
		for a := b.unexpected.head; a != nil && len(n.Unexpected) == 0 && len(n.Near) < 4; a = a.allNext {
			if a.header.Check == 0 && o.check == 0 && (a.header.Tag == o.tag || o.tag == AnyTag) {
				n.Near = append(n.Near, Near{a.header.Source, b.names[a.header.Context]})
			}
		}
	}
	return append(needs, n)
}

// sends says what o, a send, waits for. It may be room in the log of level "crashes". And nobody
// has to do anything for a message that arrives whether it is received or not, or is taken back.
// The box's mu is held.
func (n *NeedInfo) sends(o *op) {
	l := o.box.e.lockLink(o.peer)
	if l == nil {
		return
	}
	defer l.mu.Unlock()
	if x := o.entry; x != nil {
		n.Number = x.header.Seq
		n.Save = x.queued && !x.kept && l.full()
		n.OnItsWay = !n.Save && (x.header.Kind == wire.Eager || x.retracting)
	}
}

// Sent is the number of the last message to peer, as the receiver's Number.
func (b *Box) Sent(peer topology.Rank) uint64 {
	for s := b.streams.at(peer); ; {
		if l := b.e.lockLink(peer); l != nil {
			defer l.mu.Unlock()
			return s.sent
		}
		if to := b.e.Box(peer); to != nil {
			to.mu.Lock()
			defer to.mu.Unlock()
			return s.sent
		}
	}
}

// Numbers are those of messages from a peer, from First to Last.
type Numbers struct {
	Peer        topology.Rank
	First, Last uint64
}

// Counts is how many messages the box's rank has sent to each peer, and has had
// from each. Offered is those from other processes of which the bodies have not come, as
// no receive has them.
func (b *Box) Counts() (sent, got []Count, offered []Numbers) {
	b.e.polling.Lock()
	defer b.e.leave()
	type message struct {
		from topology.Rank
		seq  uint64
	}
	taken := map[message]bool{} // their bodies are on their way
	take := func(o *op) {
		if o != nil && o.box == b {
			taken[message{o.status.Source, o.seq}] = true
		}
	}
	for l := range b.e.known() {
		l.mu.Lock()
		for _, o := range l.parts {
			take(o)
		}
		for _, p := range l.pulling {
			take(p.op)
		}
		l.mu.Unlock()
		for _, o := range l.pulls {
			take(o)
		}
	}
	b.streams.all(func(s *stream) {
		var out, in, held uint64
		if int(s.peer) >= b.e.size {
			return
		}
		if l := b.e.lockLink(s.peer); l != nil {
			out, held = s.sent, l.heldBack(s)
			for _, seq := range s.offers.all() {
				if !taken[message{s.peer, seq}] {
					offered = withNumber(offered, s.peer, seq)
				}
			}
			l.mu.Unlock()
			in = s.got
		} else {
			to := b.e.Box(s.peer)
			to.mu.Lock()
			out = s.sent
			to.mu.Unlock()
			b.mu.Lock()
			in = s.got
			b.mu.Unlock()
		}
		if out > 0 {
			sent = append(sent, Count{s.peer, out, held})
		}
		if in > 0 {
			got = append(got, Count{Peer: s.peer, N: in})
		}
	})
	return sent, got, offered
}

// withNumber is all and a message that may follow the last of them.
func withNumber(all []Numbers, peer topology.Rank, seq uint64) []Numbers {
	if k := len(all) - 1; k >= 0 && all[k].Peer == peer && all[k].Last+1 == seq {
		all[k].Last = seq
		return all
	}
	return append(all, Numbers{peer, seq, seq})
}
