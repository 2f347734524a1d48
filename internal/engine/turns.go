package engine

import (
	"slices"
	"sync"
	"sync/atomic"
)

// The messages from a rank to another are numbered as they are sent, and where choices are
// recorded each has to have the same number in every life. A program sends in an order of its own.
// A task sends when what it needs for that has come: while one is under way, whose turn it is to
// send to a rank is a choice, too. See docs/decisions/0032-turns.md.

// turns is whose it is to send, of a rank's program and its tasks. mu is taken before those of
// boxes and links.
type turns struct {
	tasks atomic.Int32 // begun while choices are recorded, and not ended by the program

	mu      sync.Mutex         // held from when it is one's turn until the message has its number
	task    map[callID]uint32  // by what the messages of a task have in common: its number
	again   map[message]uint32 // in an earlier life, the task that sent a message; 0: the program did
	due     map[uint32]int     // how many of those are a task's
	waiting []*op
}

// begin notes a task by its number, which is not 0.
func (t *turns) begin(id callID, number uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.task == nil {
		t.task = make(map[callID]uint32)
	}
	t.task[id] = number
	t.tasks.Add(1)
}

// end notes that a task sends no more. If it has not sent all that it had sent in an earlier
// life, it is another now.
func (t *turns) end(b *Box, id callID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := t.task[id]
	delete(t.task, id)
	if t.due[number] == 0 {
		return
	}
	for m, task := range t.again {
		if task == number {
			b.e.fail(&NondeterminismError{Rank: b.rank, To: m.peer, Message: m.seq}, false)
			return
		}
	}
}

// set notes whose turns they were in an earlier life.
func (t *turns) set(again map[message]uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again, t.due = again, make(map[uint32]int)
	for _, task := range again {
		t.due[task]++
	}
}

// shared tells whether others than the program may send.
func (t *turns) shared() bool { return t.tasks.Load() > 0 }

// sendInTurn is Isend where others than the program may send.
func (b *Box) sendInTurn(m Match, body []byte, mode Mode) Request {
	b.takeTurn(m)
	defer b.turns.passTurn()
	if l := b.e.peers[m.Peer].link.Load(); l != nil && mode == Standard && l.sendNow(b, m, body, true) {
		return Request{}
	}
	return b.sendLater(m, body, mode)
}

// takeTurn waits until it is m's turn to be sent, which is recorded if it is not known. Then it must
// be sent, and passTurn called, or the engine has failed.
func (b *Box) takeTurn(m Match) {
	t := &b.turns
	t.mu.Lock()
	for !b.isTurn(m) {
		b.mu.Lock()
		o := b.newOpLocked(kindTurn, m, nil)
		b.mu.Unlock()
		t.waiting = append(t.waiting, o)
		t.mu.Unlock()
		err := b.e.await(untilDone, callTurn, b, goal{one: o})
		t.mu.Lock()
		t.waiting = slices.DeleteFunc(t.waiting, func(w *op) bool { return w == o })
		b.free(o)
		if err != nil {
			return
		}
	}
}

var callTurn = &Call{Op: "Send"}

// isTurn tells whether m is the next to be sent to its peer, and records it if that is not known.
// mu of turns is held.
func (b *Box) isTurn(m Match) bool {
	t := &b.turns
	next, own, known, mine := b.turn(m)
	switch {
	case known && mine:
		delete(t.again, next)
		t.due[own]--
		return true
	case known:
		return false
	}
	x := Choice{Kind: ChoseTask, Index: own, Source: next.peer, Seq: next.seq}
	if own == 0 {
		x.Kind = ChoseProgram
	}
	b.mu.Lock()
	b.choices.record(x)
	b.mu.Unlock()
	return true
}

// turn is what would be sent if m were next, by which task, and whether it is known whose turn that
// is. mu of turns is held.
func (b *Box) turn(m Match) (next message, own uint32, known, mine bool) {
	next, own = message{m.Peer, b.Sent(m.Peer) + 1}, b.turns.of(m)
	task, known := b.turns.again[next]
	return next, own, known, task == own
}

// of is the number of the task that sends m; 0: the program does.
func (t *turns) of(m Match) uint32 {
	if m.Check == 0 {
		return 0
	}
	return t.task[callID{m.Context, m.Tag}]
}

// passTurn has the others look whose turn it is now.
func (t *turns) passTurn() {
	for _, o := range t.waiting {
		if !o.done() {
			o.finish()
		}
	}
	t.mu.Unlock()
}

// HasTurn tells whether Isend would not wait for m's turn. It is for simulators, which must not wait.
func (b *Box) HasTurn(m Match) bool {
	t := &b.turns
	if !t.shared() {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _, known, mine := b.turn(m)
	return mine || !known
}

// repeats tells whether it is known of a message yet to come whose turn it is.
func (t *turns) repeats(b *Box) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for m, task := range t.again {
		if m.seq > b.Sent(m.peer) {
			return true
		}
		delete(t.again, m)
		t.due[task]--
	}
	return false
}
