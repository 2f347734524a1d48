package crew

import (
	"sync"

	"github.com/mpiv/mpiv/internal/control"
)

// linkQueue is how many messages may wait for a process that does not read. When it is full a
// question is not asked, and who must stop is signalled.
const linkQueue = 256

// A link is the connection of a process, for who sends. What a process must know, such as
// where a rank is, waits for it as long as it takes: none of that is ever told again. There is
// as much of it as ranks move and processes start meanwhile.
type link struct {
	due chan struct{} // one element: something waits

	mu    sync.Mutex
	queue []control.Message // guarded by mu
}

func newLink() *link { return &link{due: make(chan struct{}, 1)} }

// send hands m to the process; false if it does not read, and can do without m.
func (l *link) send(m control.Message) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) >= linkQueue && !mustKnow(m) {
		return false
	}
	l.queue = append(l.queue, m)
	select {
	case l.due <- struct{}{}:
	default:
	}
	return true
}

// take is what waits.
func (l *link) take() []control.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.queue
	l.queue = nil
	return all
}

// mustKnow tells whether a process would go wrong without m.
func mustKnow(m control.Message) bool {
	return m.Start != nil || m.Meet != nil || m.Place != nil || m.Adopt != nil || m.Depart != nil || m.Covered != nil || m.Dead != nil
}
