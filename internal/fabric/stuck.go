package fabric

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
)

// A Stuck process is one to which nothing gets.
type Stuck struct {
	Process int
	For     time.Duration // at least
	TCP     []string      // host:port where it listens
}

// Stuck is the processes to which this one has something to send, and of which nothing was
// acknowledged for that long, or to which there is no connection now.
func (f *Fabric) Stuck(long time.Duration) (all []Stuck) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for process, p := range f.pairs {
		if p == nil || p.policy == nil || p.fenced {
			continue
		}
		i := f.engine.Link(process)
		s := Stuck{Process: process, For: p.stuckFor(i)}
		if i.Conn == nil && !i.Wanted || i.Conn != nil && s.For < long {
			continue
		}
		for _, c := range p.candidates {
			if c.remote.Network() == "tcp" {
				s.TCP = append(s.TCP, c.remote.Local())
			}
		}
		all = append(all, s)
	}
	return all
}

// stuckFor is how long nothing was acknowledged of what is on its way; 0 without a connection.
func (p *pair) stuckFor(i engine.LinkInfo) time.Duration {
	if m, measured := i.Conn.(transport.Measured); measured {
		if path := m.Path(); path.Stalled >= 0 {
			if path.Unacked == 0 {
				return 0
			}
			return path.Stalled
		}
	}
	if i.Conn == nil || !i.Outstanding {
		return 0
	}
	return p.last.Silent
}

// A Missed process is one for which this one has something, and to which it has no connection.
type Missed struct {
	Process int
	For     time.Duration
	Why     string // what has come of the best path to it
}

// Missed is the processes to which there is no connection, for that long or longer.
func (f *Fabric) Missed(long time.Duration) (all []Missed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for process, p := range f.pairs {
		if p == nil || p.policy == nil || p.fenced || p.wantedAt.IsZero() || now.Sub(p.wantedAt) < long {
			continue
		}
		if i := f.engine.Link(process); i.Conn != nil || !i.Wanted {
			continue
		}
		why := fmt.Sprintf("%v: %s", p.candidates[0], p.policy.Status(now).Routes[0].State)
		all = append(all, Missed{Process: process, For: now.Sub(p.wantedAt), Why: why})
	}
	return all
}
