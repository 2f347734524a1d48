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

func TestProcs(t *testing.T) {
	ranked := func(n, cores int) (all []control.Process) {
		for r := range n {
			all = append(all, control.Process{Host: "X", Cores: cores, Ranks: []int{r}})
		}
		return append(all, control.Process{Host: "Y", Cores: 4, Ranks: []int{n, n + 1}})
	}
	for name, c := range map[string]struct{ processes, cores, usable, want int }{
		"one on many cores":              {1, 64, 64, 64},
		"four on many cores":             {4, 64, 64, 16},
		"one for each core":              {64, 64, 64, 2},
		"more than cores":                {9, 2, 2, 2},
		"one on two cores":               {1, 2, 2, 2},
		"one that is tied to two":        {1, 64, 2, 2},
		"four, each tied to eight cores": {4, 64, 8, 8},
	} {
		all := ranked(c.processes, c.cores)
		require.Equal(t, c.want, procs(all[0], all, c.usable), name)
	}
	all := ranked(1, 2)
	require.Equal(t, 4, procs(all[1], all, 4), "two ranks")
	require.Equal(t, 8, procs(control.Process{Host: "Z", Cores: 8}, all, 8), "a spare process alone on its host")
}
