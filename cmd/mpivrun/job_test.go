package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJobSize(t *testing.T) {
	m := machine{Cores: 4, Names: []string{"n1"}}
	for _, c := range []struct {
		name, line string
		ranks      []int
		says       string
	}{
		{"as many ranks as cores", "p", []int{4}, ""},
		{"more ranks than cores are fine here", "-n 64 p", []int{64}, ""},
		{"but not beyond any sense", "-n 65 p", nil, "65 processes on 4 cores are more than 16 for each"},
		{"unless asked for", "-n 65 --oversubscribe p", []int{65}, ""},
		{"or sharing processes", "-n 1000 --ranks-per-process 100 p", []int{1000}, ""},
		{"spares count", "-n 60 --spares 5 p", nil, "60 processes and 5 spare ones on 4 cores are more than 16 for each"},
		{"as long as there is room", "-n 60 --spares 4 p", []int{60}, ""},
		{"but not for slots", "--host n1:3 --spares 2 p", []int{3}, ""},
		{"they are of no use where ranks stay", "--survive none --spares 1 p", nil, "with --survive none no rank does"},
		{"or are to be lost", "--survive report --spares 1 p", nil, "with --survive report no rank does"},
		{"slots that are given count", "--host localhost:2 -n 3 p", nil, "3 processes do not fit 2 slots"},
		{"and can be overrun", "--host localhost:2 --oversubscribe -n 3 p", []int{3}, ""},
		{"and are the default", "--host n1:3 p", []int{3}, ""},
		{"a host without slots has its cores", "--host n1 p", []int{4}, ""},
		{"a host named twice has two", "--host n1,n1 p", []int{2}, ""},
		{"several hosts have a slot each", "--host n1,n2,n3 p", []int{3}, ""},
		{"or as many as are said", "--host n1:2,n2 --ppn 3 p", []int{6}, ""},
		{"on one host too", "--ppn 3 p", []int{3}, ""},
		{"all programs count", "-n 2 p : -n 3 q", []int{2, 3}, ""},
		{"each of several needs a number", "-n 2 p : q", nil, "-n N before q"},
		{"input for a rank that is not there", "-n 2 --stdin 2 p", nil, "ranks 0 to 1"},
		{"one process, many ranks", "--ranks-per-process 8 p", []int{8}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := parseRun(strings.Fields(c.line))
			require.NoError(t, err)
			j, err := r.job(m, r.Hosts)
			if c.says != "" {
				require.ErrorContains(t, err, c.says)
				return
			}
			require.NoError(t, err)
			var ranks []int
			for _, p := range j.Programs {
				ranks = append(ranks, p.Ranks)
			}
			require.Equal(t, c.ranks, ranks)
		})
	}
}

func TestJobTakesOverOptions(t *testing.T) {
	t.Setenv("A", "here")
	r, err := parseRun(strings.Fields("-n 2 --survive none --transport tcp --log-bytes 1MiB --check --stdin none --bind-to core --deadlock say -x A -x B=c --wdir /tmp p q r"))
	require.NoError(t, err)
	j, err := r.job(machine{Cores: 4, Names: []string{"n1"}}, nil)
	require.NoError(t, err)
	require.Equal(t, "none", j.Options.Survive)
	require.Equal(t, []string{"tcp"}, j.Options.Transports)
	require.Equal(t, 1<<20, j.Options.LogBytes)
	require.True(t, j.Options.Check)
	require.Equal(t, -1, j.StdinRank)
	require.True(t, j.Bind)
	require.Equal(t, "say", j.Deadlock)
	require.Equal(t, []string{"A=here", "B=c"}, j.Programs[0].Env)
	require.Equal(t, "/tmp", j.Programs[0].Dir)
	require.Equal(t, "p", j.Programs[0].Path)
	require.Equal(t, []string{"q", "r"}, j.Programs[0].Args)
}
