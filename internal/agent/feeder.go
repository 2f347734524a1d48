package agent

import (
	"os"
	"sync"
)

// A feeder writes what comes for a process's standard input, without making who
// brings it wait. What waits is bounded by the window of who sends it.
type feeder struct {
	to    *os.File
	taken func(n int, broken bool) // tells who sends
	more  chan struct{}            // one element: something has changed
	done  chan struct{}

	mu     sync.Mutex // guards what follows
	queue  []byte
	end    bool // nothing follows
	closed bool // what waits is of no use
}

// newFeeder feeds to, which it owns.
func newFeeder(to *os.File, taken func(n int, broken bool)) *feeder {
	f := &feeder{to: to, taken: taken, more: make(chan struct{}, 1), done: make(chan struct{})}
	go f.run()
	return f
}

func (f *feeder) add(data []byte, end bool) {
	f.mu.Lock()
	f.queue = append(f.queue, data...)
	f.end = f.end || end
	f.mu.Unlock()
	f.wake()
}

func (f *feeder) wake() {
	select {
	case f.more <- struct{}{}:
	default:
	}
}

func (f *feeder) run() {
	defer close(f.done)
	defer f.to.Close()
	for range f.more {
		f.mu.Lock()
		queue, end, closed := f.queue, f.end, f.closed
		f.queue = nil
		f.mu.Unlock()
		if closed {
			return
		}
		if _, err := f.to.Write(queue); err != nil {
			f.taken(len(queue), true)
			return
		}
		f.taken(len(queue), false)
		if end {
			return
		}
	}
}

// close ends the feeder, whatever waits, and waits for it.
func (f *feeder) close() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.wake()
	f.to.Close() // a write that waits ends
	<-f.done
}
