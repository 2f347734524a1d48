package agent

import (
	"slices"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// A scheduler that takes a host away tells its agent to end, and kills it a while later. Within
// that grace the ranks there go elsewhere, as with "mpivrun drain"; then the agent leaves.

// evictLook is between two looks at a host that is to be empty.
const evictLook = 20 * time.Millisecond

// graceOf is the grace of agents: none where ranks cannot move.
func (a *Agent) graceOf() time.Duration {
	if !a.leads() {
		return 0
	}
	return a.job.Grace
}

// evictedAgent is told that the agent of r's host is to end.
func (a *Agent) evictedAgent(r *remote, reason string) {
	h := r.host
	if h.lost || a.ending {
		return
	}
	if !a.leads() || a.policy == nil || h.evicted {
		r.order(control.ToAgent{Leave: &control.Leave{}})
		return
	}
	h.evicted = true
	a.pairHosts()
	a.warn("host %s: its agent is to end (%s), and has %v for its ranks to go elsewhere", h.name, reason, a.job.Grace)
	refused := make(chan Answer, 1)
	if !a.policy.machine.Drains(h.name) { // or it would be refused: the operator, or its agent, has asked before
		a.orderAsked(Question{Op: "drain", Host: h.name}, refused)
	}
	a.lookEvicted(r, refused)
}

// lookEvicted has the agent leave when nothing is left on its host, or nothing can be done.
func (a *Agent) lookEvicted(r *remote, refused <-chan Answer) {
	if r.host.lost || a.ending {
		return
	}
	select {
	case ans := <-refused:
		if ans.Error != "" {
			a.warn("host %s: its ranks stay: %s", r.host.name, ans.Error)
			r.order(control.ToAgent{Leave: &control.Leave{}})
			return
		}
	default:
	}
	if a.ranksOn(r.host) == 0 && !a.keepsAlone(r.host) {
		r.order(control.ToAgent{Leave: &control.Leave{}})
		return
	}
	a.after(evictLook, func() { a.lookEvicted(r, refused) })
}

// keepsAlone tells whether h has state of a rank that is nowhere else but where the rank is: should h leave now, the
// loss of that host would be the end of the job, until the rank is saved again. Where another agent is to end, too, it
// may be gone at any moment.
func (a *Agent) keepsAlone(h *host) bool {
	for r := range a.survival.stored {
		p, all := a.processOf(r), a.storedOf(r)
		has := func(st stored) bool { return st.host == h }
		other := func(g *host) bool { return p != nil && g.able() && !g.evicted && g != h && g != p.host }
		if slices.ContainsFunc(all, has) && !slices.ContainsFunc(all, func(st stored) bool { return other(st.host) }) && slices.ContainsFunc(a.hosts, other) {
			return true
		}
	}
	return false
}

// ranksOn is how many ranks are on h, or leave it, or come.
func (a *Agent) ranksOn(h *host) (n int) {
	for _, p := range a.processes {
		if p.host == h {
			n += len(p.ranks)
		}
	}
	for _, m := range a.survival.moving {
		if m.from.host == h && m.came || m.to.host == h {
			n++
		}
	}
	return n
}

// vacated tells whether h was told to end, and has no rank any more.
func (a *Agent) vacated(h *host) bool { return h.evicted && a.ranksOn(h) == 0 }
