//go:build linux

package lab

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALinkThatCannotBeChangedIsAsItWas(t *testing.T) {
	l := ForTest(t, Options{})
	before := l.show()
	c, err := l.link("X", "lan")
	require.NoError(t, err)
	port := c.port
	c.port = "none"
	require.Error(t, l.Cut("X", "lan"))
	require.Error(t, l.SetRate("X", "lan", 5*Mbit))
	require.Equal(t, before, l.show())
	c.port = port
	require.NoError(t, l.Cut("X", "lan"))
	require.NoError(t, l.SetRate("X", "lan", 5*Mbit))
	during := l.show()
	require.NotEqual(t, before, during)
	c.port = "none"
	require.Error(t, l.Heal("X", "lan"))
	require.Error(t, l.SetRate("X", "lan", 0))
	require.Equal(t, during, l.show())
	c.port = port
}
