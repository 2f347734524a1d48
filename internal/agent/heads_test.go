package agent

import (
	"bufio"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// outliving begins j, whose hosts include this one, with its first agent a process of its
// own, and shows it: the channel has its exit code.
func outliving(t *testing.T, j Job, out, errs *buffer) (dir string, first *exec.Cmd, code <-chan int) {
	t.Helper()
	orders, err := FirstOrders(j)
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	first = exec.Command(self)
	first.Env = append(os.Environ(), envDo+"=agent", "GORACE=atexit_sleep_ms=0")
	first.Stderr = os.Stderr
	in, err := first.StdinPipe()
	require.NoError(t, err)
	told, err := first.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, first.Start())
	t.Cleanup(func() {
		first.Process.Kill()
		first.Wait()
	})
	_, err = in.Write(orders)
	require.NoError(t, err)
	line, err := bufio.NewReader(told).ReadBytes('\n')
	require.NoError(t, err)
	var b Begun
	require.NoError(t, json.Unmarshal(line, &b))
	require.Empty(t, b.Error)
	ended := make(chan int, 1)
	v := &Viewer{Stdin: j.Stdin, Stdout: out, Stderr: errs}
	go func() {
		code, err := v.Attach(b.Dir)
		if err != nil {
			errs.Write([]byte(err.Error()))
		}
		ended <- code
	}()
	return b.Dir, first, ended
}

// await waits for the exit code.
func awaitCode(t *testing.T, code <-chan int, errs *buffer) int {
	t.Helper()
	select {
	case c := <-code:
		return c
	case <-time.After(20 * time.Second):
		t.Fatalf("the job has not ended: %s", errs)
		return -1
	}
}

func TestAJobThatCanOutliveItsHeadEnds(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 1, 0)
	j.Programs[0].Env = append(j.Programs[0].Env, envDo+"=finish")
	j.Verbose = true
	_, _, code := outliving(t, j, out, errs)
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Equal(t, 3, strings.Count(errs.String(), "its agent has joined"))
}

// The agent that leads is killed: another leads, and the ranks that were on its host go on.
func TestHeadKilled(t *testing.T) {
	j, out, errs := lossy(t, "save", 3, 3, 1)
	j.Silence, j.Verbose = 3*time.Second, true
	_, first, code := outliving(t, j, out, errs)
	out.await(t, "ready", 3)
	errs.await(t, "is known to 3 agents", 1)
	require.NoError(t, first.Process.Kill())
	require.Zero(t, awaitCode(t, code, errs), "%s", errs)
	require.Contains(t, errs.String(), "leads the job from now on")
	require.Contains(t, out.String(), "rank 0 goes on from <rank 0, 1.1><rank 0, 1.2><rank 0, 1.3>\n")
}
