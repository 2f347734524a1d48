package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/ledger"
)

// What is ordered when something has been agreed on comes after what waited for that.
func TestOrdersAreToldInTheOrderOfCalls(t *testing.T) {
	a := newAgent(Job{})
	a.pen = &pen{Pen: ledger.NewPen(new(ledger.State))}
	r := &remote{a: a, out: make(chan control.ToAgent, 2)}
	kill := func(process int) { r.order(control.ToAgent{Kill: &control.Kill{Process: process}}) }
	n := a.pen.Again()
	a.agreed(func() { kill(2) })
	kill(1)
	a.pen.Agreed(n)
	require.Equal(t, 1, (<-r.out).Kill.Process)
	require.Equal(t, 2, (<-r.out).Kill.Process)
}

// What the operator was refused is no order of his: the next head must not carry it out.
func TestARefusedOrderIsNotWritten(t *testing.T) {
	j := Job{Programs: []Program{{Ranks: 2, Path: "a"}}, Hosts: []Host{{Name: "x", Slots: 1}, {Name: "y", Slots: 1}}, Host: "x", Quiet: true, Contracts: "off"}
	a := newAgent(j.withDefaults())
	a.job.Options.Survive = "crashes"
	a.speaker = &speaker{}
	var err error
	a.hosts, a.processes, err = layout(a.job)
	require.NoError(t, err)
	a.pen = &pen{Pen: ledger.NewPen(new(ledger.State))}
	lj := ledger.Job{Name: "j", Hosts: []string{"x", "y"}}
	for _, p := range a.processes {
		p.joined, p.started = true, true
		lj.Processes = append(lj.Processes, a.added(p))
	}
	a.record(ledger.Entry{Job: &lj})
	a.toldStart = true
	a.emitJob()
	a.beginPolicy()
	reply := make(chan Answer, 1)
	a.orderAsked(Question{Op: "drain", Host: "y"}, reply)
	require.NotEmpty(t, (<-reply).Error, "there is no room elsewhere")
	require.Empty(t, a.pen.State.Orders)
}
