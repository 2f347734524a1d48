package process

import "runtime/debug"

// Gone is told that the program of a rank that has left has returned. What it held is given
// back to the system, if no other rank is here.
func (l *Life) Gone() {
	if l.p == nil {
		return
	}
	l.p.finished.Go(func() {
		if l.p.vacant() {
			debug.FreeOSMemory()
		}
		l.p.readyMemory()
	})
}

// readyMemory has a process without ranks hold ready what the job wants for one that comes.
func (p *Process) readyMemory() {
	n := p.options.Ready
	if n == 0 || !p.vacant() || p.options.Survive == "none" || p.options.Survive == "report" {
		return
	}
	if p.reserve.Fill(int(n), p.stopped) {
		p.log.Error("the host has too little memory: less than --spare-memory is ready for a rank that comes", "process", p.index)
	}
	if !p.vacant() { // one has come meanwhile
		p.reserve.Empty()
	}
}

// vacant tells whether no rank is here.
func (p *Process) vacant() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.living) == 0 && !p.over
}
