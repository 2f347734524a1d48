package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
)

// A copy of a snapshot is the job's own traffic: a host that only sends copies is not flooded, and
// links learn what they deliver beside them.
func TestCopiesAreNotForeign(t *testing.T) {
	const rate, over = 10e6, 200 * time.Millisecond
	var quiet, flooded traffic
	for range 25 {
		_, _, _, out := quiet.take(control.HostReading{Over: int64(over), Out: rate * 1.03, CopiesOut: rate})
		require.Less(t, out, rate/20, "a host that sends copies: foreign traffic")
		flooded.take(control.HostReading{Over: int64(over), Out: rate})
	}
	_, _, _, out := flooded.take(control.HostReading{Over: int64(over), Out: rate})
	require.Greater(t, out, rate/2, "a host that sends what is not the job's")
}

// A link that ranks share with copies delivers both; over another network copies take nothing of it.
func TestCopiesShareTheLink(t *testing.T) {
	begin := time.Unix(1000, 0)
	r := path.Reading{Over: 200 * time.Millisecond, Busy: 200 * time.Millisecond, Bytes: 800_000}
	r.Slots.Mark(begin, begin.Add(r.Busy-sensors.SlotTime))
	of := func(r path.Reading, class topology.Class) *gathered {
		g := &gathered{over: map[int]time.Duration{}}
		g.add(0, r, sensors.Middle, class)
		return g
	}
	copies := r
	copies.Bytes, copies.Limited, copies.Standing = 1_600_000, true, true
	r.Busy /= 2 // of the time in which copies went, too
	link := sensors.Link{From: "a", To: "b"}
	for name, c := range map[string]struct {
		copies  *gathered
		bytes   uint64
		size    sensors.SizeClass
		limited bool
	}{
		"none":                 {nil, 800_000, sensors.Middle, false},
		"over the same":        {of(copies, topology.LAN), 2_400_000, sensors.Large, true},
		"over another network": {of(copies, topology.SAN), 800_000, sensors.Middle, false},
	} {
		t.Run(name, func(t *testing.T) {
			g := of(r, topology.LAN)
			g.join(c.copies)
			got := g.reading(begin, link)
			require.Equal(t, sensors.Reading{At: begin, Link: link, Size: c.size, Bytes: c.bytes, Over: r.Over, Busy: r.Over, Limited: c.limited, Standing: c.limited}, got)
		})
	}
}

// What a process of several ranks sends is that of all of them: each is known to use the links that its process does.
func TestAllRanksOfAProcessAreSenders(t *testing.T) {
	x, y := topology.Place{Host: "X"}, topology.Place{Host: "Y"}
	a := &Agent{processes: []*process{{index: 0, ranks: []int{0, 1, 2}}, {index: 1, ranks: []int{3, 4}}}}
	a.policy = &policy{
		machine: leader.New(leader.Config{}, topology.New([]topology.Place{x, x, x, y, y})),
		flows:   map[[2]int]*flow{{0, 1}: {rate: 3e6, bytes: 600}},
	}
	a.sendersKnown()
	for rank, others := range [][]topology.Rank{{3}, {4}, {3}, {0, 2}, {1}} {
		require.Equal(t, others, a.policy.machine.Group(topology.Rank(rank)), "rank %d", rank)
	}
}
