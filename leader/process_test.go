package leader

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// A process of several ranks that is given up takes all of them with it, all are recovered, and all count.
func TestRanksOfOneProcessBeginAgainTogether(t *testing.T) {
	run := func(budget int) []Action {
		x := topology.Place{Host: "X"}
		m := New(Config{Level: Crashes, MovesPerMinute: budget}, topology.New([]topology.Place{x, x, x, {Host: "Y"}}))
		m.Step(start, HostJoined{Host: "X", Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Trusted: true})
		for r := range topology.Rank(3) {
			m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1 + int(r)}})
			m.Step(start, Traffic{r, []Flow{{To: 3, Rate: 1e6}}})
			m.Step(start, StateSize{Rank: r, Bytes: 1e6, Copies: []string{"Y"}, Taken: start})
		}
		m.Step(start, HostReading{Host: "X", Cores: 2, Others: 2, Pressure: 0.9})
		return m.Step(start.Add(time.Second), Tick{})
	}
	plans := plansOf(run(3))
	require.Len(t, plans, 3)
	targets := map[topology.Place]bool{}
	for _, p := range plans {
		targets[p.Act.To] = true
		require.Equal(t, "Y", p.Act.To.Host)
	}
	require.Len(t, targets, 3, "two ranks got one process")

	acts := run(2)
	require.Empty(t, plansOf(acts))
	require.Len(t, acts, 1)
	require.Contains(t, acts[0].(Tell).Record.Why, "3 ranks would move, and 2 are left")
}

// A host whose process has several ranks has room for one in each that has none.
func TestRoomIsCountedInProcesses(t *testing.T) {
	x, y := topology.Place{Host: "X"}, topology.Place{Host: "Y"}
	m := New(Config{}, topology.New([]topology.Place{x, x, y, y, y}))
	for _, h := range []string{"X", "Y"} {
		m.Step(start, HostJoined{Host: h, Trusted: true})
	}
	m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
	acts := m.Step(start, Drain{Host: "X"})
	require.Contains(t, acts[0].(Tell).Record.Why, "the others have room for 1 (processes taken on the others: Y 1 of 2)")
	m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 2}})
	require.Len(t, plansOf(m.Step(start, Drain{Host: "X"})), 2)
}

// A process is given up only where there is room for all its ranks, whichever of them is looked at first.
func TestAProcessIsNotGivenUpForHalfOfItsRanks(t *testing.T) {
	for spares, want := range map[int][]string{1: {VerbMove}, 2: {VerbAgain, VerbAgain}} {
		x := topology.Place{Host: "X"}
		m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, x, {Host: "Y"}}))
		m.Step(start, HostJoined{Host: "X", Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Trusted: true})
		for i := range spares {
			m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1 + i}})
		}
		for r := range topology.Rank(2) {
			m.Step(start, Traffic{r, []Flow{{To: 2, Rate: 1e6 * float64(1+r)}}}) // rank 1 comes first
			m.Step(start, StateSize{Rank: r, Bytes: 1e6, Copies: []string{"Y"}, Taken: start})
		}
		m.Step(start, HostReading{Host: "X", Cores: 2, Others: 2, Pressure: 0.9})
		var verbs []string
		for _, p := range plansOf(m.Step(start.Add(time.Second), Tick{})) {
			verbs = append(verbs, p.Act.Verb)
		}
		require.Equal(t, want, verbs, "%d spares", spares)
	}
}

// A rank that was to begin again elsewhere, and whose plan was refused, is no dead one unless its process has
// ended: nobody gives the job up for it, and its process can be lost, and it be recovered, later.
func TestARescueThatIsRefusedLeavesTheRankAlive(t *testing.T) {
	x := topology.Place{Host: "X"}
	begin := func() (*Machine, Do) {
		m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, {Host: "Y"}}))
		m.Step(start, HostJoined{Host: "X", Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Trusted: true})
		m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
		m.Step(start, ProcessReady{topology.Place{Host: "X", Slot: 1}})
		m.Step(start, Traffic{0, []Flow{{To: 1, Rate: 1e6}}})
		m.Step(start, StateSize{Rank: 0, Bytes: 1e6, Copies: []string{"Y"}, Taken: start})
		m.ranks[0].stuck = true // so that it is not asked to come alive
		m.Step(start, HostReading{Host: "X", Cores: 2, Others: 2, Pressure: 0.9})
		for _, act := range m.Step(start.Add(time.Second), Tick{}) {
			if do, ok := act.(Do); ok {
				require.Equal(t, VerbAgain, do.Plan.Act.Verb)
				return m, do
			}
		}
		t.Fatal("no rescue was planned")
		return nil, Do{}
	}
	refused := adapt.Outcome{End: adapt.Undone, Why: "it is taken"}
	const refusedAt = 1010 * time.Millisecond

	t.Run("its process goes on", func(t *testing.T) {
		m, do := begin()
		now := start.Add(refusedAt)
		for _, act := range m.Step(now, PlanEnded{ID: do.Plan.ID, Outcome: refused}) {
			require.NotContains(t, []string{"leader.GiveUp", "leader.Do"}, fmt.Sprintf("%T", act))
		}
		require.Equal(t, x, m.at(0))
		require.Nil(t, m.ranks[0].dead)
		require.Equal(t, 1, m.hosts["X"].ranks)

		acts := m.Step(now.Add(10*time.Millisecond), ProcessLost{Place: x, Why: Killed})
		plans := plansOf(acts)
		require.Len(t, plans, 1, "%v", acts)
		require.Equal(t, VerbAgain, plans[0].Act.Verb)
	})
	for what, lost := range map[string]Input{"process": ProcessLost{Place: x, Why: Killed}, "host": HostLost{"X"}} {
		t.Run("its "+what+" is lost meanwhile", func(t *testing.T) {
			m, do := begin()
			now := start.Add(refusedAt)
			m.Step(now, lost)
			m.Step(now, PlanEnded{ID: do.Plan.ID, Outcome: refused})
			require.NotNil(t, m.ranks[0].dead)
			require.Len(t, plansOf(m.Step(now.Add(tryAgain), Tick{})), 1)
		})
	}
	t.Run("it is carried out", func(t *testing.T) {
		m, do := begin()
		m.Step(start.Add(refusedAt), PlanEnded{ID: do.Plan.ID, Outcome: adapt.Outcome{End: adapt.Finished}})
		require.Equal(t, "Y", m.at(0).Host)
		require.Contains(t, m.held(0), "it moved less than", "it does not go from host to host")
	})
}

// What was on a host that is lost is not there when one of that name joins: no copy, and no drain. Nobody leaves it for a cut.
func TestAHostThatIsLostHasNothing(t *testing.T) {
	m := New(Config{Level: Crashes}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}}))
	for _, h := range []string{"X", "Y"} {
		m.Step(start, HostJoined{Host: h, Trusted: true})
	}
	m.Step(start, StateSize{Rank: 0, Copies: []string{"X"}, Taken: start})
	m.Step(start, Drain{Host: "X", Accepted: true})
	m.Step(start, HostLost{"X"})
	m.Step(start, Unreached{Pairs: [][2]string{{"X", "Y"}}})
	require.False(t, m.Cordoned("X"))
	m.Step(start, HostJoined{Host: "X", Trusted: true})
	require.False(t, m.Cordoned("X"))
	_, there := m.copyOf(0, "Y", "")
	require.False(t, there)
}

// Of plans to recover a rank that were undone those count since it died.
func TestARankThatDiesAgainIsTriedAnew(t *testing.T) {
	x := topology.Place{Host: "X"}
	m := New(Config{Level: Crashes}, topology.New([]topology.Place{x, {Host: "Y"}}))
	m.Step(start, HostJoined{Host: "X", Trusted: true})
	m.Step(start, HostJoined{Host: "Y", Trusted: true})
	m.Step(start, ProcessReady{topology.Place{Host: "Y", Slot: 1}})
	plans := plansOf(m.Step(start, ProcessLost{Place: x, Why: Killed}))
	m.ranks[0].undone = undoneMost - 1
	m.Step(start, PlanEnded{ID: plans[0].ID, Outcome: adapt.Outcome{End: adapt.Finished}})
	m.Step(start, ProcessReady{topology.Place{Host: "X", Slot: 1}})
	plans = plansOf(m.Step(start, ProcessLost{Place: m.at(0), Why: Killed}))
	require.Len(t, plans, 1)
	m.Step(start, PlanEnded{ID: plans[0].ID, Outcome: adapt.Outcome{End: adapt.Undone}})
	require.Len(t, plansOf(m.Step(start.Add(tryAgain), Tick{})), 1)
}

// A host is not empty while a rank comes.
func TestAHostToWhichARankComesIsNotEmpty(t *testing.T) {
	m := New(Config{}, topology.New([]topology.Place{{Host: "X"}}))
	for _, h := range []string{"X", "Y"} {
		m.Step(start, HostJoined{Host: h, Trusted: true})
	}
	m.Step(start, ProcessReady{topology.Place{Host: "Y"}})
	require.Len(t, plansOf(m.Step(start, Drain{Host: "X"})), 1)
	for _, a := range m.Step(start, Drain{Host: "Y"}) {
		require.NotContains(t, a.(Tell).Record.Why, "the host is empty")
	}
	require.True(t, m.Drains("Y"))
}

// Nobody hands over to a host in quarantine, until the operator says that it is well, nor to one that is not trusted if there is another.
func TestWhoIsInQuarantineDoesNotLead(t *testing.T) {
	for _, c := range []struct {
		well, trusted bool
		to            string
	}{{true, true, "Y"}, {true, false, "Z"}, {false, true, "Z"}} {
		m := New(Config{}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}}))
		m.Step(start, LeadingFrom{"X"})
		for slot, h := range []string{"X", "Y", "Z"} {
			m.Step(start, HostJoined{Host: h, Trusted: h != "Y" || c.trusted})
			m.Step(start, ProcessReady{topology.Place{Host: "Z", Slot: slot}})
		}
		m.blameHost("Y", "it was slow")
		if c.well {
			m.Step(start, Uncordon{Host: "Y"})
		}
		require.Equal(t, c.well, m.Takes("Y"))
		require.Contains(t, m.Step(start, Drain{Host: "X"}), HandOver{c.to, "the operator drains X"})
	}
}

// An interest group is those that a rank exchanges messages with now.
func TestAnInterestGroupForgets(t *testing.T) {
	m := New(Config{}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}, {Host: "Z"}}))
	m.Step(start, Traffic{0, []Flow{{To: 1, Rate: 1}}})
	m.Step(start, Traffic{0, []Flow{{To: 2, Rate: 1}}})
	require.Empty(t, m.Group(1))
	require.Equal(t, []topology.Rank{0}, m.Group(2))
}

// A host that has just been emptied can be drained once more, by whoever did not know.
func TestAnEmptyHostIsDrainedTwice(t *testing.T) {
	for _, in := range []Input{Drain{Host: "Y"}, Unreached{Pairs: [][2]string{{"X", "Y"}}}} {
		m := New(Config{}, topology.New([]topology.Place{{Host: "X"}}))
		m.Step(start, LeadingFrom{"X"})
		m.Step(start, HostJoined{Host: "X", Trusted: true})
		m.Step(start, HostJoined{Host: "Y", Trusted: true})
		m.Step(start, ProcessReady{topology.Place{Host: "Y"}})
		for range 2 {
			acts := m.Step(start, in)
			require.Equal(t, "the host is empty, and cordoned", acts[0].(Tell).Record.Why)
			require.Len(t, acts, 1)
		}
	}
}

// A drain that was accepted outlives who leads: where spares are short when another takes over, it waits for them.
func TestADrainOfBeforeWaitsForRoom(t *testing.T) {
	m := New(Config{Level: Crashes}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}}))
	for _, h := range []string{"X", "Y"} {
		m.Step(start, HostJoined{Host: h, Trusted: true})
	}
	acts := m.Step(start, Drain{Host: "Y", Accepted: true})
	require.Equal(t, "rank 1 waits: no other host that is well has room", acts[0].(Tell).Record.Why)
	require.False(t, m.Takes("Y"))
	require.Len(t, plansOf(m.Step(start, ProcessReady{topology.Place{Host: "X", Slot: 1}})), 1)
	require.Contains(t, m.Step(start, Drain{Host: "Q", Accepted: true})[0].(Tell).Record.Why, "there is no host Q")
}

// On a host that is drained are more ranks that cannot leave, as they have finished, than may move within a minute. The others leave.
func TestADrainTriesThoseLastThatCouldNotLeave(t *testing.T) {
	const most, stay = 10, 15
	var places []topology.Place
	for slot := range stay + 1 {
		places = append(places, topology.Place{Host: "a", Slot: slot})
	}
	m, now := New(Config{MovesPerMinute: most}, topology.New(places)), start
	m.Step(now, HostJoined{Host: "a", Trusted: true})
	m.Step(now, HostJoined{Host: "b", Trusted: true})
	for slot := range places {
		m.Step(now, ProcessReady{topology.Place{Host: "b", Slot: slot}})
	}
	left := false
	todo := m.Step(now, Drain{Host: "a"})
	for end := now.Add(2*time.Minute + time.Second); now.Before(end); now = now.Add(100 * time.Millisecond) {
		for ; len(todo) > 0; todo = todo[1:] {
			if do, is := todo[0].(Do); is {
				o := adapt.Outcome{End: adapt.Undone, Why: "it has finished"}
				if do.Plan.Act.Rank == stay {
					o, left = adapt.Outcome{End: adapt.Finished}, true
				}
				todo = append(todo, m.Step(now, PlanEnded{do.Plan.ID, o})...)
			}
		}
		todo = m.Step(now, Tick{})
	}
	require.True(t, left)
}

// That a link was well before others of its host fell says nothing of the host.
func TestWhatWasFineBeforeProvesNothing(t *testing.T) {
	for at, proves := range map[time.Duration]bool{0: false, 2 * time.Second: true} {
		m := New(Config{}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}, {Host: "Z"}}))
		for _, h := range []string{"X", "Y", "Z"} {
			m.Step(start, HostJoined{Host: h, Trusted: true})
		}
		m.fine[Link{"X", "Z", "lan"}] = fine{start.Add(at), 1e7}
		m.Step(start.Add(time.Second), Breach{Link: Link{"X", "Y", "lan"}, Promised: 1e7, Seen: 1e5})
		require.Equal(t, proves, slices.Contains(m.evidence(m.falls()).Fine, Port{"X", "lan", true}))
	}
}

// No path is taken of which either end ails.
func TestAPathThatAilsIsNotTaken(t *testing.T) {
	l := Link{"X", "Y", "lan"}
	for _, ails := range []Port{{"X", "wan", true}, {"Y", "wan", false}, {"Z", "wan", true}} {
		m := New(Config{}, topology.New([]topology.Place{{Host: "X"}, {Host: "Y"}}))
		for _, h := range []string{"X", "Y"} {
			m.Step(start, HostJoined{Host: h, Trusted: true, Networks: []string{"lan", "wan"}})
		}
		m.ailing = map[Port]float64{ails: 1}
		o := m.otherPath(Trouble{Suspect: Suspect{Link: l}, Falls: []Fall{{l, 1e7, 1e5}}, Left: 0.01}, 1)
		require.Equal(t, ails.Host == "Z", o.Refused == "", "%v", ails)
	}
}
