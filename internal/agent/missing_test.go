package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// A process that does not reach another says so again and again. The user is told once; not when it ends meanwhile, when
// nobody speaks of it, or when it is known why.
func TestWhoDoesNotReachAnother(t *testing.T) {
	missing := func() (*Agent, [2]*process) {
		a, _ := surviving(1, 1, 1)
		a.toldStart = true
		return a, [2]*process{a.processes[0], a.processes[1]}
	}
	now := time.Now()
	tell := func(a *Agent, from, to, every time.Duration) {
		for at := from; at <= to; at += every {
			a.misses(a.processes[0], []control.Missed{{Process: 1, For: at, Why: "tcp:here: too many open files"}}, now.Add(at))
		}
	}

	a, pair := missing()
	tell(a, 0, missNotice-1, time.Second)
	require.False(t, a.missed[pair].said)
	tell(a, missNotice, missNotice, time.Second)
	require.True(t, a.missed[pair].said)

	a, pair = missing()
	tell(a, 0, 10*missPause, missPause+time.Second)
	require.False(t, a.missed[pair].said, "each time it was over")

	a, _ = missing()
	a.processes[1].judged = true
	tell(a, 0, 10*missNotice, time.Second)
	require.Empty(t, a.missed)

	a, _ = missing()
	a.cutSeen(a.processes[0], control.Cut{Process: 1, Error: "no answer in time"})
	tell(a, 0, 10*missNotice, time.Second)
	require.Empty(t, a.missed)
	a.misses(a.processes[0], []control.Missed{{Process: -1}, {Process: 99}}, now)
	require.Empty(t, a.missed)
}
