package quic

import (
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// A road is a path as quic-go counts it, which is looked at each 20 ms.
type road struct {
	gauge
	now     time.Time
	stats   quic.ConnectionStats
	taken   uint64
	waiting int
}

const window, trip = 256 << 10, 20 * time.Millisecond

func newRoad() *road {
	return &road{now: time.Unix(1000, 0), stats: quic.ConnectionStats{SmoothedRTT: trip, MinRTT: trip, CongestionWindow: window}}
}

// goOn is n looks, before each of which so many bytes are sent, and so many packets come.
func (r *road) goOn(n int, sent, packets uint64) (p transport.PathInfo) {
	for range n {
		r.now = r.now.Add(20 * time.Millisecond)
		r.stats.BytesSent += sent
		r.stats.PacketsReceived += packets
		r.taken += sent
		p = r.read(r.stats, r.taken, r.waiting, r.now)
	}
	return p
}

func TestAPathThatIsFullLimits(t *testing.T) {
	r := newRoad()
	r.waiting = 100_000
	before := r.goOn(10, window, 20)
	after := r.goOn(10, window, 20)
	require.EqualValues(t, 10*window, after.Delivered-before.Delivered)
	require.True(t, after.Queued)
	require.EqualValues(t, window+100_000, after.Unacked)
	require.Negative(t, after.Stalled)

	r.waiting = 0
	after = r.goOn(1, 1000, 20)
	require.True(t, after.Queued, "what it is full of")
	require.NotZero(t, after.Unacked)
	after = r.goOn(2, 0, 1)
	require.False(t, after.Queued)
	require.Zero(t, after.Unacked)
	require.EqualValues(t, r.stats.BytesSent, after.Delivered)
}

func TestAPathIsFullUntilThatHasArrived(t *testing.T) {
	r := newRoad()
	r.waiting = 100_000
	require.True(t, r.goOn(10, window, 20).Queued)
	r.waiting = 0
	require.True(t, r.goOn(1, 100_000, 20).Queued, "some of it is on its way")
	p := r.goOn(5, 3000, 5)
	require.NotZero(t, p.Unacked)
	require.False(t, p.Queued, "the program sends little more")
}

func TestAQueueStandsWhereRoundTripsTakeLonger(t *testing.T) {
	r := newRoad()
	p := r.goOn(10, window/8, 5)
	require.False(t, p.Standing, "they take what the shortest did")
	r.stats.SmoothedRTT = 3 * trip
	p = r.goOn(10, window/8, 5)
	require.True(t, p.Standing)
	require.False(t, p.Queued, "nothing waits to be sent")
	p = r.goOn(10, 500, 1)
	require.False(t, p.Standing, "a few acknowledgements are no queue")

	r = newRoad()
	r.stats.SmoothedRTT, r.stats.MinRTT = 4*time.Millisecond, 100*time.Microsecond
	require.False(t, r.goOn(10, 8*window, 5).Standing, "busy cores take as long")
}

func TestHowLongTheOldestHasBeenOnItsWay(t *testing.T) {
	r := newRoad()
	require.Less(t, r.goOn(10, window, 20).Oldest, 3*trip, "as long as a round trip, and what a look misses")
	require.Zero(t, r.goOn(3, 0, 1).Oldest, "nothing is")
	r.goOn(1, window, 0)
	require.Equal(t, 4*trip, r.goOn(4, 0, 0).Oldest, "nothing is answered")
	require.Zero(t, r.goOn(3, 0, 1).Oldest)
	r.stats.SmoothedRTT = 10 * trip
	require.Equal(t, 8*trip, r.goOn(9, window/8, 5).Oldest, "answers come, but late")
	require.Zero(t, r.goOn(30, 500, 1).Oldest, "those are acknowledgements")
}

func TestAPeerWhoTakesNoMoreDoesNotLimitThePath(t *testing.T) {
	r := newRoad()
	r.waiting = 100_000
	require.False(t, r.goOn(10, window/8, 5).Queued, "he is slow")
	r.goOn(1, 0, 5)
	p := r.goOn(10, 0, 0)
	require.False(t, p.Queued, "he has stopped")
	require.EqualValues(t, r.stats.BytesSent, p.Delivered)
	require.Equal(t, 100_000, p.Unacked)
	r.goOn(1, 40, 1)
	require.False(t, r.goOn(1, 40, 0).Queued, "this end has acknowledged something")
}

func TestACutPathLimits(t *testing.T) {
	r := newRoad()
	r.waiting = 100_000
	before := r.goOn(10, window/8, 5)
	after := r.goOn(10, 40, 0) // of which none is answered
	require.True(t, after.Queued)
	require.Equal(t, before.Delivered, r.delivered-window/8, "but for what was on its way before the last answer")
}

func TestWhatIsLostIsNotDelivered(t *testing.T) {
	r := newRoad()
	r.waiting = 100_000
	before := r.goOn(10, window/4, 5)
	require.False(t, before.Queued)
	r.stats.BytesLost, r.stats.PacketsLost = window/8, 20
	after := r.goOn(1, window/4, 5)
	require.True(t, after.Queued)
	require.EqualValues(t, 20, after.Retransmits)
	after = r.goOn(9, window/4, 5)
	require.EqualValues(t, 10*window/4-window/8, after.Delivered-before.Delivered)
	r.stats.BytesLost = 0 // they were late, not lost
	r.stats.BytesSent -= 1000
	require.GreaterOrEqual(t, r.goOn(1, 0, 1).Delivered, after.Delivered)
}

// Who has nothing to send still acknowledges what comes, which nobody acknowledges.
func TestOwnAcknowledgementsAreNotOnTheirWay(t *testing.T) {
	r := newRoad()
	r.goOn(5, 0, 5)
	r.stats.BytesSent += 40
	require.Zero(t, r.goOn(1, 0, 0).Unacked)
	r.stats.BytesSent += 4000
	r.taken += 4000
	require.NotZero(t, r.goOn(1, 0, 0).Unacked, "a message is")
	require.NotZero(t, r.goOn(5, 0, 0).Unacked)
	r.goOn(1, 0, 1)
	require.Zero(t, r.goOn(2, 0, 0).Unacked, "until it is answered")
}

func TestManyLooksAreForgotten(t *testing.T) {
	r := newRoad()
	r.stats.SmoothedRTT = time.Hour
	r.goOn(2000, 1000, 1)
	require.LessOrEqual(t, len(r.looks), mostLooks)
	r.stats.SmoothedRTT = trip
	require.EqualValues(t, r.stats.BytesSent, r.goOn(1, 0, 1).Delivered)
}
