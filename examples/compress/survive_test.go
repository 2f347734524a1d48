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
	const reader, compressor, writer = 0, 1, 3
	blocks := 600
	if testing.Short() {
		blocks = 200
	}
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
	first, err := openOutput(opt, false, 0, nil)
	require.NoError(t, err)
	_, err = first.Write([]byte("what a process left that was killed"))
	require.NoError(t, err)
	temp := first.file.Name()
	_, err = createTemp(temp, 50*time.Millisecond)
	require.ErrorContains(t, err, "another process is writing")

	t.Run("one that was left is used again", func(t *testing.T) {
		time.AfterFunc(50*time.Millisecond, first.leave)
		second, err := openOutput(opt, false, 0, nil)
		require.NoError(t, err)
		_, err = second.Write([]byte("new"))
		require.NoError(t, err)
		second.leave()
	})
	t.Run("a rank goes on behind what it knows of", func(t *testing.T) {
		third, err := openOutput(opt, true, 2, []byte("ne"))
		require.NoError(t, err)
		_, err = third.Write([]byte("xt"))
		require.NoError(t, err)
		require.NoError(t, third.finish())
		got, err := os.ReadFile(opt.output)
		require.NoError(t, err)
		require.Equal(t, "next", string(got))
	})
	t.Run("also where it was finished", func(t *testing.T) {
		fourth, err := openOutput(opt, true, 3, []byte("ex"))
		require.NoError(t, err)
		require.NoFileExists(t, opt.output)
		require.NoError(t, fourth.finish())
		got, err := os.ReadFile(opt.output)
		require.NoError(t, err)
		require.Equal(t, "nex", string(got))
	})
	t.Run("and by one that knows of nothing yet", func(t *testing.T) {
		_, err := openOutput(opt, false, 0, nil)
		require.ErrorContains(t, err, "exists already")
		fifth, err := openOutput(opt, true, 0, nil)
		require.NoError(t, err)
		require.NoFileExists(t, opt.output)
		_, err = fifth.Write([]byte("nex"))
		require.NoError(t, err)
		require.NoError(t, fifth.finish())
	})
	t.Run("not behind what is not there", func(t *testing.T) {
		_, err := openOutput(opt, true, 4, []byte("t"))
		require.ErrorContains(t, err, "has 3 bytes, and should have 4 by now")
	})
}

// A rank that goes on elsewhere touches no file that is not the one it has written.
func TestAnOutputIsNoOtherFile(t *testing.T) {
	const written = 5
	for _, c := range []struct {
		name  string
		make  func(t *testing.T, temp, output string)
		tail  string
		error string // "": it goes on
	}{
		{"the file it wrote", func(t *testing.T, temp, _ string) { put(t, temp, "hello and more") }, "llo", ""},
		{"the file it has finished", func(t *testing.T, _, output string) { put(t, output, "hello and more") }, "llo", ""},
		{"none", func(*testing.T, string, string) {}, "llo", "must be on a file system that all hosts share"},
		{"an output of another run, on a host with disks of its own", func(t *testing.T, _, output string) { put(t, output, "what was there before") }, "llo", "something else"},
		{"a short one", func(t *testing.T, _, output string) { put(t, output, "hell") }, "ll", "has 4 bytes, and should have 5"},
		{"a part that another run left", func(t *testing.T, temp, _ string) { put(t, temp, "what was left") }, "llo", "something else"},
		{"a link", func(t *testing.T, temp, _ string) {
			put(t, temp+".elsewhere", "hello and more")
			require.NoError(t, os.Symlink(temp+".elsewhere", temp))
		}, "llo", "symbolic links"},
		{"a directory", func(t *testing.T, temp, _ string) { require.NoError(t, os.Mkdir(temp, 0o700)) }, "llo", "is a directory"},
		{"a pipe", func(t *testing.T, temp, _ string) { require.NoError(t, syscall.Mkfifo(temp, 0o600)) }, "llo", "no regular file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opt := fileOptions(t, nil)
			opt.force = true
			dir := filepath.Dir(opt.output)
			temp := filepath.Join(dir, "."+filepath.Base(opt.output)+".part")
			c.make(t, temp, opt.output)
			before := contents(t, dir)
			o, err := openOutput(opt, true, written, []byte(c.tail))
			if c.error != "" {
				require.ErrorContains(t, err, c.error)
				require.Equal(t, before, contents(t, dir))
				return
			}
			require.NoError(t, err)
			_, err = o.Write([]byte("!"))
			require.NoError(t, err)
			require.NoError(t, o.finish())
			require.Equal(t, "hello!", contents(t, dir)[filepath.Base(opt.output)])
		})
	}
	t.Run("nothing was written yet, and an output is there", func(t *testing.T) {
		opt := fileOptions(t, nil)
		opt.force = true
		put(t, opt.output, "what was there before")
		o, err := openOutput(opt, false, 0, nil)
		require.NoError(t, err)
		o.abandon()
		require.Equal(t, "what was there before", contents(t, filepath.Dir(opt.output))[filepath.Base(opt.output)])
	})
	t.Run("a link where a new one would be", func(t *testing.T) {
		opt := fileOptions(t, nil)
		dir := filepath.Dir(opt.output)
		put(t, filepath.Join(dir, "elsewhere"), "not to be cut")
		require.NoError(t, os.Symlink("elsewhere", filepath.Join(dir, "."+filepath.Base(opt.output)+".part")))
		_, err := openOutput(opt, false, 0, nil)
		require.ErrorContains(t, err, "symbolic links")
		require.Equal(t, "not to be cut", contents(t, dir)["elsewhere"])
	})
}

func put(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

// contents is what the regular files of a directory have, and what else is there.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all[e.Name()] = e.Type().String()
		if e.Type().IsRegular() {
			text, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			all[e.Name()] = string(text)
		}
	}
	return all
}
