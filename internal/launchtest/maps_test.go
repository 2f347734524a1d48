//go:build linux

package launchtest

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Ranks that never talked with one that moves are not told of that at once. They hear of it
// when they are sent to, or send themselves, if they have not by then.
func TestRanksThatMeetAfterAMove(t *testing.T) {
	s := newSite(t, 5)
	s.settled()
	acquaint := s.path("acquaint")
	out, err := exec.Command("go", "build", "-o", acquaint, "./testdata/acquaint").CombinedOutput()
	require.NoError(t, err, "%s", out)
	r := s.start(append(s.byLab(), "--verbose", "--survive", "moves", "--host", "X,Y,Z,W,h4", "-n", "4", "--spares", "1", acquaint)...)
	r.errs.await(t, "ranks start", 1)
	time.Sleep(time.Second) // until it is known who talks with whom
	r.order("acquaint", "move", "1")
	end := r.wait()
	require.Zero(t, end.code, "%v", end)
	require.Contains(t, end.out, "rank 1 has moved, and heard of rank 2\n")
	require.Contains(t, end.out, "rank 3 heard of rank 1\n")
	require.Contains(t, end.errs, "rank 1 has come to process 4: 3 hosts are told at once, 2 later", "%v", end)
	s.gone()
}
