package process

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// ending is a process whose agent is at the other end of a pipe.
func ending(t *testing.T) (*Process, *control.Conn[control.Message]) {
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close(); far.Close() })
	return &Process{agent: control.NewConn[control.Message](near), stopped: make(chan struct{}), ends: map[topology.Rank]bool{}}, control.NewConn[control.Message](far)
}

// An error that a rank returns may be of any length, as one that quotes a grid. What is told of it
// has both its ends, and fits a message between agents.
func TestAnErrorOfAnyLengthIsTold(t *testing.T) {
	p, agent := ending(t)
	go p.Ended(3, errors.New("a grid: "+strings.Repeat("\xff", 100<<20)+": the end"), 7, false)
	m, err := agent.Receive()
	require.NoError(t, err)
	require.NotNil(t, m.Failed)
	require.Equal(t, 7, m.Failed.Code)
	require.Less(t, len(m.Failed.Error), 2<<20)
	require.True(t, strings.HasPrefix(m.Failed.Error, "a grid: ") && strings.HasSuffix(m.Failed.Error, ": the end"))
}

// An errorFunc is an error whose text is made when it is asked for.
type errorFunc func() string

func (f errorFunc) Error() string { return f() }

// The text of an error may take long to make, as that of a panic with a large value. Till then the rank
// has not finished: others that wait for it would be said to do so in vain.
func TestARankHasNotEndedBeforeItsErrorIsKnown(t *testing.T) {
	p, agent := ending(t)
	ended := true
	go p.Ended(3, errorFunc(func() string {
		p.mu.Lock()
		defer p.mu.Unlock()
		ended = p.ends[3]
		return "in its time"
	}), 1, false)
	m, err := agent.Receive()
	require.NoError(t, err)
	require.NotNil(t, m.Failed)
	require.Equal(t, "in its time", m.Failed.Error)
	require.False(t, ended)
}
