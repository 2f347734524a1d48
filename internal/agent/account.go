package agent

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// The books of a deputy are what it would have to tell another head: all that the one
// before was told of processes here, and all that they were told by it.
type books struct {
	up atomic.Pointer[line] // to the head; nil: there is none. Set with mu held

	mu       sync.Mutex // guards what follows, and is held while it is told
	accounts map[int]*control.Account
	holds    map[control.Life]control.Holds
	outlive  bool                        // there may be another head
	evicted  *control.Evicted            // this agent is to end; nil: it is not
	untaken  map[stdio][]*control.Output // of which no head has said that it has it
	ends     map[stdio]int64             // bytes of each output so far
}

func newBooks() books {
	return books{accounts: map[int]*control.Account{}, holds: map[control.Life]control.Holds{}, untaken: map[stdio][]*control.Output{}, ends: map[stdio]int64{}}
}

// ofLocked is the account of a process.
func (b *books) ofLocked(process int) *control.Account {
	a := b.accounts[process]
	if a == nil {
		a = &control.Account{Process: process}
		b.accounts[process] = a
	}
	return a
}

// say notes m, and tells the head, if there is one. If that cannot be, the connection has
// ended, and who reads from it sees that.
func (b *books) say(m control.FromAgent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.noteLocked(m)
	if l := b.up.Load(); l != nil {
		l.from.Send(m)
	}
}

func (b *books) noteLocked(m control.FromAgent) {
	switch {
	case m.Forked != nil:
		a := b.ofLocked(m.Forked.Process)
		a.PID, a.Error = m.Forked.PID, m.Forked.Error
	case m.Said != nil && m.Said.Message == nil:
		b.ofLocked(m.Said.Process).Parted = true
	case m.Said != nil:
		noteSaid(b.ofLocked(m.Said.Process), m.Said.Message)
	case m.Stopped != nil:
		b.ofLocked(m.Stopped.Process).Stopped = m.Stopped.Why
	case m.Exited != nil:
		b.ofLocked(m.Exited.Process).Exited = m.Exited
	case m.Drained != nil:
		b.ofLocked(m.Drained.Process).Drained = true
	case m.Evicted != nil:
		b.evicted = m.Evicted
	case m.Holds != nil:
		b.holds[control.Life{Rank: m.Holds.Rank, Epoch: m.Holds.Epoch}] = *m.Holds
		var lives []uint32 // of each rank two are of use: the newest, and until that is covered the one before
		for l := range b.holds {
			if l.Rank == m.Holds.Rank {
				lives = append(lives, l.Epoch)
			}
		}
		if len(lives) > 2 {
			delete(b.holds, control.Life{Rank: m.Holds.Rank, Epoch: slices.Min(lives)})
		}
	case m.Output != nil && b.outlive:
		of := stdio{m.Output.Process, m.Output.Stderr}
		b.ends[of] += int64(len(m.Output.Data))
		m.Output.Ends, m.Output.Data = b.ends[of], slices.Clone(m.Output.Data)
		b.untaken[of] = append(b.untaken[of], m.Output)
	}
}

// taken is told that the head has taken so much of an output, which is all of some pieces.
func (b *books) taken(of stdio, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for rest := b.untaken[of]; len(rest) > 0 && n >= len(rest[0].Data); rest = b.untaken[of] {
		n -= len(rest[0].Data)
		b.untaken[of] = rest[1:]
	}
}

// input notes that so much of a process's standard input has come.
func (b *books) input(process, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ofLocked(process).Input += int64(n)
}

// noteSaid notes what a process said.
func noteSaid(a *control.Account, m *control.Message) {
	switch {
	case m.Hello != nil:
		a.Hello = m.Hello
	case m.Ready != nil:
		a.Ready = m.Ready
	case m.Failed != nil:
		a.Failed = m.Failed
	case m.Finished != nil:
		if a.Finished == nil {
			a.Finished = &control.Finished{}
		}
		a.Finished = &control.Finished{Ranks: append(slices.Clip(a.Finished.Ranks), m.Finished.Ranks...), Reports: append(slices.Clip(a.Finished.Reports), m.Finished.Reports...)}
	case m.Saved != nil:
		a.Saved = append(slices.DeleteFunc(slices.Clone(a.Saved), func(s control.Saved) bool { return s.Rank == m.Saved.Rank }), *m.Saved)
	case m.Arrived != nil:
		a.Arrived = append(slices.DeleteFunc(slices.Clone(a.Arrived), func(s control.Arrived) bool {
			return s.Rank == m.Arrived.Rank && (s.Epoch != m.Arrived.Epoch || s.Whole == m.Arrived.Whole)
		}), *m.Arrived)
	case m.Stayed != nil:
		a.Stayed = append(slices.DeleteFunc(slices.Clone(a.Stayed), func(s control.Stayed) bool { return s.Rank == m.Stayed.Rank }), *m.Stayed)
	}
}

// told notes what a process is told.
func (b *books) told(process int, m control.Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.ofLocked(process)
	switch {
	case m.Start != nil:
		a.Start = max(m.Start.Epoch, 1)
	case m.Place != nil:
		a.Maps = append(a.Maps, m.Place.Epoch)
	case m.Adopt != nil:
		a.Maps = append(a.Maps, m.Adopt.Epoch)
	case m.Depart != nil:
		a.Leave = append(a.Leave, m.Depart.Epoch)
	}
	for slices.Contains(a.Maps, a.Start+1) { // Start and what follows it without a gap is one number
		a.Start++
		a.Maps = slices.DeleteFunc(slices.Clone(a.Maps), func(n uint32) bool { return n <= a.Start })
	}
}

// rejoin tells all to a head, to which everything goes from now on.
func (b *books) rejoin(up *line, j control.Joined, heard []control.Life) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := control.Rejoined{Joined: j, Heard: heard}
	for _, a := range b.accounts {
		all.Processes = append(all.Processes, *a)
	}
	slices.SortFunc(all.Processes, func(x, y control.Account) int { return x.Process - y.Process })
	for _, h := range b.holds {
		all.Copies = append(all.Copies, h)
	}
	if err := up.from.Send(control.FromAgent{Rejoined: &all}); err != nil {
		return err
	}
	if b.evicted != nil {
		if err := up.from.Send(control.FromAgent{Evicted: b.evicted}); err != nil {
			return err
		}
	}
	for _, pieces := range b.untaken {
		for _, o := range pieces {
			if err := up.from.Send(control.FromAgent{Output: o}); err != nil {
				return err
			}
		}
	}
	b.up.Store(up)
	return nil
}

// lost is told that the connection to the head has ended.
func (b *books) lost() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.up.Store(nil)
}

// quitTime is how long the last word of an agent may take.
const quitTime = time.Second

// quit says why this agent leaves, if that can be said, and ends the connection.
func (b *books) quit(reason string) {
	l := b.up.Load()
	if l == nil {
		return
	}
	l.conn.SetWriteDeadline(time.Now().Add(quitTime)) // and who has mu need not wait for long
	b.mu.Lock()
	defer b.mu.Unlock()
	l.from.Send(control.FromAgent{Leaving: &control.Leaving{Reason: reason}})
	l.conn.Close()
}
