package waits

import (
	"slices"

	"github.com/mpiv/mpiv/internal/control"
)

// findDeadlock is the greatest set of waiting ranks none of which can be freed
// from outside it; nil if that is empty.
//
// It is found as a greatest fixed point: all waiting ranks, less those that one
// can free who is not in the set, until there are none. Waits for any of
// several peers make this the model of Chandy, Misra and Haas, "Distributed
// Deadlock Detection" (TOCS 1983), with both AND and OR requests; the knot they
// look for by messages, we see in the reports.
func findDeadlock(g graph) *Deadlock {
	ranks := g.ranks
	closed := map[int]bool{}   // the set, and those that have finished
	waiters := map[int][]int{} // who waits for a rank, perhaps among others
	var doubtful []int
	for n, r := range ranks {
		closed[n] = r.State == "finished" || r.State == "waiting" && len(r.Waits) > 0
		if r.State != "waiting" {
			continue
		}
		doubtful = append(doubtful, n)
		for _, w := range r.Waits {
			for _, need := range w.Needs {
				for _, p := range peers(need) {
					waiters[p] = append(waiters[p], n)
				}
			}
		}
	}
	g.closed = closed
	for len(doubtful) > 0 {
		n := doubtful[len(doubtful)-1]
		doubtful = doubtful[:len(doubtful)-1]
		if closed[n] && !g.stuck(ranks[n]) {
			closed[n] = false
			doubtful = append(doubtful, waiters[n]...)
		}
	}
	d := &Deadlock{members: map[int]*rank{}, closed: closed}
	for n, r := range ranks {
		if closed[n] && r.State == "waiting" {
			d.Ranks = append(d.Ranks, n)
			d.members[n] = r
		}
	}
	if len(d.Ranks) == 0 {
		return nil
	}
	slices.Sort(d.Ranks)
	d.Cycle = g.cycle(d.Ranks)
	d.Causes = g.causes(d)
	return d
}

// A graph is ranks of which those in closed can only be freed by each other.
type graph struct {
	ranks    map[int]*rank
	closed   map[int]bool
	noTimers bool // take it that no timer wakes a goroutine
	noSaves  bool // and that no snapshot makes room in a log: no rank runs that could take one
}

// stuck is true if none of r's calls can return. A rank that has one which can
// might use it to free others.
func (g graph) stuck(r *rank) bool {
	for _, w := range r.Waits {
		if !g.blocked(r, w) {
			return false
		}
	}
	return true
}

func (g graph) blocked(r *rank, w control.Wait) bool {
	if w.Until != 0 || len(w.Needs) == 0 {
		return false // it ends by itself, or by means we do not know
	}
	hopeless := func(n control.Need) bool { return g.hopeless(r, n) }
	if w.Any {
		return !slices.ContainsFunc(w.Needs, func(n control.Need) bool { return !hopeless(n) })
	}
	return slices.ContainsFunc(w.Needs, hopeless)
}

// hopeless is true if none of those who could do what n is about will.
func (g graph) hopeless(r *rank, n control.Need) bool {
	ps := peers(n)
	if n.What == control.NeedDelivery || n.What == control.NeedArrival || n.What == control.NeedTurn {
		return false
	}
	if ofGoroutine(n) {
		return (n.What == control.NeedGoroutine || g.noTimers) && !slices.ContainsFunc(ps, func(p int) bool { return !g.closed[p] })
	}
	if n.What == control.NeedSave && !g.noSaves {
		return false // room may also come of a snapshot of another rank
	}
	for _, p := range ps {
		if !g.closed[p] || g.coming(p, r) {
			return false
		}
	}
	return len(ps) > 0
}

// coming tells whether p has sent something that r has not had.
func (g graph) coming(p int, r *rank) bool {
	sent := g.ranks[p].sent[r.Rank]
	if g.noSaves {
		sent -= g.ranks[p].held[r.Rank]
	}
	return sent != r.received[p]
}

// peers is who can do what n is about.
func peers(n control.Need) []int {
	if n.Peer >= 0 {
		return []int{n.Peer}
	}
	return n.Peers
}

// ofGoroutine is true of what other goroutines of the process can do, and not
// messages.
func ofGoroutine(n control.Need) bool {
	return n.What == control.NeedGoroutine || n.What == control.NeedEvent
}

// obstacles is the needs that keep r waiting, with the call each is of.
func (g graph) obstacles(r *rank) []obstacle {
	var all []obstacle
	for _, w := range r.Waits {
		for _, n := range w.Needs {
			if !ofGoroutine(n) && g.hopeless(r, n) {
				all = append(all, obstacle{r.Rank, w, n})
			}
		}
	}
	return all
}

// An obstacle is a need that nobody will fulfil.
type obstacle struct {
	rank int
	wait control.Wait
	need control.Need
}

// cycle is the shortest of the cycles that result from following, from each
// rank, the lowest of those that it cannot do without. It begins with its
// lowest rank.
func (g graph) cycle(members []int) []int {
	next := map[int]int{}
	for _, m := range members {
		for _, w := range g.ranks[m].Waits {
			for _, p := range g.indispensable(g.ranks[m], w) {
				if old, ok := next[m]; !ok || p < old {
					next[m] = p
				}
			}
		}
	}
	var best []int
	met := map[int]int{} // by whose walk
	for _, start := range members {
		at, ok := start, true
		for ok {
			if walk, before := met[at]; before {
				ok = walk == start
				break
			}
			met[at] = start
			at, ok = next[at]
		}
		if !ok {
			continue // it ends, or joins an earlier walk
		}
		c := []int{at}
		for p := next[at]; p != at; p = next[p] {
			c = append(c, p)
		}
		if best == nil || len(c) < len(best) {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	low := slices.Index(best, slices.Min(best))
	return slices.Concat(best[low:], best[:low])
}

// indispensable is the waiting ranks each of which alone keeps w from ending:
// not one of several that could end it.
func (g graph) indispensable(r *rank, w control.Wait) []int {
	waiting := func(n control.Need) []int {
		return slices.DeleteFunc(slices.Clone(peers(n)), func(p int) bool {
			return g.ranks[p].State != "waiting" || p == r.Rank && n.Peer < 0 // of any, it does not mean itself
		})
	}
	var all []int
	for _, n := range w.Needs {
		if ofGoroutine(n) || !g.hopeless(r, n) {
			continue
		}
		if ps := waiting(n); w.Any || len(ps) == 1 {
			all = append(all, ps...)
		}
	}
	slices.Sort(all)
	if all = slices.Compact(all); w.Any && len(all) > 1 {
		return nil
	}
	return all
}
