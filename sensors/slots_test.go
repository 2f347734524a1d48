package sensors

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSlots(t *testing.T) {
	slot := func(n int) time.Time { return time.Unix(1_700_000_000, 0).Add(time.Duration(n) * SlotTime) }
	of := func(marks ...[2]int) (s Slots) {
		for _, m := range marks {
			s.Mark(slot(m[0]), slot(m[1]))
		}
		return s
	}
	for name, c := range map[string]struct {
		a, b Slots
		want int // slots
	}{
		"none":                      {Slots{}, Slots{}, 0},
		"one after the other":       {of([2]int{0, 3}), of([2]int{4, 9}), 10},
		"at the same time":          {of([2]int{2, 5}), of([2]int{2, 5}), 4},
		"in part":                   {of([2]int{2, 5}), of([2]int{0, 2}, [2]int{5, 6}), 7},
		"the later ones first":      {of([2]int{20, 29}), of([2]int{0, 9}), 20},
		"more than there are":       {of([2]int{0, 200}), Slots{}, 64},
		"those of a wrong clock":    {of([2]int{0, 9}), of([2]int{100_000, 100_009}), 10},
		"of a clock that is behind": {of([2]int{100_000, 100_009}), of([2]int{0, 9}), 10},
		"farther apart than counts": {Slots{math.MinInt64, 1}, Slots{math.MaxInt64, 1}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.a
			s.Add(c.b)
			require.Equal(t, time.Duration(c.want)*SlotTime, s.Time())
		})
	}
	within := Slots{}
	within.Mark(slot(7).Add(time.Millisecond), slot(7).Add(2*time.Millisecond))
	require.Equal(t, SlotTime, within.Time())
}
