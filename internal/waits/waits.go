// Package waits explains who waits for whom, from what the ranks of a job
// report, and finds those that wait in vain.
package waits

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// An Explanation is what reports tell about a job, for people.
type Explanation struct {
	Waits    []string  `json:"waits"`    // a sentence for each blocking call, by rank
	Running  []int     `json:"running"`  // ranks that wait in no call, or did not tell, ascending
	Finished []int     `json:"finished"` // ascending
	Deadlock *Deadlock `json:"deadlock"` // nil: none is proven
	// Suspected is what is a deadlock unless a timer wakes one of its ranks'
	// goroutines, or a snapshot that is on its way makes room in a log. Nil beside a Deadlock.
	Suspected *Deadlock `json:"suspected"`
}

// A Deadlock is ranks none of which can go on: each can only be freed by others
// of them, or by ranks that have finished.
//
// Reports are not of one instant, so what looks like a deadlock may have been a
// message on its way. [Explanation.Confirms] settles it.
type Deadlock struct {
	Ranks  []int    `json:"ranks"`  // ascending
	Cycle  []int    `json:"cycle"`  // each waits for the next and the last for the first; nil if there is no cycle
	Causes []string `json:"causes"` // what is wrong, a sentence each, the most telling first

	members map[int]*rank // Ranks
	closed  map[int]bool  // Ranks and those that have finished
}

// A rank is what one rank has reported.
type rank struct {
	control.RankReport
	process        int
	sent, received map[int]uint64 // by peer
	held           map[int]uint64 // of sent, what the full log holds back
}

// Explain explains reports, which were made at about now. A rank that is in
// none of them is taken to be running.
func Explain(now time.Time, reports []control.Report) Explanation {
	ranks := map[int]*rank{}
	for _, rep := range reports {
		for _, rr := range rep.Ranks {
			ranks[rr.Rank] = &rank{rr, rep.Process, counts(rr.Sent), counts(rr.Received), heldBack(rr.Sent)}
		}
	}
	for _, r := range ranks {
		r.delivered(ranks)
	}
	var e Explanation
	still := true
	for _, r := range sorted(ranks) {
		still = still && r.State != "running"
		switch {
		case r.State == "finished":
			e.Finished = append(e.Finished, r.Rank)
		case r.State != "waiting" && len(r.Waits) == 0:
			e.Running = append(e.Running, r.Rank)
		}
		for _, w := range r.Waits {
			text := waitSentence(now, r.Rank, w)
			if r.State == "running" && now.Sub(time.Unix(0, w.Since)) >= passing {
				text += "; other goroutines of it run"
			}
			e.Waits = append(e.Waits, text)
		}
	}
	e.Waits = append(e.Waits, missed(ranks, reports)...)
	if e.Deadlock = findDeadlock(graph{ranks: ranks}); e.Deadlock == nil {
		e.Suspected = findDeadlock(graph{ranks: ranks, noTimers: true, noSaves: still})
	}
	return e
}

// missed is a sentence for each two processes of which one has something for the other and does not reach it.
func missed(ranks map[int]*rank, reports []control.Report) (sentences []string) {
	of := map[int][]int{}
	for _, r := range sorted(ranks) {
		of[r.process] = append(of[r.process], r.Rank)
	}
	for _, rep := range reports {
		for _, m := range rep.Missed {
			sentences = append(sentences, fmt.Sprintf("%s has had no connection to %s for %s: %s",
				processText(rep.Process, of), processText(m.Process, of), duration(m.For), m.Why))
		}
	}
	return sentences
}

func processText(i int, of map[int][]int) string {
	switch ranks := of[i]; len(ranks) {
	case 0:
		return fmt.Sprintf("process %d", i)
	case 1:
		return fmt.Sprintf("rank %d", ranks[0])
	default:
		return fmt.Sprintf("the process of rank %d", ranks[0])
	}
}

// passing is how long a call waits that may have begun while its rank was looked at: the goroutine
// that ran then may be the one that waits.
const passing = 100 * time.Millisecond

// delivered finds what r sends for which the peer need do nothing more: it is on its way, or a receive has it
// and what says so may be on its way back. Whether none has it the peer alone knows.
func (r *rank) delivered(ranks map[int]*rank) {
	r.Waits = slices.Clone(r.Waits)
	for i, w := range r.Waits {
		needs := slices.Clone(w.Needs)
		for j, n := range needs {
			if p := ranks[n.Peer]; n.What == control.NeedReceive && n.Number != 0 && p != nil && !p.offered(r.Rank, n.Number) {
				needs[j].What = control.NeedDelivery
			}
		}
		r.Waits[i].Needs = needs
	}
}

// offered tells whether r has that message of peer but for its body, and no receive does.
func (r *rank) offered(peer int, number uint64) bool {
	return slices.ContainsFunc(r.Offered, func(o control.Numbers) bool {
		return o.Peer == peer && o.First <= number && number <= o.Last
	})
}

// On is a sentence for each call in reports that waits for one of ranks, and no
// others.
func On(now time.Time, reports []control.Report, ranks []int) (sentences []string) {
	for _, rep := range reports {
		for _, rr := range rep.Ranks {
			for _, w := range rr.Waits {
				if slices.ContainsFunc(w.Needs, func(n control.Need) bool { return slices.Contains(ranks, n.Peer) }) {
					sentences = append(sentences, waitSentence(now, rr.Rank, w))
				}
			}
		}
	}
	return sentences
}

func counts(cs []control.Count) map[int]uint64 {
	m := make(map[int]uint64, len(cs))
	for _, c := range cs {
		m[c.Peer] = c.N
	}
	return m
}

func heldBack(cs []control.Count) map[int]uint64 {
	m := make(map[int]uint64, len(cs))
	for _, c := range cs {
		m[c.Peer] = c.Held
	}
	return m
}

func sorted(ranks map[int]*rank) []*rank {
	all := make([]*rank, 0, len(ranks))
	for _, r := range ranks {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *rank) int { return a.Rank - b.Rank })
	return all
}

// Confirms is true if all ranks of the deadlock in before, which was explained
// earlier, are in the one in e, in the same calls and with the same counts of
// messages: nothing was on its way, so it is one.
func (e Explanation) Confirms(before Explanation) bool {
	return e.Deadlock.confirms(before.Deadlock)
}

// Repeats is Confirms for what is suspected.
func (e Explanation) Repeats(before Explanation) bool {
	return e.Suspected.confirms(before.Suspected)
}

func (d *Deadlock) confirms(before *Deadlock) bool {
	if d == nil || before == nil {
		return false
	}
	for n, was := range before.members {
		is := d.members[n]
		if is == nil || is.process != was.process || !slices.Equal(callIDs(is), callIDs(was)) ||
			!sameCounts(is.sent, was.sent, before.closed) || !sameCounts(is.received, was.received, before.closed) {
			return false
		}
	}
	return true
}

// Since is when the last of d's ranks that is in a call of mpiv began it; zero
// if none is. All: each of them is in one.
func (d *Deadlock) Since() (last time.Time, all bool) {
	all = true
	for _, r := range d.members {
		called := false
		for _, w := range r.Waits {
			if t := time.Unix(0, w.Since); w.Since > 0 {
				called = true
				if t.After(last) {
					last = t
				}
			}
		}
		all = all && called
	}
	return last, all
}

// sameCounts is true if a and b agree about each of peers.
func sameCounts(a, b map[int]uint64, peers map[int]bool) bool {
	for _, m := range []map[int]uint64{a, b} {
		for p := range m {
			if peers[p] && a[p] != b[p] {
				return false
			}
		}
	}
	return true
}

func callIDs(r *rank) []uint64 {
	ids := make([]uint64, len(r.Waits))
	for i, w := range r.Waits {
		ids[i] = w.ID
	}
	slices.Sort(ids)
	return ids
}

// maxLines bounds what String prints about single calls.
const maxLines = 40

// String is e as indented lines.
func (e Explanation) String() string {
	var lines []string
	if d := cmp.Or(e.Deadlock, e.Suspected); d != nil {
		lines = append(lines, d.Causes...)
	}
	lines = append(lines, e.Waits[:min(len(e.Waits), maxLines)]...)
	if more := len(e.Waits) - maxLines; more > 0 {
		lines = append(lines, "and "+count(more, "more call"))
	}
	if len(e.Running) > 0 {
		lines = append(lines, rankList(e.Running)+" "+are(e.Running)+" running")
	}
	if len(e.Finished) > 0 {
		lines = append(lines, rankList(e.Finished)+" "+have(e.Finished)+" finished")
	}
	if len(lines) == 0 {
		return "  nothing is known of any rank"
	}
	return "  " + strings.Join(lines, "\n  ")
}
