package agent

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/orphans"
)

// Many processes are started while the loop has no room for what is to be told of them: it is
// the loop that has them started, so that must not wait.
func TestTheLoopStartsManyProcesses(t *testing.T) {
	j, out, errs := jobOf(t, 2, "wait")
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready\n", 2)
	started := make(chan error, 1)
	a.post(func() {
		for len(a.events) < cap(a.events) {
			a.events <- func() {}
		}
		for range 8 {
			p, err := a.newSpare(a.hosts[0], a.processes[0])
			if err == nil {
				err = p.host.place.spawn(p)
			}
			if err != nil {
				started <- err
				return
			}
		}
		started <- nil
	})
	select {
	case err := <-started:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		t.Fatalf("the loop stands still: %s", errs)
	}
	a.Abort("enough")
	require.Equal(t, 1, a.Wait())
}

// What a command that starts agents ended with is known, whoever buries orphans meanwhile.
func TestCommandsAreNoOrphans(t *testing.T) {
	noneLeft(t)
	var l launcher
	over, buried := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(buried)
		for {
			select {
			case <-over:
				return
			default:
				orphans.Bury(func(int) bool { return false })
			}
		}
	}()
	for range 50 {
		failed := make(chan control.LaunchFailed, 1)
		l.run([]string{"sh", "-c", "exit 255"}, []control.Boot{{}}, func(f control.LaunchFailed) { failed <- f })
		require.Equal(t, 255, (<-failed).Exit)
	}
	close(over)
	<-buried
	l.close()
}
