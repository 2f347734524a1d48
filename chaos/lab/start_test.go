//go:build linux

package lab_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// whileStarting calls change while a command is being started on a host, again and again
// at other moments and on other hosts, and look when both have been done.
func whileStarting(t *testing.T, change func(l *lab.Lab, host string) error, look func(l *lab.Lab, host string, c *lab.Cmd)) {
	t.Helper()
	o := lab.Options{Networks: []lab.Network{{Name: "lan"}}}
	for i := range 60 {
		o.Hosts = append(o.Hosts, lab.Host{Name: fmt.Sprintf("n%d", i)})
	}
	l := lab.ForTest(t, o)
	for i, host := range l.Hosts() {
		c := l.Command(t.Context(), host, "sleep", "100")
		var both sync.WaitGroup
		var started, changed error
		both.Go(func() { started = c.Start() })
		both.Go(func() {
			time.Sleep(time.Duration(i) * 25 * time.Microsecond)
			changed = change(l, host)
		})
		both.Wait()
		if errors.Is(changed, lab.ErrUnavailable) {
			t.Skip(changed)
		}
		require.NoError(t, changed)
		require.NoError(t, started)
		look(l, host, c)
		require.NoError(t, l.Signal(host, syscall.SIGKILL))
		require.Error(t, c.Wait())
	}
}

func TestALimitHoldsForWhatIsBeingStarted(t *testing.T) {
	whileStarting(t, func(l *lab.Lab, host string) error { return l.LimitCPU(host, 0.5) }, func(l *lab.Lab, host string, c *lab.Cmd) {
		groups := groupsOf(l)
		i := slices.IndexFunc(groups, func(g string) bool { return filepath.Base(g) == host })
		require.GreaterOrEqual(t, i, 0)
		procs, err := os.ReadFile(filepath.Join(groups[i], "cgroup.procs"))
		require.NoError(t, err)
		require.Contains(t, strings.Fields(string(procs)), strconv.Itoa(c.Process.Pid))
	})
}

// TestAHostIsStoppedWhileACommandIsStarted: a child that is stopped before it is the command
// would hold up who starts it, and whoever starts something else in this process.
func TestAHostIsStoppedWhileACommandIsStarted(t *testing.T) {
	const long = 20 * time.Second
	var began time.Time
	whileStarting(t, func(l *lab.Lab, host string) error {
		began = time.Now()
		late := time.AfterFunc(long, func() { _ = l.Signal(host, syscall.SIGCONT) })
		t.Cleanup(func() { late.Stop() })
		return l.Signal(host, syscall.SIGSTOP)
	}, func(*lab.Lab, string, *lab.Cmd) {
		require.Less(t, time.Since(began), long, "Start waited for who was stopped")
	})
}
