//go:build linux

package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// timed has g see copies of 8 KiB that take perKiB for each, as many as change its mind.
func timed(g *gauge, perKiB time.Duration) {
	for range 4 * smoothing {
		g.took(8<<10, 8*perKiB)
	}
}

func TestGauge(t *testing.T) {
	const near, far = 120 * time.Nanosecond, 450 * time.Nanosecond
	g := gauge{call: cost{fixed: 1250 * time.Nanosecond, perKiB: 60 * time.Nanosecond}, reach: reachOf(false), perKiB: firstPerKiB}
	answers := func(n int) bool { return g.prefersRead(n, g.heard.Load()+1, false) }
	streams := func(n int) bool { return g.prefersRead(n, g.heard.Load(), false) }

	g.call.fixed /= 10
	require.False(t, answers(8<<10), "nothing is known of the ring yet")
	g.call.fixed *= 10

	timed(&g, near)
	require.False(t, answers(8<<10))
	require.False(t, answers(16<<10), "a call costs more than the ring where somebody waits")
	require.True(t, answers(16<<10+1))
	require.False(t, streams(8<<10))
	require.True(t, streams(16<<10), "of a stream one call reads several")

	timed(&g, far)
	require.True(t, answers(8<<10))
	require.True(t, streams(8<<10))

	g.call.fixed /= 4
	timed(&g, near)
	require.True(t, answers(16<<10), "calls are cheap here")
	require.False(t, answers(5<<10))
}

func TestGaugeWhereBodiesAreCopiedByLines(t *testing.T) {
	g := gauge{call: cost{fixed: 1250 * time.Nanosecond, perKiB: 60 * time.Nanosecond}, reach: reachOf(true), perKiB: firstPerKiB}
	answers := func(n int) bool { return g.prefersRead(n, g.heard.Load()+1, false) }
	streams := func(n int) bool { return g.prefersRead(n, g.heard.Load(), false) }

	timed(&g, 20*time.Nanosecond)
	require.False(t, answers(maxBody))
	require.True(t, answers(maxBody+1))
	require.False(t, streams(16<<10))
	require.True(t, streams(16<<10+1), "what comes before it is received is copied once more")

	timed(&g, 150*time.Nanosecond)
	require.False(t, answers(12<<10))
	require.True(t, answers(largeBody), "the cores are far from each other: it is copied twice at that pace")
	timed(&g, 40*time.Nanosecond)
	require.False(t, answers(maxBody))

	g.took(16<<10, 16*mostPerKiB)
	require.False(t, answers(maxBody), "once this process did not have its core")
	timed(&g, 450*time.Nanosecond)
	require.True(t, answers(16<<10), "lines are not taken so here")
}

// Where reads are faster, the ring is tried now and then, or nobody would know that the processes
// have been moved.
func TestGaugeTries(t *testing.T) {
	g := gauge{call: cost{fixed: time.Microsecond}, reach: reachOf(false), perKiB: mostPerKiB}
	g.known.Store(true)
	bodies, tried := 0, 0
	for ; bodies < 100*triedEach; bodies++ {
		read := g.prefersRead(8<<10, uint64(bodies), false)
		require.Equal(t, read, g.prefersRead(8<<10, uint64(bodies), false), "it may be asked twice")
		g.goes(uint64(bodies), read)
		if read {
			continue
		}
		if !g.tries() {
			break // the ring is faster
		}
		require.True(t, g.due())
		g.took(8<<10, 400*time.Nanosecond)
		tried++
	}
	require.Greater(t, tried, 1, "one fast copy may be chance")
	require.Less(t, bodies, 100*triedEach, "100 fast copies changed nothing")
	require.InDelta(t, tried*triedEach, bodies, triedEach)
}

func TestCallCost(t *testing.T) {
	c := callCost()
	require.Positive(t, c.fixed)
	require.Less(t, c.fixed, time.Millisecond, "no call was made")
}
