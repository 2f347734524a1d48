package process

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/sensors"
)

// What goes to a process without any message is state of a rank, and no stream of short messages.
func TestStateOfARankIsNoShortMessage(t *testing.T) {
	c := &course{}
	require.Equal(t, sensors.Large, c.class(0, 0, 1<<20), "state")
	require.Equal(t, sensors.Small, c.class(0, 0, 100))
	require.Equal(t, sensors.Small, c.class(10, 1000, 1<<20), "short messages")
	require.Equal(t, sensors.Small, c.class(10, 1000, 1<<20), "as before")
}
