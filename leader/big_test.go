package leader

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// bigJob is n ranks, 20 a host, in a ring, each sending also to the rank a host further; every host has four spares. At level crashes.
func bigJob(n int) *Machine {
	var places []topology.Place
	for r := range n {
		places = append(places, topology.Place{Host: fmt.Sprintf("h%03d", r/20), Slot: r % 20})
	}
	m := New(Config{Level: Crashes, MovesPerMinute: 1000}, topology.New(places))
	for h := range n / 20 {
		name := fmt.Sprintf("h%03d", h)
		m.Step(start, HostJoined{Host: name, Trusted: true})
		for s := range 4 {
			m.Step(start, ProcessReady{topology.Place{Host: name, Slot: 20 + s}})
		}
	}
	for r := range n {
		m.Step(start, Traffic{topology.Rank(r), []Flow{{To: topology.Rank((r + 1) % n), Rate: 1e6}, {To: topology.Rank((r + 20) % n), Rate: 2e6}}})
	}
	m.Step(start, LeadingFrom{"h000"})
	return m
}

func plansOf(acts []Action) (plans []adapt.Plan) {
	for _, a := range acts {
		if d, ok := a.(Do); ok {
			plans = append(plans, d.Plan)
		}
	}
	return plans
}

// TestWhatIsDoneDoesNotGrowWithTheJob lets the same happen in jobs of several sizes. Who hears of a move that
// is done is the rank's interest group: [Machine.Group].
func TestWhatIsDoneDoesNotGrowWithTheJob(t *testing.T) {
	measure := func(n int, in Input) (plans, told, actions int) {
		m := bigJob(n)
		for _, in := range []Input{in, Tick{}} {
			acts := m.Step(start.Add(time.Second), in)
			actions += len(acts)
			for _, p := range plansOf(acts) {
				plans++
				told += len(m.Group(p.Act.Rank))
			}
		}
		return plans, told, actions
	}
	for name, in := range map[string]Input{
		"a drain":        Drain{Host: "h002"},
		"a lost process": ProcessLost{Place: topology.Place{Host: "h002", Slot: 5}, Why: Killed},
		"a lost host":    HostLost{Host: "h002"},
	} {
		plans, told, actions := measure(1000, in)
		require.Positive(t, plans, name)
		require.Equal(t, 4*plans, told, "%s: of a ring with one chord each way", name)
		bigPlans, bigTold, bigActions := measure(10000, in)
		require.Equal(t, []int{plans, told, actions}, []int{bigPlans, bigTold, bigActions}, name)
	}
}

// TestBigJob lets hosts of 10 000 ranks die one after the other, and all plans end well.
func TestBigJob(t *testing.T) {
	m := bigJob(10000)
	now, recovered, lost := start, 0, 0
	for h := 0; h < 50; h += 7 {
		now = now.Add(time.Second)
		lost += m.hosts[fmt.Sprintf("h%03d", h)].ranks
		for todo := plansOf(m.Step(now, HostLost{Host: fmt.Sprintf("h%03d", h)})); len(todo) > 0; todo = todo[1:] {
			recovered++
			todo = append(todo, plansOf(m.Step(now, PlanEnded{ID: todo[0].ID, Outcome: adapt.Outcome{End: adapt.Finished}}))...)
		}
	}
	require.GreaterOrEqual(t, lost, 8*20)
	require.Equal(t, lost, recovered)
	for _, h := range m.hosts {
		require.LessOrEqual(t, h.ranks, len(h.processes), h.name)
		require.Zero(t, h.incoming, h.name)
	}
}

// BenchmarkStep is what one input costs in a job of 10 000 ranks on 500 hosts.
func BenchmarkStep(b *testing.B) {
	const n = 10000
	steps := func(name string, f func(m *Machine, i int)) {
		b.Run(name, func(b *testing.B) {
			m := bigJob(n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f(m, i)
				i++
			}
		})
	}
	now := start
	tick := func(d time.Duration) time.Time { now = now.Add(d); return now }
	steps("tick", func(m *Machine, i int) { m.Step(tick(time.Millisecond), Tick{}) })
	steps("traffic", func(m *Machine, i int) {
		r := i % n
		m.Step(now, Traffic{topology.Rank(r), []Flow{{To: topology.Rank((r + 1) % n), Rate: 1e6}, {To: topology.Rank((r + 20) % n), Rate: 2e6}}})
	})
	steps("reading", func(m *Machine, i int) {
		m.Step(now, HostReading{Host: fmt.Sprintf("h%03d", i%500), Cores: 32, Busy: 20})
	})
	steps("fine", func(m *Machine, i int) {
		m.Step(now, Fine{Link{From: fmt.Sprintf("h%03d", i%500), To: fmt.Sprintf("h%03d", (i+1)%500)}, 1e8})
	})
	steps("killed-and-recovered", func(m *Machine, i int) {
		at := m.at(topology.Rank(i % n))
		m.Step(now, ProcessReady{topology.Place{Host: at.Host, Slot: 24 + i}})
		for todo := plansOf(m.Step(tick(time.Second), ProcessLost{Place: at, Why: Killed})); len(todo) > 0; todo = todo[1:] {
			todo = append(todo, plansOf(m.Step(now, PlanEnded{ID: todo[0].ID, Outcome: adapt.Outcome{End: adapt.Finished}}))...)
		}
	})
	steps("flood-decided", func(m *Machine, i int) { // two breaches, the blame, and the end of what is done
		if i > 0 && i%500 == 0 { // all hosts had theirs, and no rank went
			fresh := bigJob(n)
			*m = *fresh
		}
		host := fmt.Sprintf("h%03d", i%500)
		for _, to := range []int{1, 2} {
			m.Step(now, Breach{Link: Link{From: host, To: fmt.Sprintf("h%03d", (i+to)%500)}, Promised: 1e8, Seen: 1e7})
		}
		plans := plansOf(m.Step(tick(2*time.Second), Tick{}))
		if len(plans) == 0 {
			b.Fatal("nothing was decided")
		}
		for _, to := range []int{1, 2} {
			m.Step(now, Recovered{Link: Link{From: host, To: fmt.Sprintf("h%03d", (i+to)%500)}})
		}
		for _, p := range plans {
			m.Step(now, PlanEnded{ID: p.ID, Outcome: adapt.Outcome{End: adapt.Undone}})
		}
	})
}
