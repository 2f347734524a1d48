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
