package path_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/transport"
)

func TestCourse(t *testing.T) {
	const ms = time.Millisecond
	var c path.Course
	now := time.Unix(1000, 0)
	see := func(info transport.PathInfo) {
		now = now.Add(path.Look)
		c.See(info, now, path.Look)
	}
	see(transport.PathInfo{Delivered: 5000})
	_, any := c.Read(path.Look)
	require.False(t, any, "what was there before the first look does not count")

	see(transport.PathInfo{Delivered: 6000, Unacked: 100, Queued: true, RTT: 3 * ms})
	see(transport.PathInfo{Delivered: 6100, Unacked: 50, Stalled: 200 * ms, RTT: 4 * ms})
	see(transport.PathInfo{Delivered: 6150, Unacked: 0, RTT: 5 * ms})
	see(transport.PathInfo{Delivered: 6150, Unacked: 10, RTT: 5 * ms})
	r, any := c.Read(4 * path.Look)
	require.True(t, any)
	require.EqualValues(t, 1150, r.Bytes)
	require.EqualValues(t, 10, r.Pending)
	require.Equal(t, 3*path.Look, r.Busy, "something was on its way")
	require.Equal(t, 3*path.Look, r.Slots.Time(), "one slot for each of those looks")
	require.True(t, r.Limited, "in two looks of three")
	require.Equal(t, 5*ms, r.RTT)

	require.True(t, r.Standing, "what limits stands")

	see(transport.PathInfo{Delivered: 6160, Unacked: 10, Standing: true})
	see(transport.PathInfo{Delivered: 6170, Unacked: 10, Standing: true})
	see(transport.PathInfo{Delivered: 6180, Unacked: 10})
	r, _ = c.Read(3 * path.Look)
	require.True(t, r.Standing, "in two looks of three")
	require.False(t, r.Limited)

	see(transport.PathInfo{Delivered: 40}) // another connection
	see(transport.PathInfo{Delivered: 90, Unacked: 1})
	r, any = c.Read(path.Look)
	require.True(t, any)
	require.EqualValues(t, 50, r.Bytes)
	require.False(t, r.Limited)
	require.False(t, r.Standing)
	require.Equal(t, path.Look, r.Busy, "of an interval no more than all")
}

// What all has left and comes bit by bit is held up by the path, though nothing waits to leave. How long
// that is hangs on the path's own round trip.
func TestACourseOfWhatIsLongOnItsWay(t *testing.T) {
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		rest, oldest time.Duration
		limited      bool
	}{
		"near":          {1 * ms, 120 * ms, true},
		"near, no time": {1 * ms, 80 * ms, false},
		"far":           {150 * ms, 180 * ms, false},
		"far, and long": {150 * ms, 420 * ms, true},
	} {
		t.Run(name, func(t *testing.T) {
			var c path.Course
			now := time.Unix(1000, 0)
			see := func(info transport.PathInfo) {
				now = now.Add(path.Look)
				c.See(info, now, path.Look)
			}
			see(transport.PathInfo{RTT: test.rest})
			for i := range 5 {
				see(transport.PathInfo{Delivered: uint64(1000 * i), Unacked: 9000, Oldest: test.oldest, RTT: test.rest + 100*ms})
			}
			r, any := c.Read(6 * path.Look)
			require.True(t, any)
			require.Equal(t, test.limited, r.Limited)
		})
	}
}
