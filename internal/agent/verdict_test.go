package agent

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// A rank has failed, and then its process is killed: the job ends for what the rank said.
func TestAnErrorIsNotHiddenByADeath(t *testing.T) {
	a, _ := surviving(1, 1, 0)
	a.job.Spares, a.toldStart, a.rounds = 1, true, map[uint64]*round{}
	p := a.processes[1]
	a.rankFailed(p, control.Failed{Rank: 1, Code: 3, Error: "matrix is singular"})
	p.exited, p.status = true, syscall.WaitStatus(syscall.SIGKILL)
	a.judge(p)
	require.False(t, a.ending || a.mourning, "it is settled what ended the job")
	require.Equal(t, "rank 1: matrix is singular", a.doubt.text)
}

// How a process ended says whether its ranks had finished, if it had any.
func TestObituaries(t *testing.T) {
	const killed = "; if nobody did that, it may have been the kernel, for want of memory (see dmesg)"
	finished := map[int]control.RankReport{3: {}}
	for _, c := range []struct {
		p    process
		says string
	}{
		{process{ranks: []int{3}}, "rank 3 on host Y was killed by signal 9 (killed)" + killed},
		{process{ranks: []int{3}, finished: finished}, "rank 3 on host Y was killed by signal 9 (killed), after it had finished" + killed},
		{process{}, "a spare process on host Y was killed by signal 9 (killed)" + killed},
	} {
		c.p.host, c.p.status = &host{name: "Y"}, syscall.WaitStatus(syscall.SIGKILL)
		require.Equal(t, c.says, new(Agent).obituary(&c.p))
	}
}

// While the others say what they wait for from a process that has died another dies: the job ends for the first.
func TestTheFirstDeathIsNamed(t *testing.T) {
	a, _ := surviving(1, 1, 1, 0)
	a.job.Spares, a.toldStart, a.rounds = 1, true, map[uint64]*round{}
	p := a.processes
	p[1].exited, p[1].status = true, syscall.WaitStatus(3<<8)
	a.judge(p[1])
	require.True(t, a.mourning && !a.ending)
	p[2].exited, p[2].status = true, syscall.WaitStatus(syscall.SIGKILL)
	a.judge(p[2])
	require.False(t, a.ending, "the others are still asked")
	a.close(a.lastRound)
	require.True(t, a.ending)
	require.Equal(t, 3, a.code)
}
