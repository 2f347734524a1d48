package sensors

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var days = flag.Float64("days", 0.1, "link-days for each line of TestFalseAlarms")

// In how much normal running is there a false breach? At most one in a day of a link,
// also while neighbours take half of it.
func TestFalseAlarms(t *testing.T) {
	programs := map[string]func(time.Duration) (int, float64){
		"steady": nil,
		"bursts": func(now time.Duration) (int, float64) {
			if now/(700*time.Millisecond)%3 == 0 {
				return 512 << 10, 0.9
			}
			return 512 << 10, 0
		},
		"an iteration in 150 ms": func(now time.Duration) (int, float64) {
			if now%(150*time.Millisecond) < 40*time.Millisecond {
				return 512 << 10, 1
			}
			return 0, 0
		},
		"growing and shrinking": func(now time.Duration) (int, float64) {
			x := math.Abs(float64(now%(40*time.Second))/float64(20*time.Second) - 1)
			return 1 + int(math.Exp2(24*x)), 1
		},
		"phases of little": func(now time.Duration) (int, float64) {
			switch now / (15 * time.Second) % 4 {
			case 0:
				return 256 << 10, 1
			case 1:
				return 8, 0.3
			case 2:
				return 2 << 10, 1
			}
			return 0, 0
		},
	}
	var mu sync.Mutex
	passed, alarms := map[string]float64{}, map[string]float64{}
	t.Run("of", func(t *testing.T) {
		for sky, k := range skies {
			for name, program := range programs {
				for _, every := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
					t.Run(fmt.Sprintf("%s/%s/%v", sky, name, every), func(t *testing.T) {
						t.Parallel()
						span := *days
						h := fnv.New64()
						fmt.Fprint(h, sky, name, every)
						if testing.Short() {
							span /= 5
						}
						var wrong, readings, learned int
						// Each quarter of a day is a job of its own, that learns anew.
						for part := 0.; part < span; part += 0.25 {
							w := newWorld(h.Sum64()+uint64(part*4), k, every)
							w.program = program
							watch := newWatch(t, WatchOptions{Mode: Enforce})
							w.run(time.Duration(min(0.25, span-part)*24*float64(time.Hour)), func(r Reading) bool {
								if b, ok := watch.Observe(r); ok && b.Ended.IsZero() {
									wrong++
								}
								readings++
								return true
							})
							learned += len(watch.Contract().Promises)
						}
						require.NotZero(t, learned, "nothing was learned")
						require.Greater(t, readings, int(span*86400*2))
						t.Logf("%d false in %.2g days", wrong, span)
						mu.Lock()
						defer mu.Unlock()
						passed[sky] += span
						alarms[sky] += float64(wrong)
					})
				}
			}
		}
	})
	for sky, d := range passed {
		t.Logf("%s: %.0f false alarms in %.3g link-days", sky, alarms[sky], d)
		require.LessOrEqual(t, alarms[sky], d+2*math.Sqrt(d), "one in a link's day, and what chance adds")
	}
}

func newWatch(t testing.TB, o WatchOptions) *Watch {
	t.Helper()
	w, err := NewWatch(o)
	require.NoError(t, err)
	return w
}

// How long does it take to see a fall that begins after two minutes of normal running?
func TestDelays(t *testing.T) {
	const seeds = 100
	everywhere := []string{"calm", "usual", "rough", "storm"}
	tests := []struct {
		name   string
		enough float64 // of the promise is tolerated; 0: the usual half
		speed  float64 // of the promise, or of the last seconds where that is less
		skies  []string
		bar    time.Duration // that nine of ten keep
		all    time.Duration // that all keep
	}{
		{"by 2.3 where six tenths are tolerated", 0.6, 1 / 2.3, []string{"calm"}, 1500 * time.Millisecond, 4 * time.Second},
		{"to a third", 0, 1. / 3, []string{"calm", "usual"}, 1500 * time.Millisecond, 4 * time.Second},
		{"to a twentieth", 0, 1. / 20, everywhere, time.Second, 1200 * time.Millisecond},
		{"a hang", 0, 0, everywhere, time.Second, time.Second},
	}
	for _, tt := range tests {
		for _, sky := range tt.skies {
			for _, every := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond} {
				t.Run(fmt.Sprintf("%s/%s/%v", tt.name, sky, every), func(t *testing.T) {
					t.Parallel()
					var delays []time.Duration
					var spread float64
					early, anew := 0, 0 // breaches before anything fell, and links that were being learned anew then
					for seed := range uint64(seeds) {
						w := newWorld(seed, skies[sky], every)
						watch := newWatch(t, WatchOptions{Mode: Enforce, Tolerate: tt.enough})
						w.run(2*time.Minute+time.Duration(seed)*10*time.Millisecond, func(r Reading) bool { watch.Observe(r); return true })
						if len(broken(watch)) > 0 {
							early++
							continue
						}
						if len(watch.Contract().Promises) == 0 {
							anew++
							continue
						}
						promise := watch.Contract().Promises[0]
						spread += promise.Spread / seeds
						w.held, w.rate = true, min(promise.Rate, w.lately/3)*tt.speed
						began := w.now
						w.run(30*time.Second, func(r Reading) bool {
							b, ok := watch.Observe(r)
							if ok {
								delays = append(delays, w.now-began)
								require.Less(t, b.Seen, b.Promised)
								require.Greater(t, b.Sure, 0.8)
								require.WithinRange(t, b.Since, origin.Add(began-5*time.Second), origin.Add(w.now))
							}
							return !ok
						})
					}
					require.LessOrEqual(t, early, seeds/50, "breaches before anything fell")
					require.LessOrEqual(t, anew, seeds/20, "links that were being learned anew")
					n := len(delays)
					require.Equal(t, seeds, n+early+anew, "falls that were seen")
					slices.Sort(delays)
					t.Logf("%d early, %d anew, spread %.2f: median %v, 9 of 10 %v, 95 of 100 %v, all %v", early, anew, spread/float64(n)*seeds,
						delays[n/2], delays[n*9/10], delays[n*95/100], delays[n-1])
					require.LessOrEqual(t, delays[n*9/10], tt.bar)
					require.LessOrEqual(t, delays[n-1], tt.all)
				})
			}
		}
	}
}
