//go:build linux

package launchtest

import (
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
