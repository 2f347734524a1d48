package agent

import (
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// A process may not reach another though both run, and their hosts, if they are two, reach each other: it has no
// file descriptors left, loopback is down, a path drops what is long. It tries for a while, and then the job ends; until
// then the user is to know.
const (
	missNotice = 2 * time.Second // for which it lasts before it is told
	missPause  = 3 * time.Second // after which one that nobody speaks of is over
)

// A missing is what one process says of another. Owned by loop.
type missing struct {
	since, last time.Time // as heard here
	said        bool
}

// misses is told by p, of which a rank waits, what it does not reach.
func (a *Agent) misses(p *process, all []control.Missed, now time.Time) {
	if !a.toldStart || a.ending || a.mourning || a.interrupts > 0 || p.judged || p.exited || p.stop.why != "" {
		return
	}
	for _, m := range all {
		if m.Process < 0 || m.Process >= len(a.processes) {
			continue
		}
		q := a.processes[m.Process]
		if q.judged || q.exited || q.stop.why != "" || q.host.lost || a.cuts[pairOf(p.host, q.host)] != nil {
			continue // it is known why
		}
		if a.missed == nil {
			a.missed = map[[2]*process]*missing{}
		}
		pair := [2]*process{p, q}
		x := a.missed[pair]
		if x == nil || now.Sub(x.last) > missPause {
			x = &missing{since: now}
			a.missed[pair] = x
		}
		x.last = now
		if now.Sub(x.since) >= missNotice && !x.said {
			x.said = true
			a.warn("%s%s does not reach %s%s: %s", p.who(), a.onHost(p), q.who(), a.onHost(q), printable(m.Why))
		}
	}
}
