package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scripted is a contender that runs a shell script.
func scripted(id, script string) contender {
	return contender{id: id, name: id, share: func(setting) int { return 1 },
		command: func(setting) ([]string, []string) { return []string{"sh", "-c", script}, []string{"NAME=" + id} }}
}

func TestRaceTakesTurnsAndGoesOnAfterAFailure(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	says := "echo $NAME >>" + log + "; echo '# a comment'; echo 0 1.5; echo 8 2.5"
	contenders := []contender{scripted("a", says), scripted("b", "echo b >>"+log+"; echo lost the way >&2; exit 3"), scripted("c", says)}
	var csv strings.Builder
	records, err := race(t.Context(), runner{timeout: 10 * time.Second, distance: unknown}, contenders, []setting{oneFigure}, 2, newCSV(&csv, "reno"), io.Discard)
	require.NoError(t, err)

	order, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Equal(t, "a\nb\nc\na\nb\nc\n", string(order))
	require.Len(t, records, 6)
	require.Equal(t, []point{{0, []float64{1.5}}, {8, []float64{2.5}}}, records[3].points)
	require.ErrorContains(t, records[1].err, "exit status 3")
	require.ErrorContains(t, records[1].err, "lost the way")
	require.Equal(t, 4*2, strings.Count(csv.String(), ",latency,µs,"), "a line for each figure")
	require.Equal(t, 2, strings.Count(csv.String(), "exit status 3"), "and one for each failure")
}

func TestInitIsTheWallTime(t *testing.T) {
	s := setting{test: test{name: "init", metrics: []metric{launchMetric}}, ranks: 4, transport: "shm"}
	o := runner{timeout: 10 * time.Second, distance: unknown}.run(t.Context(), scripted("a", "sleep 0.05; echo '# MPI_Init took 3 ms'"), s)
	require.NoError(t, o.err)
	require.Len(t, o.points, 1)
	require.GreaterOrEqual(t, o.points[0].figures[0], 50.0)
}

func TestRunThatHangsIsEndedWithWhatItStarted(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	c := scripted("a", fmt.Sprintf("sleep 600 & echo $! >%s; wait", pidFile))
	start := time.Now()
	o := runner{timeout: 200 * time.Millisecond, distance: unknown}.run(t.Context(), c, oneFigure)
	require.ErrorContains(t, o.err, "not done after 200ms")
	require.Less(t, time.Since(start), 8*time.Second)

	text, err := os.ReadFile(pidFile)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return gone(pid) }, 20*time.Second, 10*time.Millisecond, "process %d is still there", pid)
}

// gone says whether a process has ended. One that nobody has waited for yet has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) == syscall.ESRCH {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestRaceEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	contenders := []contender{scripted("a", "echo 0 1.5; echo 8 2.5"), scripted("b", "sleep 600")}
	records, err := race(ctx, runner{timeout: time.Minute, distance: unknown}, contenders, []setting{oneFigure}, 5, newCSV(io.Discard, ""), io.Discard)
	require.NoError(t, err)
	require.Len(t, records, 1, "the run that was cut off is not in the records")
}

func TestPathIsChecked(t *testing.T) {
	s := setting{test: test{name: "latency", sizes: []int{1 << 20}, iters: 20, divisor: 10, metrics: []metric{latencyMetric}}, ranks: 2, transport: "tcp"}
	const moved = 2 << 20
	require.NoError(t, runner{}.checkPath(s, 1, moved))
	require.ErrorContains(t, runner{}.checkPath(s, 1, moved-1), "not TCP")
	s.transport = "shm"
	require.NoError(t, runner{}.checkPath(s, 1, moved), "somebody else may use the loopback interface")
	require.ErrorContains(t, runner{alone: true}.checkPath(s, 1, moved), "not shared memory")
	require.NoError(t, runner{alone: true}.checkPath(s, 1, moved-1))
}

// TestProgramKeepsItsContract runs every test of osu.c with a peer that is installed.
func TestProgramKeepsItsContract(t *testing.T) {
	if testing.Short() {
		t.Skip("launches MPI programs")
	}
	makers := map[string]func(string, int) contender{"mpich": mpich, "openmpi": openMPI}
	var peer string
	for _, candidate := range []string{"mpich", "openmpi"} {
		if missing([]string{candidate}, exec.LookPath) == nil {
			peer = candidate
			break
		}
	}
	if peer == "" {
		t.Skip("neither MPICH nor Open MPI is installed")
	}
	program, err := build(peer, filepath.Join("..", "..", "bench", "peers", "osu.c"), t.TempDir())
	require.NoError(t, err)
	c := makers[peer](program, 2)

	settings, err := choices{ranks: []int{2}, sizes: []int{4, 16384}, transports: []string{"shm"}, cores: 2}.settings()
	require.NoError(t, err)
	require.Len(t, settings, len(tests))
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			s.iters, s.warmup = min(s.iters, 10), min(s.warmup, 2)
			o := runner{timeout: time.Minute, distance: unknown}.run(t.Context(), c, s)
			require.NoError(t, o.err)
		})
	}

	t.Run("a series of sizes", func(t *testing.T) {
		for flags, want := range map[string][]int{"-m 0:4": {0, 1, 2, 4}, "-m 3": {0, 1, 2}, "-m 8:32": {8, 16, 32}} {
			argv := append([]string{"-n", "2", program, "latency", "-i", "2", "-x", "0"}, strings.Fields(flags)...)
			out, _, err := execute(t.Context(), time.Minute, append([]string{"mpirun." + peer}, argv...), []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"})
			require.NoError(t, err)
			_, err = parse(setting{test: test{sizes: want, iters: 1, metrics: []metric{latencyMetric}}}, out)
			require.NoError(t, err, flags)
		}
	})
	t.Run("misuse", func(t *testing.T) {
		for _, words := range []string{"", "speed", "latency -q", "latency -s 8,", "latency -s x", "latency -m 9:8", "latency -i 0", "reduce -s 6", "reduce -s 0", "latency 8"} {
			err := exec.Command(program, strings.Fields(words)...).Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, words)
			require.Equal(t, 2, exit.ExitCode(), words)
		}
	})
}
