package process

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// aLife is that of the only rank of a job, in its epoch 3.
func aLife(t *testing.T) *Life {
	p := &Process{living: map[topology.Rank]*Life{}, stopped: make(chan struct{}), asks: asks{came: make(chan struct{}, 1)}}
	p.engine = engine.New(engine.Config{Keep: true, Processes: [][]topology.Rank{{0}}, Fail: func(err error) { t.Error(err) }})
	t.Cleanup(func() { p.engine.Close() })
	l := &Life{p: p, Box: p.engine.Box(0), epoch: 3, pace: newPace(0, every, false, clock(0))}
	p.living[0] = l
	return l
}

// A snapshot is covered by word of it, or of a later one; what is said of another life, or of an earlier snapshot, is not of it.
func TestWhichSnapshotIsCovered(t *testing.T) {
	for name, c := range map[string]struct {
		said    control.Covered
		covered bool
	}{
		"it is":               {control.Covered{Epoch: 3, Number: 5}, true},
		"the one before":      {control.Covered{Epoch: 3, Number: 4}, false},
		"one of another life": {control.Covered{Epoch: 2, Number: 9}, false},
		"another rank's":      {control.Covered{Rank: 1, Epoch: 3, Number: 5}, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := aLife(t)
			l.pending = &pending{saved: control.Saved{Number: 5}}
			l.save.Store(true) // it has waited for that
			l.p.covered(c.said)
			require.Equal(t, c.covered, l.covers())
			require.Equal(t, c.covered, l.outlives.Load() == 5)
			require.Equal(t, c.covered || name == "the one before", l.due.Load())
		})
	}
}

// Nothing else is saved while a snapshot waits for its log.
func TestADraftCoversNothing(t *testing.T) {
	l := aLife(t)
	require.True(t, l.covers())
	l.draft = new(draft)
	require.False(t, l.covers())
	l.forget()
	require.True(t, l.covers())
}

// Of a snapshot of which nobody says that it is covered the agent is told again, once in the time between two.
func TestASnapshotIsSaidAgain(t *testing.T) {
	l := aLife(t)
	require.Nil(t, l.overdueLocked(clock(100)))
	l.pending = &pending{saved: control.Saved{Number: 5}, said: clock(100)}
	require.Nil(t, l.overdueLocked(clock(101.9)))
	require.EqualValues(t, 5, l.overdueLocked(clock(102)).Number)
	require.Nil(t, l.overdueLocked(clock(103.9)))
	require.NotNil(t, l.overdueLocked(clock(104)))
}

func TestAsksAreBounded(t *testing.T) {
	a := &asks{came: make(chan struct{}, 1)}
	for i := range asksMost + 10 {
		a.add(0, 1, i)
	}
	require.Len(t, a.take(), asksMost)
	require.Empty(t, a.take())
}

// A rank that does not leave in time is to end what goes ahead of it, before the agent hears that it stays.
func TestWhoStaysEndsWhatGoesAhead(t *testing.T) {
	l := aLife(t)
	near, far := net.Pipe()
	defer near.Close()
	l.p.agent = control.NewConn[control.Message](near)
	m := &control.Depart{Rank: 0, Epoch: 4, Patience: time.Millisecond}
	l.depart.Store(m)
	go l.p.awaitLeave(l, m)
	said, err := control.NewConn[control.Message](far).Receive()
	require.NoError(t, err)
	require.EqualValues(t, 4, said.Stayed.Epoch)
	require.True(t, said.Stayed.Unsafe)
	require.True(t, l.due.Load())
	require.Nil(t, l.depart.Load())
}
