package fabric

import (
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A LinkStatus is over what this process talks to another.
type LinkStatus struct {
	Process  int
	InUse    int       // which of Candidates; -1: none
	Since    time.Time // of InUse
	Why      string    // it is in use: a sentence
	Switches int       // from one path to another
	Sent     engine.Traffic
	Received engine.Traffic

	Candidates []Candidate // best class first
}

// A Candidate is a path to another process.
type Candidate struct {
	Class         topology.Class
	Network       string
	Local, Remote transport.Addr
	State         string        // "in use", "idle", "dead since 2s (connection refused), next probe in 300ms"
	RTT           time.Duration // 0: not known
	Rate          float64       // bytes a second to the other process; 0: not known
}

// Links is how this process talks to each other process that it has tried to reach,
// or that has reached it.
func (f *Fabric) Links() []LinkStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []LinkStatus
	now := time.Now()
	for process, p := range f.pairs {
		if p == nil || p.policy == nil {
			continue
		}
		s := p.policy.Status(now)
		sent, received := f.engine.Traffic(process)
		if s.Since.IsZero() && sent.Messages == 0 {
			continue
		}
		l := LinkStatus{Process: process, InUse: s.Using, Since: s.Since, Why: s.Why, Switches: s.Switches, Sent: sent, Received: received}
		for k, r := range s.Routes {
			c := p.candidates[k]
			l.Candidates = append(l.Candidates, Candidate{Class: c.class, Network: c.remote.Network(), Local: c.local.Endpoint.Addr(), Remote: c.remote,
				State: r.State, RTT: r.RTT, Rate: r.Out})
		}
		all = append(all, l)
	}
	return all
}
