package agent

import (
	"net"
	"testing"
	"time"

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

// toldAgent is an agent that a head tells things, and what it reads these from.
func toldAgent(t *testing.T) (h *head, r *remote, there net.Conn) {
	here, there := net.Pipe()
	t.Cleanup(func() { there.Close() })
	h = &head{a: newAgent(Job{Silence: time.Hour}), launches: new(launcher), conns: map[net.Conn]bool{here: true}, remotes: map[*remote]bool{}}
	r = &remote{
		a: h.a, to: control.NewConn[control.ToAgent](here), out: make(chan control.ToAgent, 2),
		over: make(chan struct{}), parting: make(chan struct{}), silent: make(chan struct{}), gave: make(chan struct{}, 1),
	}
	h.speak(r)
	return h, r, there
}

// What an agent is to be told when the job ends it is told: who ended the job there waits to hear that.
func TestWhatIsDueIsToldAtTheEnd(t *testing.T) {
	h, r, there := toldAgent(t)
	r.tell(control.ToAgent{Kill: &control.Kill{Process: 1}})
	r.tell(control.ToAgent{Answer: &control.Exchange{ID: 7}})
	closed := make(chan struct{})
	go func() {
		h.close()
		close(closed)
	}()
	told := control.NewConn[control.ToAgent](there)
	first, err := told.Receive()
	require.NoError(t, err)
	require.NotNil(t, first.Kill)
	last, err := told.Receive()
	require.NoError(t, err)
	require.Equal(t, uint64(7), last.Answer.ID)
	<-closed
	_, err = told.Receive()
	require.Error(t, err)
}

// An agent that does not read holds up nobody for long.
func TestWhoDoesNotReadIsLeftAtTheEnd(t *testing.T) {
	h, r, _ := toldAgent(t)
	r.tell(control.ToAgent{Kill: &control.Kill{Process: 1}})
	h.close()
	require.ErrorContains(t, r.why, "does not read")
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
