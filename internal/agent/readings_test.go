package agent

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/patient"
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
		_, _, _, out := quiet.take(control.HostReading{Over: int64(over), Out: rate * 1.03, CopiesOut: rate}, time.Time{})
		require.Less(t, out, rate/20, "a host that sends copies: foreign traffic")
		flooded.take(control.HostReading{Over: int64(over), Out: rate}, time.Time{})
	}
	_, _, _, out := flooded.take(control.HostReading{Over: int64(over), Out: rate}, time.Time{})
	require.Greater(t, out, rate/2, "a host that sends what is not the job's")
}

// What passes between processes is the job's, whichever of the two tells of it: one that dies no longer does,
// and one whose agent is behind a slow link does late.
func TestEitherEndTellsWhatPassed(t *testing.T) {
	p, q := &process{index: 0, host: &host{name: "X"}}, &process{index: 1, host: &host{name: "Y"}}
	a := &Agent{processes: []*process{p, q}}
	a.policy = &policy{passages: map[[2]int]*passage{}, traffics: map[string]*traffic{}}
	out, in := &a.policy.trafficOf("X").movedOut, &a.policy.trafficOf("Y").movedIn
	for _, c := range []struct {
		by         *process
		told       control.Passed
		movedSoFar uint64
	}{
		{q, control.Passed{Peer: 0, In: 1000}, 1000}, // before the first look of p at that connection
		{p, control.Passed{Peer: 1, Out: 900}, 1000},
		{p, control.Passed{Peer: 1, Out: 300}, 1200}, // what q tells is on its way
		{q, control.Passed{Peer: 0, In: 500}, 1500},
	} {
		a.pathsRead(c.by, control.Paths{Passed: []control.Passed{c.told}})
		require.Equal(t, [2]uint64{c.movedSoFar, c.movedSoFar}, [2]uint64{*out, *in}, "%+v", c.told)
	}
	require.Zero(t, a.policy.trafficOf("X").movedIn)

	q.judged = true
	a.forgetPassages(time.Now())
	require.Len(t, a.policy.passages, 2, "p may tell more")
	a.forgetPassages(time.Now().Add(2 * passageKept))
	require.Empty(t, a.policy.passages)
}

// What was on its way to a process that died is nobody's, and is not taken for others'.
func TestWhatADeadProcessWasSentIsNotForeign(t *testing.T) {
	const rate, over, rtt = 10e6, 200 * time.Millisecond, time.Second
	died := time.Unix(1000, 0)
	p := &process{index: 1, host: &host{name: "Y"}}
	pol := &policy{flows: map[[2]int]*flow{{0, 1}: {rtt: rtt}}, traffics: map[string]*traffic{}}
	pol.died(p, died)
	y := pol.trafficOf("Y")
	for passed := over; passed < rtt; passed += over {
		_, _, in, out := y.take(control.HostReading{Over: int64(over), In: rate, Out: rate}, died.Add(passed))
		require.Zero(t, in+out, "%v after it died", passed)
	}
	_, _, in, _ := y.take(control.HostReading{Over: int64(over), In: rate}, died.Add(2*rtt))
	require.Greater(t, in, rate/2, "what still comes long after that")
}

// What agents say to each other, as what ranks print, is the job's own.
func TestWhatAgentsSayIsNotForeign(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	there, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer there.Close()
	here, err := l.Accept()
	require.NoError(t, err)
	defer here.Close()
	y := &host{name: "Y", place: &remote{ear: &patient.Conn{Conn: tls.Server(here, nil)}}}
	a := &Agent{hosts: []*host{{name: "X", here: true}, y}, policy: &policy{traffics: map[string]*traffic{}}}
	for told := uint64(1000); told <= 2000; told += 1000 {
		_, err = there.Write(make([]byte, 1000))
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			a.saidRead(y)
			return a.policy.trafficOf("Y").movedOut == told
		}, 10*time.Second, time.Millisecond)
		require.Equal(t, told, a.policy.trafficOf("X").movedIn)
	}
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
