package sensors

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A flow is samples every 5 ms.
type flow struct {
	rate  Rate
	now   time.Time
	total uint64
}

func (f *flow) run(d time.Duration, bytesPerSecond float64, limited bool) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(5 * time.Millisecond)
		f.total += uint64(bytesPerSecond / 200)
		f.rate.Observe(Sample{f.now, f.total, limited})
	}
}

func TestRate(t *testing.T) {
	tests := []struct {
		name    string
		run     func(f *flow)
		want    float64
		limited bool
	}{
		{"nothing was sent", func(f *flow) {}, 0, false},
		{"the path is the limit", func(f *flow) { f.run(time.Second, 100e6, true) }, 100e6, true},
		{"the program sends less: the estimate stays", func(f *flow) {
			f.run(time.Second, 100e6, true)
			f.run(time.Minute, 1e6, false)
		}, 100e6, false},
		{"the program sends more than was known", func(f *flow) {
			f.run(time.Second, 1e6, false)
			f.run(time.Second, 30e6, false)
		}, 30e6, false},
		{"the path gets slower: known after a second", func(f *flow) {
			f.run(time.Second, 100e6, true)
			f.run(1100*time.Millisecond, 5e6, true)
		}, 5e6, true},
		{"a moment of less is no slower path", func(f *flow) {
			f.run(time.Second, 100e6, true)
			f.run(500*time.Millisecond, 5e6, true)
		}, 100e6, true},
		{"an interval that was limited in part does not count", func(f *flow) {
			f.run(time.Second, 100e6, true)
			for range 200 {
				f.run(10*time.Millisecond, 5e6, true)
				f.run(10*time.Millisecond, 5e6, false)
			}
		}, 100e6, false},
		{"nothing arrives", func(f *flow) {
			f.run(time.Second, 100e6, true)
			f.run(2*time.Second, 0, true)
		}, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &flow{now: time.Unix(1_700_000_000, 0)}
			tt.run(f)
			require.InDelta(t, tt.want, f.rate.Value(), 0.05*tt.want+1)
			require.Equal(t, tt.limited, f.rate.Limited())
		})
	}
}

func TestRateBeginsAnew(t *testing.T) {
	f := &flow{now: time.Unix(1_700_000_000, 0)}
	f.run(time.Second, 100e6, true)
	f.total = 0 // another connection
	f.run(100*time.Millisecond, 80e6, true)
	require.InDelta(t, 100e6, f.rate.Value(), 5e6)
	f.run(time.Second, 80e6, true)
	require.InDelta(t, 80e6, f.rate.Value(), 4e6)
}

func BenchmarkObserve(b *testing.B) {
	f := &flow{now: time.Unix(1_700_000_000, 0)}
	for b.Loop() {
		f.run(5*time.Millisecond, 100e6, true)
	}
}
