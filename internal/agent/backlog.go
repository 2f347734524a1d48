package agent

import "sync"

// A backlog is what is left for one goroutine to do. Who adds to it does not wait.
type backlog[T any] struct {
	more chan struct{} // one element: there may be something in all

	mu  sync.Mutex // guards what follows
	all []T
}

func newBacklog[T any]() *backlog[T] { return &backlog[T]{more: make(chan struct{}, 1)} }

func (q *backlog[T]) add(some ...T) {
	q.mu.Lock()
	q.all = append(q.all, some...)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take waits for some, and returns all that there is; nil: there will be nothing.
func (q *backlog[T]) take(done <-chan struct{}) (all []T) {
	for {
		q.mu.Lock()
		all, q.all = q.all, nil
		q.mu.Unlock()
		if len(all) > 0 {
			return all
		}
		select {
		case <-q.more:
		case <-done:
			return nil
		}
	}
}
