//go:build linux

package lab_test

import (
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A lab of five hosts is made and closed.
func BenchmarkLab(b *testing.B) {
	var made, closed time.Duration
	for b.Loop() {
		start := time.Now()
		l, err := lab.New(lab.Options{})
		if errors.Is(err, lab.ErrUnavailable) {
			b.Skip(err)
		}
		require.NoError(b, err)
		made += time.Since(start)
		start = time.Now()
		require.NoError(b, l.Close())
		closed += time.Since(start)
	}
	b.ReportMetric(made.Seconds()*1e3/float64(b.N), "new-ms")
	b.ReportMetric(closed.Seconds()*1e3/float64(b.N), "close-ms")
}

// A program is started on a host and has ended.
func BenchmarkStart(b *testing.B) {
	l := lab.ForTest(b, lab.Options{})
	agent, err := l.LaunchAgent()
	require.NoError(b, err)
	b.Run("here", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.Command("true").Run())
		}
	})
	b.Run("Command", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, l.Command(b.Context(), "X", "true").Run())
		}
	})
	b.Run("LaunchAgent", func(b *testing.B) {
		for b.Loop() {
			require.NoError(b, exec.Command(agent[0], agent[1], agent[2], "X", "true").Run())
		}
	})
}

// All processes of a host are found, and sent a signal.
func BenchmarkSignal(b *testing.B) {
	l := lab.ForTest(b, lab.Options{})
	c := l.Command(b.Context(), "X", "sleep", "1000")
	require.NoError(b, c.Start())
	defer c.Wait()
	defer c.Process.Kill()
	for b.Loop() {
		require.NoError(b, l.Signal("X", syscall.SIGCONT))
	}
}

// What a link carries, in one direction, by how it runs.
func BenchmarkLink(b *testing.B) {
	l := lab.ForTest(b, lab.Options{Networks: []lab.Network{{Name: "lan"}}})
	for _, c := range []struct {
		name string
		i    lab.Impairment
		rate lab.Rate
	}{
		{name: "unshaped"},
		{name: "1gbit", rate: lab.Gbit},
		{name: "10gbit", rate: 10 * lab.Gbit},
		{name: "impaired/unshaped", i: lab.Impairment{Delay: time.Microsecond}},
		{name: "impaired/1gbit", i: lab.Impairment{Delay: time.Microsecond}, rate: lab.Gbit},
		{name: "impaired/100mbit", i: lab.Impairment{Delay: time.Millisecond}, rate: 100 * lab.Mbit},
	} {
		b.Run(c.name, func(b *testing.B) {
			require.NoError(b, l.SetRate("X", "lan", c.rate))
			if err := l.Impair("X", "lan", c.i); errors.Is(err, lab.ErrUnavailable) {
				b.Skip(err)
			} else {
				require.NoError(b, err)
			}
			var sum float64
			for b.Loop() {
				sum += goodput(b, l, "X", "Y", "lan", 400*time.Millisecond)
			}
			b.ReportMetric(sum/float64(b.N), "Mbit/s")
		})
	}
}
