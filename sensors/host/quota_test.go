package host

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQuota(t *testing.T) {
	f := &fake{throttle: 7 * time.Second}
	q := Quota{groups: f}
	now := start
	held := func(more time.Duration) float64 {
		now = now.Add(100 * time.Millisecond)
		f.throttle += more
		return q.Held(now)
	}
	require.Zero(t, held(0), "what was before the first time is not known")
	require.InDelta(t, 0.5, held(50*time.Millisecond), 1e-9)
	require.Zero(t, held(0))
	require.Equal(t, 1., held(time.Second), "no share is more than all")
	require.Zero(t, held(-time.Second), "another group")
	require.InDelta(t, 0.25, held(25*time.Millisecond), 1e-9)
	read, err := q.Throttled()
	require.NoError(t, err)
	require.Equal(t, f.throttle, read)

	f.broken = map[Source]error{Throttle: errors.New("no such file")}
	require.Zero(t, held(0))
	_, err = q.Throttled()
	require.ErrorIs(t, err, f.broken[Throttle])
	f.broken = nil
	require.Zero(t, held(50*time.Millisecond), "from then on")
	require.InDelta(t, 0.5, held(50*time.Millisecond), 1e-9)

	var own Quota
	require.LessOrEqual(t, own.Held(start), 0., "of this process, if there is one")
}
