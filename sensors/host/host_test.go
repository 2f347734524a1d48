package host

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// A fake is a host to order.
type fake struct {
	cpu      CPUTimes
	traffic  map[string]Bytes
	waited   time.Duration
	throttle time.Duration
	broken   map[Source]error
	gauged   int // how often Memory was asked
}

func (f *fake) CPU() (CPUTimes, error)             { return f.cpu, f.broken[CPU] }
func (f *fake) Memory() (uint64, error)            { f.gauged++; return 3 << 30, f.broken[Memory] }
func (f *fake) Traffic() (map[string]Bytes, error) { return f.traffic, f.broken[Traffic] }
func (f *fake) Pressure() (time.Duration, error)   { return f.waited, f.broken[Pressure] }
func (f *fake) Throttled() (time.Duration, error)  { return f.throttle, f.broken[Throttle] }

func (f *fake) options() Options {
	return Options{CPU: f, Memory: f, Traffic: f, Pressure: f, Throttle: f}
}

var start = time.Unix(1_700_000_000, 0)

// What changes slowly is read once a second, and is in all readings.
func TestSampleReadsMemoryOnceASecond(t *testing.T) {
	const readings, pace = 21, 200 * time.Millisecond
	f := new(fake)
	s := NewSampler(f.options())
	for i := range readings {
		r, err := s.Sample(start.Add(time.Duration(i) * pace))
		require.NoError(t, err)
		require.Equal(t, uint64(3<<30), r.MemoryFree)
	}
	require.Equal(t, 5, f.gauged)
}

func TestSampleTakesDeltas(t *testing.T) {
	f := &fake{
		cpu:     CPUTimes{100, 10, 1000},
		traffic: map[string]Bytes{"eth0": {1e6, 1e6}, "san0": {0, 0}},
	}
	s := NewSampler(f.options())
	first, err := s.Sample(start)
	require.NoError(t, err)
	require.Empty(t, first.Missing)
	require.False(t, first.Has(CPU), "the first reading knows no deltas")
	require.True(t, first.Has(Memory))

	f.cpu = CPUTimes{101.5, 10.5, 1002}
	f.traffic = map[string]Bytes{"eth0": {1e6 + 4e6, 1e6 + 2e6}, "san0": {3e6, 0}, "new0": {7, 7}}
	f.waited = time.Second
	f.throttle = 200 * time.Millisecond
	r, err := s.Sample(start.Add(2 * time.Second))
	require.NoError(t, err)
	require.Empty(t, r.Missing)
	require.Equal(t, 2*time.Second, r.Over)
	require.InDelta(t, 1.5/4, r.CPU, 1e-9)
	require.InDelta(t, 0.5/4, r.Steal, 1e-9)
	require.InDelta(t, 0.5, r.Pressure, 1e-9)
	require.InDelta(t, 0.1, r.Throttled, 1e-9)
	require.InDelta(t, (4e6+3e6)/2, r.In, 1, "an interface that is new has no delta")
	require.InDelta(t, 2e6/2, r.Out, 1)

	f.waited += 3 * time.Second
	r, err = s.Sample(start.Add(3 * time.Second))
	require.NoError(t, err)
	require.Equal(t, 1., r.Pressure, "no share is more than all")
}

func TestMissingSourceIsMarked(t *testing.T) {
	gone := errors.New("gone")
	f := &fake{traffic: map[string]Bytes{}, broken: map[Source]error{Pressure: gone, Throttle: gone}}
	s := NewSampler(f.options())
	sample := func(after time.Duration) Reading {
		r, err := s.Sample(start.Add(after))
		require.NoError(t, err)
		return r
	}
	require.ErrorIs(t, sample(0).Missing[Pressure], gone)
	r := sample(time.Second)
	require.ErrorIs(t, r.Missing[Pressure], gone)
	require.True(t, r.Has(CPU))

	f.broken, f.waited = nil, time.Hour
	r = sample(2 * time.Second)
	require.ErrorIs(t, r.Missing[Pressure], errFirst, "an hour since nobody knows when is no share")
	require.Zero(t, r.Pressure)
	f.waited += 500 * time.Millisecond
	r = sample(3 * time.Second)
	require.Empty(t, r.Missing)
	require.InDelta(t, 0.5, r.Pressure, 1e-9)

	_, err := s.Sample(start.Add(3 * time.Second))
	require.ErrorContains(t, err, "not after")
	f.broken = map[Source]error{CPU: gone, Memory: gone, Traffic: gone, Pressure: gone, Throttle: gone}
	_, err = s.Sample(start.Add(time.Hour))
	require.ErrorIs(t, err, gone)
}

func TestCountersThatBeginAnew(t *testing.T) {
	f := &fake{cpu: CPUTimes{100, 0, 100}, traffic: map[string]Bytes{"eth0": {1e9, 1e9}}, waited: time.Hour}
	s := NewSampler(f.options())
	_, err := s.Sample(start)
	require.NoError(t, err)
	f.cpu, f.traffic, f.waited = CPUTimes{}, map[string]Bytes{"eth0": {5, 5}}, 0
	r, err := s.Sample(start.Add(time.Second))
	require.NoError(t, err)
	require.Zero(t, r.CPU)
	require.Zero(t, r.Pressure)
	require.Zero(t, r.In)
	require.Zero(t, r.Out)
}

func TestThisHost(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what this host must have is known of Linux only")
	}
	s := NewSampler(Options{})
	now := time.Now()
	_, err := s.Sample(now)
	require.NoError(t, err)
	for x := 0; time.Since(now) < 50*time.Millisecond; x++ {
		_ = x
	}
	r, err := s.Sample(time.Now())
	require.NoError(t, err)
	for _, source := range []Source{CPU, Memory, Traffic} {
		require.True(t, r.Has(source), "%s: %v", source, r.Missing[source])
	}
	require.Greater(t, r.CPU, 0.)
	require.Greater(t, r.MemoryFree, uint64(1<<20))
	if _, err := os.Stat("/proc/pressure/cpu"); err == nil {
		require.NoError(t, r.Missing[Pressure])
	}
	t.Logf("%+v", r)
}

func TestPressureFile(t *testing.T) {
	files := fstest.MapFS{"proc/pressure/cpu": {Data: []byte("some avg10=0.12 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=9\n")}}
	waited, err := procPressure{files}.Pressure()
	require.NoError(t, err)
	require.Equal(t, 1500*time.Millisecond, waited)
	_, err = procPressure{fstest.MapFS{}}.Pressure()
	require.ErrorContains(t, err, "proc/pressure/cpu")
}

func TestControlGroups(t *testing.T) {
	tests := []struct {
		name           string
		cgroup, mounts string
		stats          map[string]string
		want           time.Duration
		err            string
	}{
		{"version 1, a group within one that is held up more", "4:cpu,cpuacct:/a/b\n3:cpuset:/\n",
			"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:1 - cgroup cgroup rw,cpu,cpuacct\n",
			map[string]string{
				"sys/fs/cgroup/cpu/a/b/cpu.stat": "nr_periods 1\nnr_throttled 1\nthrottled_time 1000\n",
				"sys/fs/cgroup/cpu/a/cpu.stat":   "nr_periods 1\nnr_throttled 1\nthrottled_time 3000000\n",
			}, 3 * time.Millisecond, ""},
		{"version 2", "0::/job\n", "30 20 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]string{"sys/fs/cgroup/job/cpu.stat": "usage_usec 9\nthrottled_usec 250\n", "sys/fs/cgroup/cpu.stat": "usage_usec 9\n"},
			250 * time.Microsecond, ""},
		{"version 2 in a container, whose mount shows its own group", "0::/docker/x/job\n", "30 20 0:2 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]string{"sys/fs/cgroup/job/cpu.stat": "throttled_usec 250\n"}, 250 * time.Microsecond, ""},
		{"both, and version 1 has processors", "2:cpu:/\n0::/\n",
			"32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n30 20 0:2 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			map[string]string{"sys/fs/cgroup/cpu/cpu.stat": "throttled_time 5\n"}, 5, ""},
		{"no quota anywhere", "0::/\n", "30 20 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", nil, 0, "no control group"},
		{"nothing mounted", "0::/\n", "", nil, 0, "no controller"},
		{"a number that is none", "0::/\n", "30 20 0:2 / /c rw - cgroup2 cgroup2 rw\n", map[string]string{"c/cpu.stat": "throttled_usec -1\n"}, 0, "no time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			files := fstest.MapFS{"proc/self/cgroup": {Data: []byte(tt.cgroup)}, "proc/self/mountinfo": {Data: []byte(tt.mounts)}}
			for name, text := range tt.stats {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			got, err := (&controlGroups{root: files}).Throttled()
			if tt.err != "" {
				require.ErrorContains(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

// Who limits a running job puts it into another group.
func TestAProcessIsPutIntoAnotherControlGroup(t *testing.T) {
	files := fstest.MapFS{
		"proc/self/cgroup":                 {Data: []byte("1:cpu:/\n")},
		"proc/self/mountinfo":              {Data: []byte("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n")},
		"sys/fs/cgroup/cpu/cpu.stat":       {Data: []byte("throttled_time 0\n")},
		"sys/fs/cgroup/cpu/tight/cpu.stat": {Data: []byte("throttled_time 7\n")},
	}
	groups := &controlGroups{root: files}
	got, err := groups.Throttled()
	require.NoError(t, err)
	require.Zero(t, got)
	files["proc/self/cgroup"] = &fstest.MapFile{Data: []byte("1:cpu:/tight\n")}
	got, err = groups.Throttled()
	require.NoError(t, err)
	require.EqualValues(t, 7, got, "held up in the group that it was put into")
}

func TestFlood(t *testing.T) {
	type step struct{ seconds, in, out, foreignIn, foreignOut float64 }
	quiet := func(seconds float64) step { return step{seconds, 11e6, 11e6, 0.2e6, 0.1e6} } // the job's own traffic is what shows the capacity
	for _, tt := range []struct {
		name  string
		steps []step
		want  bool
	}{
		{"the first second", []step{{1, 12e6, 0, 12e6, 0}}, false},
		{"the job's own traffic", []step{quiet(60)}, false},
		{"200 ms of others", []step{quiet(10), {0.2, 12e6, 0, 11e6, 0}}, false},
		{"others come in", []step{quiet(10), {0.5, 12e6, 0, 11e6, 0}}, true},
		{"others ask for large answers", []step{quiet(10), {0.5, 1e6, 12e6, 0.5e6, 11e6}}, true},
		{"it lasts, and does not become usual", []step{quiet(10), {600, 12e6, 0, 11e6, 0}}, true},
		{"much more than usual and little of the link", []step{quiet(10), {60, 4e6, 0, 4e6, 0}}, false},
		{"it ends", []step{quiet(10), {10, 12e6, 0, 11e6, 0}, quiet(0.1)}, false},
		{"a host that serves others all the time", []step{{60, 0, 8e6, 0, 8e6}, {60, 0, 11e6, 0, 11e6}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f Flood
			var flooded bool
			for _, s := range tt.steps {
				for range int(s.seconds*10 + 0.5) {
					flooded = f.Observe(100*time.Millisecond, s.in, s.out, s.foreignIn, s.foreignOut)
				}
			}
			require.Equal(t, tt.want, flooded, "%+v", f)
		})
	}
}

func FuzzHostFiles(f *testing.F) {
	f.Add([]byte("some avg10=0 total=12\n"), []byte("throttled_usec 12\n"), []byte("0::/a\n"), []byte("1 2 3 / /c rw - cgroup2 x rw\n"))
	f.Fuzz(func(t *testing.T, pressure, stat, groups, mounts []byte) {
		if d, err := parsePressure(pressure); err == nil {
			require.GreaterOrEqual(t, d, time.Duration(0))
		}
		if d, _, err := parseCPUStat(stat); err == nil {
			require.GreaterOrEqual(t, d, time.Duration(0))
		}
		dirs, err := cpuGroups(fstest.MapFS{"proc/self/mountinfo": {Data: mounts}}, groups)
		require.Equal(t, err == nil, len(dirs) > 0)
	})
}

func BenchmarkSample(b *testing.B) {
	s := NewSampler(Options{})
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(100 * time.Millisecond)
		if _, err := s.Sample(now); err != nil {
			b.Fatal(err)
		}
	}
}
