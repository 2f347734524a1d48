package sim

import (
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// In some wild runs each rank has tasks in each iteration, as non-blocking collectives are: in
// rounds, each sends something that hangs on what came in the round before. They go on whenever
// they can, beside each other and what the program sends by itself.

// A task is one of a rank.
type task struct {
	m       engine.Match
	shifts  []int // by round, to which rank after this one it sends
	size    int
	acc     uint64
	outs    []envelope // that it has sent
	ins     []envelope // that it has received
	out, in []byte

	begun, over   bool
	sent, posted  bool // in this round
	own           engine.Task
	request       engine.Request
	send, receive engine.Request
	done          [2]bool // those two
}

// An envelope is a message to or from a rank.
type envelope struct {
	peer int
	sum  uint64
}

// tasks is those of a rank in its next iteration. Not all ranks begin them in the same order.
func (s *survival) tasks(w *worker) (all []task) {
	if !s.tasked || w.iteration >= s.last {
		return nil
	}
	n := len(s.first)
	for k := range 1 + mix(s.seed, uint64(w.iteration), 41)%3 {
		x := mix(s.seed, uint64(w.iteration), k, 42)
		t := task{m: engine.Match{Context: 24 + 2*uint32(k), Tag: int32(w.iteration), Check: 1}, size: length(s.seed, w.iteration, int(k), 43, 0)}
		for i := range 1 + x%3 {
			t.shifts = append(t.shifts, 1+int(x>>(8*(i+1)))%(n-1))
		}
		all = append(all, t)
	}
	if w.rank%2 == 1 {
		slices.Reverse(all)
	}
	return all
}

// beginTasks begins those whose turn it is in the program: each before one of the receives.
func (w *worker) beginTasks() {
	for i := range w.tasks {
		if t := &w.tasks[i]; !t.begun && w.posted >= min(i, len(w.receives)) {
			t.begun, t.acc = true, w.acc
			t.own, t.request = w.box.NewTask(t.m)
		}
	}
}

// labour goes on with w's tasks. False when all are over.
func (s *survival) labour(w *worker) (open bool, err error) {
	for i := range w.tasks {
		t := &w.tasks[i]
		if t.begun && !t.over && s.rng.IntN(2) == 0 {
			if err := t.goOn(w, len(s.first)); err != nil {
				return true, err
			}
			if t.over {
				s.tally.Tasks++
			}
		}
		open = open || !t.over
	}
	return open, nil
}

// goOn does one thing of w's task t, if it can.
func (t *task) goOn(w *worker, n int) error {
	round := len(t.ins)
	out, in := t.m, t.m
	out.Peer = topology.Rank((int(w.rank) + t.shifts[round]) % n)
	in.Peer = topology.Rank((int(w.rank) + n - t.shifts[round]) % n)
	switch {
	case !t.posted:
		t.in = make([]byte, t.size)
		t.receive, t.posted = w.box.Irecv(in, t.in), true
	case !t.sent:
		if w.box.HasTurn(out) {
			t.out = text(t.acc, int(out.Peer), round, t.size)
			t.outs = append(t.outs, envelope{int(out.Peer), fold(0, t.out)})
			t.send, t.sent = w.box.Isend(out, t.out, engine.Standard), true
		}
	default:
		for i, r := range []engine.Request{t.send, t.receive} {
			if !t.done[i] {
				st, done, err := r.Test()
				if err != nil {
					return err
				}
				if t.done[i] = done; done && i == 1 && st.Bytes != t.size {
					return fmt.Errorf("rank %d, iteration %d: %d bytes in a task, want %d", w.rank, w.iteration, st.Bytes, t.size)
				}
			}
		}
		if t.done == [2]bool{true, true} {
			clear(t.out)
			t.acc = fold(t.acc, t.in)
			t.ins = append(t.ins, envelope{int(in.Peer), fold(0, t.in)})
			t.sent, t.posted, t.done = false, false, [2]bool{}
			if t.over = len(t.ins) == len(t.shifts); t.over {
				t.own.Finish(nil)
			}
		}
	}
	return nil
}

// endTasks ends w's tasks, which are over, when all else of the iteration is.
func (w *worker) endTasks() error {
	for i := range w.tasks {
		t := &w.tasks[i]
		if _, _, err := t.request.Test(); err != nil {
			return err
		}
		w.acc = fold(w.acc, fmt.Append(nil, t.acc))
	}
	return nil
}
