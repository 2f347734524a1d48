package engine

// A Held is what a link holds back.
type Held struct {
	Queued     int    // messages that wait to be sent
	Logged     int    // bytes of the log
	Unexpected int64  // bytes of messages that came over it and that no one has received
	Resent     uint64 // messages that were queued again, since a connection broke or was left
}

// Held is what the link to a process holds back.
func (e *Engine) Held(process int) Held {
	l := e.link(process)
	l.mu.Lock()
	defer l.mu.Unlock()
	return Held{Queued: l.queue.n, Logged: l.logged, Unexpected: max(l.unheld.Load(), 0), Resent: l.resent}
}

// Parked is how many goroutines sleep until a message comes.
func (e *Engine) Parked() int { return int(e.parked.Load()) }
