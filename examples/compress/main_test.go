package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
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

// program is the program itself, as a world of one rank.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "COMPRESS_MAIN=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

func TestProgramAsAFilter(t *testing.T) {
	input := text(200_000)
	cmd := program(t, "--block", "10kB", "--json")
	cmd.Stdin = bytes.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), errs.String())
	name := filepath.Join(t.TempDir(), "out")
	require.NoError(t, os.WriteFile(name, out.Bytes(), 0o644))
	require.True(t, bytes.Equal(decompress(t, name), input))
	var sum summary
	require.NoError(t, json.Unmarshal(errs.Bytes(), &sum), "%s", errs.String())
	require.EqualValues(t, 200_000, sum.RawBytes)
	require.EqualValues(t, 20, sum.Blocks)
	require.EqualValues(t, out.Len(), sum.CompressedBytes)
}

func TestProgramSaysWhatItDid(t *testing.T) {
	opt := fileOptions(t, text(200_000))
	cmd := program(t, opt.input, "--verify", "--csv", opt.input+".csv", "--block", "64KiB")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Regexp(t, `^`+opt.input+`: 200 kB → \d+ kB \(\d\d\.\d %\), 4 blocks in \d+\.\d\d s, .*/s, verified\n$`, string(out))
	onlyFiles(t, opt, "input", "input.csv", "input.zst")

	f, err := os.Open(opt.input + ".csv")
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"iteration", "at_seconds", "took_seconds", "raw_bytes", "compressed_bytes", "by"}, rows[0])
	require.Len(t, rows, 5)
	at := 0.
	for i, row := range rows[1:] {
		require.Equal(t, strconv.Itoa(i), row[0])
		now, err := strconv.ParseFloat(row[1], 64)
		require.NoError(t, err)
		took, err := strconv.ParseFloat(row[2], 64)
		require.NoError(t, err)
		require.InDelta(t, now-at, took, 2e-6)
		at = now
		require.Equal(t, []string{"65536", "65536", "65536", "3392"}[i], row[3])
	}
}

func TestProgramFailsWithAReason(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{filepath.Join(dir, "not-there")}, 1, "not-there: no such file or directory"},
		{[]string{"--levle", "3"}, 2, "-levle (compress --help says"},
		{[]string{"--level", "99"}, 2, "want 1 to 22"},
		{[]string{"a", "b"}, 2, "compress takes one input"},
		{[]string{"-q", "--iterations", "3", "-o", "/dev/full"}, 1, "write /dev/full: no space left on device"},
	} {
		out, err := program(t, c.args...).CombinedOutput()
		require.Error(t, err)
		require.Equal(t, c.code, err.(*exec.ExitError).ExitCode(), "%s", out)
		require.Contains(t, string(out), c.want)
		require.Equal(t, 1, strings.Count(string(out), "\n"), "%s", out)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)

	out, err := program(t, "--help").Output()
	require.NoError(t, err)
	require.Equal(t, usage, string(out))
}

func TestProgramWhosePipeBreaks(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := program(t, "--iterations", "100", "--block", "64KiB", "-o", "-")
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = w, &errs
	require.NoError(t, cmd.Start())
	w.Close()
	_, err = io.ReadFull(r, make([]byte, 10))
	require.NoError(t, err)
	r.Close()
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, errs.String(), "broken pipe")
}

func TestInterruptedProgramLeavesNothing(t *testing.T) {
	opt := fileOptions(t, text(10))
	cmd := program(t, "--iterations", "1000000", "--block", "64KiB", "-o", opt.output)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	partly := func() bool { // the output is being written
		names, _ := filepath.Glob(filepath.Join(filepath.Dir(opt.output), ".*.part"))
		if len(names) != 1 {
			return false
		}
		fi, err := os.Stat(names[0])
		return err == nil && fi.Size() > 0
	}
	require.Eventually(t, partly, 20*time.Second, time.Millisecond)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), errs.String())
	require.Contains(t, errs.String(), "interrupt")
	onlyFiles(t, opt, "input")
}

func TestCompare(t *testing.T) {
	var c comparison
	out, err := program(t, "--compare", "--json", "--iterations", "6", "--block", "64KiB", "--rounds", "2").Output()
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(out, &c))
	require.Equal(t, compareRanks, c.Ranks)
	require.Equal(t, compareRanks-2, c.Compressors)
	require.Equal(t, 1, c.Processes)
	require.EqualValues(t, 6*64<<10, c.RawBytes)
	for _, costs := range []costs{c.Messages, c.Channels} {
		require.Len(t, costs.BytesPerSecond, 2)
		require.Len(t, costs.CPUSeconds, 2)
		require.Positive(t, costs.BytesPerSecond[0])
		require.Positive(t, costs.CPUSeconds[0])
	}
	require.Positive(t, c.RateRatio[0])
	require.LessOrEqual(t, c.RateRatio[0], c.RateRatio[1])
	require.Equal(t, [3]float64{2, 3, 4}, quartiles([]float64{5, 1, 4, 2, 3}))
	require.Equal(t, [3]float64{1.25, 1.5, 1.75}, quartiles([]float64{2, 1}))
}

func TestCompareWithoutInput(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o644))
	out, err := program(t, "--compare", empty).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "an input that is not empty")
}

// lines are what is written, write by write.
type lines chan string

func (l lines) Write(p []byte) (int, error) { l <- string(p); return len(p), nil }

func TestProgressInLinesAndAsABar(t *testing.T) {
	out := make(lines, 1000)
	p := startProgressOn(out, false, time.Millisecond)
	p.show(50_000_000, 20_000_000, 100_000_000)
	for text := range out {
		if !strings.Contains(text, "nothing") { // not one from before show
			require.Regexp(t, `^compress:  50 %  50.0 MB at .*/s, 40\.0 % of it left\n$`, text)
			break
		}
	}
	p.stop()
	p.stop()

	require.Equal(t, "nothing is written yet", progressText(0, 0, 4e6, 0, true))
	require.Equal(t, "[███████·······················]  25 %  1.0 MB at 2.0 MB/s, 50.0 % of it left",
		progressText(1e6, 5e5, 4e6, 2e6, true))
	require.Equal(t, "1.0 MB at 0 B/s, 50.0 % of it left", progressText(1e6, 5e5, 0, 0, true), "of unknown length")
}
