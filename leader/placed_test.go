package leader

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// What others have decided is the map; a process that is lost afterwards takes no rank with it.
func TestPlacedByOthers(t *testing.T) {
	x, y := topology.Place{Host: "X", Slot: 0}, topology.Place{Host: "Y", Slot: 1}
	m := New(Config{Level: Moves}, topology.New([]topology.Place{x, {Host: "Y", Slot: 0}}))
	now := time.Unix(0, 0)
	m.Step(now, HostJoined{Host: "X"})
	m.Step(now, HostJoined{Host: "Y"})
	m.Step(now, ProcessReady{Place: y})
	require.Empty(t, m.Step(now, Placed{[]Seat{{0, y}}}))
	at, _ := m.Map().Place(0)
	require.Equal(t, y, at)
	require.Equal(t, topology.Epoch(2), m.Map().Epoch())
	require.Empty(t, m.Step(now, Placed{[]Seat{{0, y}}}), "it is there")
	require.Empty(t, m.Step(now, Placed{[]Seat{{9, y}}}), "there is no such rank")
	for _, a := range m.Step(now, ProcessLost{Place: x, Why: Killed}) {
		_, gaveUp := a.(GiveUp)
		require.False(t, gaveUp, "%v", a)
	}
	require.Zero(t, m.hosts["X"].ranks)
	require.Equal(t, 2, m.hosts["Y"].ranks)
}

// A dead rank that others have placed lives, and is not recovered once more.
func TestADeadRankPlacedByOthers(t *testing.T) {
	x, y := topology.Place{Host: "X"}, topology.Place{Host: "Y", Slot: 1}
	m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, {Host: "Y"}}))
	m.Step(start, HostJoined{Host: "X", Trusted: true})
	m.Step(start, HostJoined{Host: "Y", Trusted: true})
	m.Step(start, ProcessLost{Place: x, Why: Killed})
	m.Step(start, Placed{[]Seat{{0, y}}})
	m.Step(start, ProcessReady{topology.Place{Host: "X", Slot: 1}})
	for i := range 100 { // 10 s
		require.Empty(t, m.Step(start.Add(time.Duration(i)*100*time.Millisecond), Tick{}))
	}
}

// A rank on a host that gets next to no processor time needs for ever to its next safe point: where
// nothing was saved yet it rather begins again.
func TestAStarvedRankWithoutASnapshotBeginsAgain(t *testing.T) {
	for throttled, again := range map[float64]bool{0.99: true, 0.3: false} {
		x := topology.Place{Host: "X"}
		m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, {Host: "Y"}}))
		m.Step(start, HostJoined{Host: "X", Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Trusted: true})
		m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
		m.Step(start, Traffic{0, []Flow{{To: 1, Rate: 1e6}}})
		m.Step(start.Add(time.Second), HostReading{Host: "X", Cores: 2, Throttled: throttled})
		var plans []adapt.Plan
		for i := range 20 {
			plans = append(plans, plansOf(m.Step(start.Add(time.Second+time.Duration(i)*100*time.Millisecond), Tick{}))...)
		}
		require.Len(t, plans, 1, "throttled %v of the time", throttled)
		require.Equal(t, again, plans[0].Act.Verb == VerbAgain, "throttled %v of the time: %v", throttled, plans[0].What)
	}
}

// How long a host's want of cores must last before something is done: where a quota leaves next to nothing
// less than where it may be a moment's doing.
func TestHowLongAHostIsStarved(t *testing.T) {
	for name, c := range map[string]struct {
		first, then float64 // share of the time that its ranks are held back, and 100 ms later
		after       time.Duration
	}{
		"by half":                   {0.5, 0.5, pressFor},
		"nearly all of it":          {0.9, 0.9, heldFor},
		"the first reading is less": {0.3, 0.95, heldFor},
	} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{Level: Crashes}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}}))
			m.Step(start, HostJoined{Host: "X", Trusted: true})
			m.Step(start, HostJoined{Host: "Y", Trusted: true})
			m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
			m.Step(start, Traffic{0, []Flow{{To: 1, Rate: 1e6}}})
			began := start.Add(time.Second)
			m.Step(began, HostReading{Host: "X", Cores: 2, Throttled: c.first})
			now := began
			for len(plansOf(m.Step(now, Tick{}))) == 0 {
				require.Less(t, now.Sub(began), time.Second)
				if now = now.Add(50 * time.Millisecond); now.Sub(began) == 100*time.Millisecond {
					m.Step(now, HostReading{Host: "X", Cores: 2, Throttled: c.then})
				}
			}
			require.Equal(t, c.after, now.Sub(began))
		})
	}
}

// A breach that was forgotten, as no ranks were at one of its ends, counts again when readings show that it lasts.
func TestABreachThatLastsIsToldAgain(t *testing.T) {
	x, y, z := topology.Place{Host: "X"}, topology.Place{Host: "Y"}, topology.Place{Host: "Z"}
	m := New(Config{}, topology.New([]topology.Place{x, y}))
	for _, h := range []string{"X", "Y", "Z"} {
		m.Step(start, HostJoined{Host: h, Trusted: true})
	}
	m.Step(start, ProcessReady{z})
	m.Step(start, Traffic{0, []Flow{{To: 1, Rate: 1e6}}})
	b := Breach{Link: Link{From: "X", To: "Y"}, Promised: 1e7, Seen: 1e6}
	m.Step(start, b)
	b.Lasts = true
	m.Step(start, b) // nothing new
	plans := plansOf(m.Step(start.Add(time.Second), Tick{}))
	require.Len(t, plans, 1)
	m.Step(start.Add(time.Second), PlanEnded{plans[0].ID, adapt.Outcome{End: adapt.Finished}})
	moved := plans[0].Act
	now := start.Add(time.Minute)
	m.Step(now, Tick{}) // the breach is over: nothing uses the link
	m.Step(now, Placed{[]Seat{{moved.Rank, moved.From}}})
	require.Empty(t, plansOf(m.Step(now.Add(5*time.Second), Tick{})))
	m.Step(now.Add(5*time.Second), b)
	require.Len(t, plansOf(m.Step(now.Add(6*time.Second), Tick{})), 1)
}

// A recovery that is undone again and again is not tried for ever.
func TestARecoveryThatIsUndoneEnds(t *testing.T) {
	x := topology.Place{Host: "X"}
	m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, {Host: "Y"}}))
	m.Step(start, HostJoined{Host: "X", Trusted: true})
	m.Step(start, HostJoined{Host: "Y", Trusted: true})
	m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
	all := m.Step(start, ProcessLost{Place: x, Why: Killed})
	plans := 0
	for now := start; ; now = now.Add(tryAgain) {
		var next []Action
		for _, a := range all {
			if end, ok := a.(GiveUp); ok {
				require.Contains(t, end.Reason, "50 plans to recover it were undone")
				require.Equal(t, undoneMost, plans)
				return
			}
		}
		for _, p := range plansOf(all) {
			plans++
			next = append(next, m.Step(now, PlanEnded{ID: p.ID, Outcome: adapt.Outcome{End: adapt.Undone}})...)
		}
		require.LessOrEqual(t, plans, undoneMost)
		all = append(next, m.Step(now, Tick{})...)
		require.Less(t, now.Sub(start), time.Hour)
	}
}

// State does not leave a host that is to blame if another has it. With it alone a process is not given up, nor with a rank that
// may not move now.
func TestWhatIsGivenUpIsElsewhere(t *testing.T) {
	for name, c := range map[string]struct {
		copies []string
		moved  time.Time // of the other rank
		want   []string
	}{
		"another has it":              {copies: []string{"X", "Y"}, want: []string{"from the copy on Y", "from the copy on Y"}},
		"nobody else has it":          {copies: []string{"X"}, want: []string{"move rank 0", "move rank 1"}},
		"the other has moved lately":  {copies: []string{"Y"}, moved: start, want: []string{"move rank 0"}},
		"the other has moved earlier": {copies: []string{"Y"}, moved: start.Add(-coolDown), want: []string{"from the copy on Y", "from the copy on Y"}},
	} {
		t.Run(name, func(t *testing.T) {
			x := topology.Place{Host: "X"}
			m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, x, {Host: "Y"}}))
			for _, h := range []string{"X", "Y", "Z"} {
				m.Step(start, HostJoined{Host: h, Trusted: true})
			}
			for r := range topology.Rank(2) {
				m.Step(start, ProcessReady{topology.Place{Host: "Z", Slot: int(r)}})
				m.Step(start, Traffic{r, []Flow{{To: 2, Rate: 1e6}}})
				m.Step(start, StateSize{Rank: r, Bytes: 1e6, Copies: c.copies, Taken: start})
			}
			m.ranks[1].moved = c.moved
			m.Step(start, HostReading{Host: "X", Cores: 2, Others: 2, Pressure: 0.9})
			plans := plansOf(m.Step(start.Add(time.Second), Tick{}))
			require.Len(t, plans, len(c.want))
			for i, p := range plans {
				require.Contains(t, p.What, c.want[i])
			}
		})
	}
}
