package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/trace/tracetest"
)

func traceIn(t *testing.T, file string) *tracetest.Trace {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	tr, err := tracetest.Read(f)
	require.NoError(t, err)
	return tr
}

// until waits for an event of the job.
func until(t *testing.T, file, what string, is func(events.Event) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e := range eventsIn(t, file) {
			if is(e) {
				return true
			}
		}
		return false
	}, 20*time.Second, 10*time.Millisecond, "there never was %s", what)
}

func TestATraceShowsMovesAndDeaths(t *testing.T) {
	file := filepath.Join(t.TempDir(), "trace.json")
	wait, log := relaxing(t, "--spares", "2", "--snapshot", "0.1", "--trace", file)
	code, _, errs := result(t, mpivrun(t, "trace", "--for", "1"))
	require.Equal(t, 1, code)
	require.Contains(t, errs, "traced already")
	code, _, errs = result(t, mpivrun(t, "move", "2"))
	require.Zero(t, code, errs)
	until(t, log, "a snapshot's time", func(e events.Event) bool { return e.Kind == events.RankArrived })
	time.Sleep(300 * time.Millisecond)
	pid := pidsIn(t, log)[1]
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	until(t, log, "a recovery", func(e events.Event) bool { return e.Kind == events.RankArrived && *e.Rank == 1 })
	code, live, errs := result(t, mpivrun(t, "explain"))
	require.Zero(t, code, errs)
	out, errs, err := wait()
	require.NoError(t, err, errs)
	require.NotEmpty(t, out)

	tr := traceIn(t, file)
	calls := map[string]int{}
	for _, s := range tr.Slices {
		calls[s.Name]++
	}
	// 600 steps of two exchanges each, for each of four ranks; a few calls of the process
	// that was killed are lost, and a few done again.
	require.Greater(t, calls["Sendrecv"], 4*2*550)
	require.Equal(t, 4, calls["Allgather"])
	require.Positive(t, calls["SafePoint"])
	messages, moves := 0, map[string][2]string{}
	for _, f := range tr.Flows {
		if f[0].Name == "message" {
			messages++
			continue
		}
		from, ok := tr.Slice(f[0])
		require.True(t, ok)
		to, ok := tr.Slice(f[1])
		require.True(t, ok)
		require.NotEqual(t, *from.TID, *to.TID)
		moves[f[0].Name] = [2]string{from.Name, to.Name}
	}
	require.Greater(t, messages, 4*2*550)
	require.Equal(t, map[string][2]string{"move of rank 2": {"Leave", "Restore"}, "move of rank 1": {"lost", "Restore"}}, moves)
	instants := ""
	for _, e := range tr.Events {
		if e.Ph == "i" {
			instants += e.Name + "\n"
		}
	}
	require.Contains(t, instants, "rank 1: its process was killed by signal 9")
	require.Contains(t, instants, "rank 1 goes on here from snapshot ")

	code, said, errs := result(t, mpivrun(t, "explain", "--from", log))
	require.Zero(t, code, errs)
	require.Contains(t, live, said, "what was said while the job ran")
	for _, want := range []string{"rank 2 at ", "it was moved from process 2", "rank 1 at ", "it was lost with process 1", "was killed by signal 9", "from snapshot ", "went on after "} {
		require.Contains(t, said, want)
	}
	code, said, errs = result(t, mpivrun(t, "explain", "--json", "--from", log))
	require.Zero(t, code, errs)
	var ans agent.Answer
	require.NoError(t, json.Unmarshal([]byte(said), &ans))
	require.Len(t, ans.Audit.Passages, 2)
	moved, lost := ans.Audit.Passages[0], ans.Audit.Passages[1]
	require.Equal(t, 2, moved.Rank)
	require.Positive(t, moved.Stood)
	require.True(t, lost.Lost)
	require.Equal(t, 1, lost.From)
	require.Positive(t, lost.Snapshot)
	require.Positive(t, lost.Took())
	require.False(t, lost.Moved.Before(lost.Ended))
}

func TestATraceOfARunningJob(t *testing.T) {
	wait, _ := relaxing(t)
	file := filepath.Join(t.TempDir(), "trace.json")
	code, out, errs := result(t, mpivrun(t, "trace", "--for", "0.8", "-o", file))
	require.Zero(t, code, errs)
	require.Contains(t, out, "ui.perfetto.dev")
	usual, err := os.Create(filepath.Join(t.TempDir(), "usual"))
	require.NoError(t, err)
	defer usual.Close()
	want, err := usual.Stat()
	require.NoError(t, err)
	got, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, want.Mode(), got.Mode(), "as others are made")
	tr := traceIn(t, file)
	require.NotEmpty(t, tr.Flows)
	first, last := *tr.Slices[0].TS, 0.0
	for _, s := range tr.Slices {
		first, last = min(first, *s.TS), max(last, s.End())
		require.True(t, strings.HasPrefix(tr.Threads[[2]int{*s.PID, *s.TID}], "rank "))
	}
	require.Greater(t, last-first, 0.2e6)
	require.NoError(t, os.Chmod(file, 0o640))
	code, _, errs = result(t, mpivrun(t, "trace", "--for", "0.1", "-o", file)) // again
	require.Zero(t, code, errs)
	got, err = os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 0o640, got.Mode(), "for whom it was")
	traceIn(t, file)
	_, errs, err = wait()
	require.NoError(t, err, errs)
}

func TestCommandsRefuseWhatMakesNoSense(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	half := filepath.Join(t.TempDir(), "half")
	require.NoError(t, os.WriteFile(half, []byte(`{"v":1,"seq":1,`), 0o600))
	for want, args := range map[string][]string{
		"Say mpivrun trace --for":          {"trace"},
		"want seconds":                     {"trace", "--for", "-1"},
		"--for needs a value":              {"trace", "--for"},
		"knows no option --fur":            {"trace", "--fur", "1"},
		"takes one job: say mpivrun trace": {"trace", "--for", "1", "a", "b"},
		"no job of yours is running":       {"trace", "--for", "1"},
		"which rank? Say mpivrun move":     {"move", "-to=X"},
		"-to needs a value":                {"move", "1", "-to"},
		"--to: the value is empty":         {"move", "1", "--to="},
		"knows no option --too":            {"move", "1", "--too=X"},
		"which host? Say mpivrun drain":    {"drain", "-wait"},
		"knows no option --deep":           {"explain", "--deep"},
		"takes one job and the number":     {"explain", "1", "2"},
		"--job needs a value":              {"explain", "--job"},
		"no job is named beside it":        {"explain", "--from", none, "--job", "j"},
		"no such file":                     {"explain", "--from", none},
		"empty has no events of a job":     {"explain", "--from", empty},
		"half has no events of a job":      {"explain", "--from", half},
		"open the file for the trace":      {"-n", "1", "--trace", "/no/such/dir/f", "true"},
	} {
		code, _, errs := result(t, mpivrun(t, args...))
		require.NotZero(t, code, "%v", args)
		require.Contains(t, errs, want, "%v", args)
	}
}
