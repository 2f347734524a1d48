package process

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/transport"
)

// What goes to a process without any message is state of a rank, and no stream of short messages.
func TestStateOfARankIsNoShortMessage(t *testing.T) {
	c := &course{}
	require.Equal(t, sensors.Large, c.class(0, 0, 1<<20), "state")
	require.Equal(t, sensors.Small, c.class(0, 0, 100))
	require.Equal(t, sensors.Small, c.class(10, 1000, 1<<20), "short messages")
	require.Equal(t, sensors.Small, c.class(10, 1000, 1<<20), "as before")
}

// All that passes over connections is told, what did before the first look too, and of another connection.
func TestAllThatPassesIsTold(t *testing.T) {
	c := &course{}
	for _, info := range []transport.PathInfo{
		{Delivered: 1000, Received: 100},
		{Delivered: 1500, Sent: 2500, Received: 100},
		{}, // closed
		{Delivered: 30, Received: 20},
	} {
		c.see(info, time.Now(), sensors.SlotTime)
	}
	require.Equal(t, control.Passed{In: 120, Out: 2530}, c.passed)
}

type counted struct {
	transport.Conn
	sent, received uint64
}

func (c counted) Passed() (sent, received uint64) { return c.sent, c.received }

// So is what passes over a connection whose path is not measured: it is the job's all the same.
func TestWhatPassesUnmeasuredIsTold(t *testing.T) {
	c := &course{}
	c.look(counted{sent: 2000, received: 300}, time.Now(), sensors.SlotTime)
	c.look(counted{sent: 2500, received: 400}, time.Now(), sensors.SlotTime)
	require.Equal(t, control.Passed{In: 400, Out: 2500}, c.passed)
}
