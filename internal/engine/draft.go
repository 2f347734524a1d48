package engine

import (
	"slices"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// A Draft is a capsule without its log, which is put in later: what snapshots of the
// receivers cover by then need not be in it. Nothing is missing. What a rank has sent is
// kept until it is covered, and what it sends after the draft it will send again.
type Draft struct {
	box *Box
	c   *Capsule // the streams have no log, and the bodies are its own
}

// LoggedTo is what the log has of messages to a rank.
type LoggedTo struct {
	Rank  topology.Rank
	Bytes int
}

// Draft is the capsule of b's rank now, but for its log, and what it covers. What others take
// back is given back while the rank does nothing: begin is called just before, if there is no
// error, and the capsule covers all choices that were recorded by then. It is called with locks
// held: it must neither wait nor call back. The errors are those of Capture.
func (b *Box) Draft(begin func()) (*Draft, Covers, error) {
	e := b.e
	e.enter()
	defer e.leave()
	if err := b.Idle(); err != nil {
		return nil, nil, err
	}
	b.mu.Lock()
	begin()
	b.mu.Unlock()
	c := b.capture(false)
	d := &Draft{box: b, c: c}
	for i := range c.Unread {
		c.Unread[i].Body = slices.Clone(c.Unread[i].Body)
	}
	return d, c.Covers(), nil
}

// Logged is what the log would have if the draft were finished now, by receiver. It is
// appended to all.
func (d *Draft) Logged(all []LoggedTo) []LoggedTo {
	d.box.e.enter()
	defer d.box.e.leave() // a rank that leaves this process meanwhile would have no stream to look at
	for i := range d.c.Streams {
		st := &d.c.Streams[i]
		s := d.box.streams.at(st.Peer)
		unlock := d.box.lockSending(s)
		n := s.past.upTo(st.Sent)
		for x := s.head; x != nil && x.header.Seq <= st.Sent; x = x.snext {
			n += len(x.body)
		}
		unlock()
		if n > 0 {
			all = append(all, LoggedTo{st.Peer, n})
		}
	}
	return all
}

// Ask asks the process of a rank for a snapshot of it, after which so many bytes need
// not be in the draft's log.
func (d *Draft) Ask(to LoggedTo) {
	e := d.box.e
	if l := e.lockLink(to.Rank); l != nil {
		l.control(wire.Header{Kind: wire.Save, Source: d.box.rank, Dest: to.Rank, Seq: uint64(to.Bytes)}, nil)
		l.pump()
		l.mu.Unlock()
		return
	}
	e.cfg.Save(to.Rank, d.box.rank, to.Bytes)
}

// Finish puts the log in: the capsule, written to what room gives for so many bytes, or
// to new memory if room is nil. The error is that of room.
func (d *Draft) Finish(room func(bytes int) ([]byte, error)) (capsule []byte, err error) {
	e := d.box.e
	e.enter()
	defer e.leave() // what is written may else be used for other messages meanwhile
	for i := range d.c.Streams {
		st := &d.c.Streams[i]
		d.box.captureLog(d.box.streams.at(st.Peer), st)
	}
	if room != nil {
		if capsule, err = room(d.c.size()); err != nil {
			return nil, err
		}
	}
	return d.c.Append(capsule), nil
}

// lockSending locks the sending half of s.
func (b *Box) lockSending(s *stream) (unlock func()) {
	if l := b.e.lockLink(s.peer); l != nil {
		return l.mu.Unlock
	}
	to := b.e.Box(s.peer)
	to.mu.Lock()
	return to.mu.Unlock
}

// captureLog puts what s keeps up to st.Sent into st.
func (b *Box) captureLog(s *stream, st *StreamState) {
	defer b.lockSending(s)()
	st.Past = s.past.records(st.Sent)
	log := func(x *entry) {
		h := x.header
		h.Ack = 0
		st.Log = append(st.Log, Logged{h, x.body})
	}
	for x := s.head; x != nil && x.header.Seq <= st.Sent; x = x.snext {
		log(x)
	}
	if l := b.e.peers[s.peer].link.Load(); l != nil {
		for x := l.queue.head; x != nil; x = x.qnext {
			if x.stream == s && x.unsent() && x.header.Seq <= st.Sent {
				log(x)
			}
		}
	}
}
