package agent

import (
	"errors"
	"sync"

	"github.com/mpiv/mpiv/internal/control"
)

// A printer writes what the processes of another host have written, so that a
// screen which is held up holds up nothing else. What waits is bounded by what
// processes may have on its way.
type printer struct {
	r    *remote
	more chan struct{} // one element: there is something in queue

	mu    sync.Mutex // guards what follows
	queue []printed
	held  map[stdio]int // bytes of each output that the agent has not been told are taken
}

// printed is a piece of output; without data, the end of it.
type printed struct {
	p      *process
	stderr bool
	data   []byte
	end    int64 // of data, in the output
}

func (w *printer) init(r *remote) {
	w.r, w.more, w.held = r, make(chan struct{}, 1), map[stdio]int{}
}

// add queues x; false, and it is dropped, if that is more than may be on its
// way.
func (w *printer) add(x printed) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if of := x.of(); w.held[of]+len(x.data) > control.OutputWindow {
		return false
	} else if len(x.data) > 0 {
		w.held[of] += len(x.data)
	}
	w.queue = append(w.queue, x)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return true
}

// idle is true if nothing waits to be written.
func (w *printer) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.held {
		if n > 0 {
			return false
		}
	}
	return len(w.queue) == 0
}

// took gives back the room of x.
func (w *printer) took(x printed) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[x.of()] -= len(x.data)
}

func (x printed) of() stdio { return stdio{x.p.index, x.stderr} }

// run writes until the connection has ended, and then what is left.
func (w *printer) run() {
	for over := false; !over; {
		select {
		case <-w.more:
		case <-w.r.over:
			over = true
		}
		w.mu.Lock()
		queue := w.queue
		w.queue = nil
		w.mu.Unlock()
		for _, x := range queue {
			w.print(x)
		}
	}
}

func (w *printer) print(x printed) {
	a := w.r.a
	if x.data == nil {
		a.post(func() { a.drained(x.p) })
		return
	}
	s := x.p.streams[0]
	if x.stderr {
		s = x.p.streams[1]
	}
	if !s.broken.Load() {
		switch err := s.passUpTo(x.data, x.end); {
		case errors.Is(err, errNotKept):
			return // its agent sends it to the next head
		case err != nil:
			s.breaks(err)
		}
	}
	w.took(x)
	w.r.took(x.of(), len(x.data), s.broken.Load())
}

// A window is how many bytes may be on their way to who says when it has taken
// them.
type window struct {
	mu     sync.Mutex // guards what follows
	room   sync.Cond
	free   int
	broken bool
}

func newWindow() *window {
	w := &window{free: control.OutputWindow}
	w.room.L = &w.mu
	return w
}

// take waits until all of n bytes have room, which are no more than the window; false if nobody takes
// them any more.
func (w *window) take(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.free < n && !w.broken {
		w.room.Wait()
	}
	if w.broken {
		return false
	}
	w.free -= n
	return true
}

// give says that n bytes were taken, and whether any more will be.
func (w *window) give(n int, broken bool) {
	w.mu.Lock()
	w.free = min(w.free+max(n, 0), control.OutputWindow)
	w.broken = w.broken || broken
	w.mu.Unlock()
	w.room.Broadcast()
}
