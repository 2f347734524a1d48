package process

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

func TestBegan(t *testing.T) {
	on := func(hosts ...string) (all []control.Process) {
		for _, h := range hosts {
			all = append(all, control.Process{Host: h, Cores: 2})
		}
		return all
	}
	for name, c := range map[string]struct {
		ranked         []control.Process
		crowded, alone bool
	}{
		"one host with room":            {on("X", "X"), false, true},
		"one host that is full":         {on("X", "X", "X"), true, true},
		"several with room":             {on("X", "Y", "X", "Y"), false, false},
		"several, of which one is full": {on("X", "Y", "X", "X"), true, false},
	} {
		crowded, alone := began(c.ranked)
		require.Equal(t, c.crowded, crowded, name)
		require.Equal(t, c.alone, alone, name)
	}
}
