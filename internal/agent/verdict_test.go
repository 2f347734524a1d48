package agent

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

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
