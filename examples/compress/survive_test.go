package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
)

// said is what a job says.
type said struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// processOf is the process number of the one that has a rank now.
func processOf(t *testing.T, dir string, rank int) int {
	t.Helper()
	ans, err := agent.Ask(dir, agent.Question{Op: "ps"})
	require.NoError(t, err)
	var now events.State
	for _, e := range ans.Events {
		now.Apply(e)
	}
	for _, p := range now.Processes {
		for _, r := range p.Ranks {
			if r == rank {
				return p.PID
			}
		}
	}
	t.Fatalf("rank %d is in none of the job's processes", rank)
	return 0
}

// Whichever role is killed or moved while blocks are under way, the output is what it
// is without.
func TestRolesOutliveTheirProcesses(t *testing.T) {
	const blocks, reader, compressor, writer = 600, 0, 1, 3
	args := []string{"--iterations", strconv.Itoa(blocks), "--block", "64KiB", "--level", "9", "-q", "-f", "--verify"}
	undisturbed := filepath.Join(t.TempDir(), "undisturbed")
	out, err := program(t, append(args, "-o", undisturbed)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	want, err := os.ReadFile(undisturbed)
	require.NoError(t, err)

	for _, c := range []struct {
		name        string
		kill, moved []int
	}{
		{"a compressor is killed", []int{compressor}, nil},
		{"the reader is killed", []int{reader}, nil},
		{"the writer is killed", []int{writer}, nil},
		{"each role is moved", nil, []int{writer, reader, compressor}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "compress") // short enough for sockets
			require.NoError(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			output := filepath.Join(dir, "out.zst")
			errs := new(said)
			a, err := agent.Start(agent.Job{
				Programs: []agent.Program{{Ranks: 4, Path: os.Args[0], Args: append(args, "--csv", output+".csv", "-o", output), Env: []string{"COMPRESS_MAIN=1", "GORACE=atexit_sleep_ms=0"}}},
				Name:     "compress", Host: "here", Runtime: dir, Spares: 3, Stdout: errs, Stderr: errs, Verbose: true,
				Options: control.Options{Survive: "crashes", Snapshot: 20 * time.Millisecond},
			})
			require.NoError(t, err)
			job := filepath.Join(dir, "compress")
			require.Eventually(t, func() bool { // a part of the output is there
				fi, err := os.Stat(filepath.Join(dir, ".out.zst.part"))
				return err == nil && fi.Size() > int64(len(want))/10
			}, 30*time.Second, time.Millisecond, "said %s", errs)
			for _, r := range c.kill {
				require.NoError(t, syscall.Kill(processOf(t, job, r), syscall.SIGKILL))
			}
			for _, r := range c.moved {
				_, err := agent.Ask(job, agent.Question{Op: "move", Rank: r})
				require.NoError(t, err, "said %s", errs)
			}
			require.Zero(t, a.Wait(), "said %s", errs)
			for _, r := range append(c.kill, c.moved...) {
				require.Contains(t, errs.String(), "rank "+strconv.Itoa(r)+" goes on ")
			}
			got, err := os.ReadFile(output)
			require.NoError(t, err)
			require.True(t, bytes.Equal(got, want), "the output is not what it is undisturbed")
			lines, err := os.ReadFile(output + ".csv")
			require.NoError(t, err)
			require.Equal(t, blocks+1, strings.Count(string(lines), "\n"), "lines of CSV")
			require.NoFileExists(t, filepath.Join(dir, ".out.zst.part"))
		})
	}
}

func TestAnOutputIsWrittenByOneProcess(t *testing.T) {
	opt := fileOptions(t, text(10))
	first, err := openOutput(opt, 0, false)
	require.NoError(t, err)
	_, err = first.Write([]byte("what a process left that was killed"))
	require.NoError(t, err)
	temp := first.file.Name()
	_, err = createTemp(temp, 50*time.Millisecond)
	require.ErrorContains(t, err, "another process is writing")

	t.Run("one that was left is used again", func(t *testing.T) {
		time.AfterFunc(50*time.Millisecond, first.leave)
		second, err := openOutput(opt, 0, false)
		require.NoError(t, err)
		_, err = second.Write([]byte("new"))
		require.NoError(t, err)
		second.leave()
	})
	t.Run("a rank goes on behind what it knows of", func(t *testing.T) {
		third, err := openOutput(opt, 2, true)
		require.NoError(t, err)
		_, err = third.Write([]byte("xt"))
		require.NoError(t, err)
		require.NoError(t, third.finish())
		got, err := os.ReadFile(opt.output)
		require.NoError(t, err)
		require.Equal(t, "next", string(got))
	})
	t.Run("also where it was finished", func(t *testing.T) {
		fourth, err := openOutput(opt, 3, true)
		require.NoError(t, err)
		require.NoFileExists(t, opt.output)
		require.NoError(t, fourth.finish())
		got, err := os.ReadFile(opt.output)
		require.NoError(t, err)
		require.Equal(t, "nex", string(got))
	})
	t.Run("not behind what is not there", func(t *testing.T) {
		_, err := openOutput(opt, 4, true)
		require.ErrorContains(t, err, "has 3 bytes, and should have 4 by now")
	})
}
