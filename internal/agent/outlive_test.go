package agent

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/ledger"
)

// Hosts are lost one after another, and others added, faster than voters agree on who votes. In the
// end those vote that the ledger says.
func TestNoChangeOfWhoVotesIsLost(t *testing.T) {
	a, _ := surviving(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
	a.deputy = &deputy{boot: control.Boot{Agent: 1}}
	job := &ledger.Job{Name: "j"}
	for _, h := range a.hosts {
		h.copies = 1
		h.place = &remote{a: a, host: h, out: make(chan control.ToAgent, 100)}
		job.Hosts = append(job.Hosts, h.name)
	}
	state := new(ledger.State)
	require.NoError(t, state.Apply(ledger.Entry{Job: job}))
	a.pen = &pen{Pen: ledger.NewPen(state)}
	a.voters = a.electorate()
	require.Len(t, a.voters, votersMost)
	members := slices.Clone(a.voters)
	a.pen.queue, a.pen.changes = newBacklog[writing](), newBacklog[change]()

	const lost = 2 * votersMost
	for n := range lost {
		a.hosts[a.voters[1]].lost = true
		a.reelect()
		a.wasAgreed(uint64(n + 1))
	}
	for _, c := range a.pen.changes.take(nil) {
		if c.remove != 0 {
			members = slices.DeleteFunc(members, func(i int) bool { return i == c.remove-1 })
		} else {
			members = append(members, c.add.Agent-1)
		}
	}
	require.ElementsMatch(t, state.Voters, members, "after %d hosts were lost", lost)
}

// Those vote who are there and trusted, an odd number: first this head, then who votes already.
func TestWhoVotes(t *testing.T) {
	for name, x := range map[string]struct {
		hosts, own       int
		voters, out, odd []int // out: lost. odd: distrusted
		want             []int
	}{
		"alone":                   {hosts: 1, want: []int{0}},
		"two are no safer":        {hosts: 2, want: []int{0}},
		"three":                   {hosts: 3, want: []int{0, 1, 2}},
		"of four":                 {hosts: 4, want: []int{0, 1, 2}},
		"of many":                 {hosts: 9, want: []int{0, 1, 2, 3, 4}},
		"another head":            {hosts: 4, own: 3, want: []int{3, 0, 1}},
		"who votes stays":         {hosts: 5, own: 2, voters: []int{4, 3, 2}, want: []int{2, 4, 3, 0, 1}},
		"one is lost":             {hosts: 4, voters: []int{0, 1, 2}, out: []int{1}, want: []int{0, 2, 3}},
		"distrusted hosts do not": {hosts: 5, voters: []int{0, 1, 2}, odd: []int{1, 3}, want: []int{0, 2, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			a, _ := surviving(slices.Repeat([]int{1}, x.hosts)...)
			a.deputy = &deputy{boot: control.Boot{Agent: x.own + 1}}
			for i, h := range a.hosts {
				h.copies = 1
				h.lost, h.Distrusted = slices.Contains(x.out, i), slices.Contains(x.odd, i)
			}
			a.voters = x.voters
			require.Equal(t, x.want, a.electorate())
		})
	}
}
