package engine

import (
	"time"

	"github.com/mpiv/mpiv/topology"
)

// A WaitInfo is a call of a rank that sleeps.
type WaitInfo struct {
	ID    uint64 // unlike that of any other sleep in this process
	Op    string
	PCs   []uintptr // of the caller, innermost first
	Since time.Time
	Until time.Time  // when its context ends; zero: never
	Any   bool       // one of Needs ends it; otherwise it needs all
	Needs []NeedInfo // none: what it waits for is under way
	Task  bool       // it waits for another goroutine of the library, whose wait stands for it
}

// A NeedInfo is a message or a receive that a call waits for.
type NeedInfo struct {
	Peer       topology.Rank // or AnySource
	Receive    bool          // it waits for the peer to receive; otherwise to send
	Context    uint32
	Comm       string // what NameContext called Context
	Tag        int32  // or AnyTag
	Check      uint16
	Unexpected []int32 // tags of messages from that peer which are here and do not match
}

// A Count is how many messages have gone to or come from a peer.
type Count struct {
	Peer topology.Rank
	N    uint64
}

// Waits is the calls of the box's rank that sleep now.
func (b *Box) Waits() []WaitInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []WaitInfo
	for _, w := range b.waits {
		info := WaitInfo{ID: w.id, Op: w.call.Op, PCs: append([]uintptr(nil), w.pcs[:w.npcs]...), Since: w.since, Until: w.until}
		if w.goal.one != nil {
			info.Needs = b.needsLocked(info.Needs, w.goal.one)
			info.Task = w.goal.one.kind == opTask
		} else {
			info.Any = true
			for _, r := range w.goal.any {
				if r.op != nil && !r.finished() {
					info.Needs = b.needsLocked(info.Needs, r.op)
				}
			}
		}
		all = append(all, info)
	}
	return all
}

func (b *Box) needsLocked(needs []NeedInfo, o *op) []NeedInfo {
	switch {
	case o.box != b || o.kind == opTask:
		return needs
	case o.kind != opSend && o.queue == nil:
		return needs // it has its message, which is on its way
	}
	n := NeedInfo{Peer: o.peer, Receive: o.kind == opSend, Context: o.context, Comm: b.names[o.context], Tag: o.tag, Check: o.check}
	if !n.Receive {
		for a := b.unexpected.head; a != nil && len(n.Unexpected) < 8; a = a.allNext {
			if a.header.Context == o.context && (a.header.Source == o.peer || o.peer == AnySource) {
				n.Unexpected = append(n.Unexpected, a.header.Tag)
			}
		}
	}
	return append(needs, n)
}

// Counts is how many messages the box's rank has sent to each peer, and has had
// from each.
func (b *Box) Counts() (sent, got []Count) {
	b.e.polling.Lock()
	defer b.e.leave()
	b.streams.all(func(s *stream) {
		var out, in uint64
		if p := b.e.peers[s.peer]; p.box != nil {
			p.box.mu.Lock()
			out = s.sent
			p.box.mu.Unlock()
			b.mu.Lock()
			in = s.got
			b.mu.Unlock()
		} else {
			p.link.mu.Lock()
			out = s.sent
			p.link.mu.Unlock()
			in = s.got
		}
		if out > 0 {
			sent = append(sent, Count{s.peer, out})
		}
		if in > 0 {
			got = append(got, Count{s.peer, in})
		}
	})
	return sent, got
}
