//go:build linux

package launchtest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Y and Z cannot reach each other any more, while X, where mpivrun is, reaches both. No job
// hangs because of that: what becomes of it hangs on its level.
func TestTwoHostsCutFromEachOther(t *testing.T) {
	program := []string{"heat2d", "--tolerance", "6e-5"}
	for name, c := range map[string]struct {
		args    []string
		program []string
		heals   bool   // after two seconds
		same    bool   // as if nothing had happened
		out     string // in the output
		said    string // in what mpivrun says
		most    time.Duration
	}{
		"crashes": {args: []string{"--spares", "3", "--snapshot", "0.2"}, program: program, same: true,
			said: "host Z, cut (each is reached from X): empty the host", most: 60 * time.Second},
		"crashes, and it heals": {args: []string{"--spares", "3", "--snapshot", "0.2"}, program: program, heals: true, same: true, most: 60 * time.Second},
		"none, and it heals":    {args: []string{"--survive", "none"}, program: program, heals: true, same: true, most: 60 * time.Second},
		"moves": {args: []string{"--survive", "moves", "--spares", "3"}, program: program,
			said: "hosts Y and Z have not reached each other for 1", most: 25 * time.Second},
		"none": {args: []string{"--survive", "none", "--silence", "5"}, program: program,
			said: "hosts Y and Z have not reached each other for 5", most: 15 * time.Second},
		"report": {args: []string{"--survive", "report"}, program: []string{"shrink", "--rounds", "600"},
			out: "rank 1 goes on in round", said: "rank 2 on host Z is given up: between hosts Y and Z nothing has got through for 4", most: 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for most of their time
			s := newSite(t, 3)
			s.settled()
			words := append([]string{s.program(c.program[0])}, c.program[1:]...)
			var want result
			if c.same {
				want = s.run(append([]string{"-n", "3"}, words...)...)
				require.Zero(t, want.code, "%v", want)
			}
			r := s.start(append(append(append(s.byLab(), "--verbose", "--host", "X:2,Y:2,Z:2", "--map-by", "node", "-n", "3"), c.args...), words...)...)
			r.errs.await(t, "ranks start", 1)
			time.Sleep(500 * time.Millisecond)
			begun := time.Now()
			require.NoError(t, s.Partition([]string{"Y"}, []string{"Z"}))
			if c.heals {
				time.Sleep(2 * time.Second)
				require.NoError(t, s.Partition())
			}
			end := r.wait()
			require.Less(t, time.Since(begun), c.most, "%v", end)
			require.Contains(t, end.errs, "hosts Y and Z do not reach each other", "it is known: %v", end)
			require.Contains(t, end.errs, c.said, "%v", end)
			require.Contains(t, end.out, c.out, "%v", end)
			switch {
			case c.same:
				require.Zero(t, end.code, "%v", end)
				require.Equal(t, want.out, end.out)
			case c.out != "":
				require.Zero(t, end.code, "%v", end)
			default:
				require.Equal(t, 1, end.code, "%v", end)
			}
			if c.heals {
				require.Contains(t, end.errs, "hosts Y and Z reach each other again", "%v", end)
				require.NotContains(t, end.errs, "goes on", "%v", end)
			}
			s.gone()
		})
	}
}

// The network of the first agent's host is away for a moment, and just when connections to
// other agents would try again it is away once more; or it is away for longer. No host is given up
// because of that, nor does the job end.
func TestTheFirstHostIsCutOffForAWhile(t *testing.T) {
	const (
		retries = 600 * time.Millisecond // after the first message that was lost, and what was tried after 200 ms
		short   = 150 * time.Millisecond
	)
	for name, c := range map[string]struct {
		away    []time.Duration // the first times, each followed by a short one
		long    time.Duration
		options []string
	}{
		"shortly, twice in a row":        {away: []time.Duration{330 * time.Millisecond, 390 * time.Millisecond}},
		"for longer":                     {long: 4 * time.Second},
		"shortly, and others could lead": {away: []time.Duration{330 * time.Millisecond}, options: []string{"--outlive"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 4)
			s.neighboursAskedOften()
			s.settled()
			program := []string{s.program("heat2d"), "--tolerance", "6e-5"}
			want := s.run(append([]string{"-n", "3"}, program...)...)
			require.Zero(t, want.code, "%v", want)
			r := s.start(slices.Concat(s.byLab(), []string{"--verbose", "--host", "X:2,Y:2,Z:2,W:2", "--map-by", "node", "-n", "3", "--spares", "5", "--snapshot", "0.2"}, c.options, program)...)
			r.errs.await(t, "ranks start", 1)
			time.Sleep(500 * time.Millisecond)
			away := func(d time.Duration) {
				require.NoError(t, s.Cut("X", "lan"))
				time.Sleep(d)
				require.NoError(t, s.Heal("X", "lan"))
			}
			var late time.Duration // by how much longer it was away: while other networks end the kernel can keep a change waiting
			for _, d := range c.away {
				begun := time.Now()
				away(d)
				time.Sleep(retries - short/2 - d)
				away(short)
				late = max(late, time.Since(begun)-retries-short/2)
				time.Sleep(2 * time.Second)
			}
			if c.long > 0 {
				away(c.long)
			}
			end := r.wait()
			require.Zero(t, end.code, "%v", end)
			require.Equal(t, want.out, end.out)
			require.NotContains(t, end.errs, "nothing was heard of its agent", "%v", end)
			if said := strings.Contains(end.errs, "host X seems to be cut off"); late < 100*time.Millisecond {
				require.Equal(t, c.long > 0, said, "%v", end)
			} else {
				t.Logf("not judged whether host X is taken for cut off: its network was away for %v longer than it was to be", late)
			}
			s.gone()
		})
	}
}
