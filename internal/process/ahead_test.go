package process

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/dirty"
)

// What another process says of state that went ahead is believed only where it fits what has come.
func TestPatchesThatDoNotFit(t *testing.T) {
	segments := [][]byte{make([]byte, 100), make([]byte, 100), make([]byte, 50)}
	c := &coming{pieces: [][]byte{make([]byte, 100), make([]byte, 100)}}
	ranges := func(ends ...int) (all []dirty.Range) {
		for ; len(ends) > 0; ends = ends[2:] {
			all = append(all, dirty.Range{From: ends[0], To: ends[1]})
		}
		return all
	}
	require.True(t, c.fits(segments, []patch{{0, 1, ranges(0, 10, 10, 10, 90, 100)}, {1, 0, nil}}))
	require.True(t, (*coming)(nil).fits(segments, nil))
	require.False(t, (*coming)(nil).fits(segments, []patch{{0, 0, nil}}))
	for name, patches := range map[string][]patch{
		"another length":         {{2, 0, nil}},
		"no segment":             {{3, 0, nil}},
		"no piece":               {{0, 2, nil}},
		"below all":              {{-1, 0, nil}},
		"one segment twice":      {{0, 0, nil}, {0, 1, nil}},
		"one piece twice":        {{0, 0, nil}, {1, 0, nil}},
		"a range backwards":      {{0, 0, ranges(20, 10)}},
		"ranges over each other": {{0, 0, ranges(0, 20, 10, 30)}},
		"a range beyond":         {{0, 0, ranges(90, 101)}},
	} {
		require.False(t, c.fits(segments, patches), name)
	}
}

// What came ahead by another map is not what the rank comes with.
func TestWhatCameByAnotherMap(t *testing.T) {
	c := &coming{epoch: 7}
	m := &moves{coming: map[int]*coming{3: c}}
	require.Nil(t, m.came(luggage{Rank: 3, Epoch: 8}))
	require.Same(t, c, m.came(luggage{Rank: 3, Epoch: 7}))
	require.Nil(t, m.came(luggage{Rank: 3, Epoch: 7}), "it is taken once")
}

// A rank does not begin with state of which a part did not come.
func TestStateThatDidNotComeAheadAsAWhole(t *testing.T) {
	for _, why := range []error{nil, errors.New("the other process is lost")} {
		_, stop := context.WithCancel(t.Context())
		c := &coming{epoch: 7, pieces: [][]byte{[]byte("abcdef")}, stop: stop, received: make(chan struct{}), err: why}
		close(c.received)
		g := luggage{Epoch: 7, Lengths: []int64{0, 0, 0, 2}, Patches: []patch{{0, 0, []dirty.Range{{From: 1, To: 3}}}}}
		segment := make([]byte, 6)
		err := new(moves).fill(t.Context(), 0, g, c, [][]byte{segment}, [][]byte{[]byte("XY")})
		require.ErrorIs(t, err, why)
		if why == nil {
			require.Equal(t, "aXYdef", string(segment))
		}
	}
}
