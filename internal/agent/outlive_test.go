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
