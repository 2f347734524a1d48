package crew

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseStat(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		state byte
		ticks uint64
		ok    bool
	}{
		"a name with parentheses": {"17 (a b) c) T 1 17 17 0 -1 4194560 1 0 0 0 30 12 0 0 20", 'T', 42, true},
		"nothing":                 {"", 0, 0, false},
		"cut short":               {"17 (a) S 1 17", 0, 0, false},
		"no number":               {"17 (a) S 1 17 17 0 -1 4194560 1 0 0 0 x 12 0 0 20", 0, 0, false},
		"a long state":            {"17 (a) SS 1 17 17 0 -1 4194560 1 0 0 0 1 12 0 0 20", 0, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			state, ticks, ok := parseStat([]byte(c.text))
			require.Equal(t, c.ok, ok)
			if ok {
				require.Equal(t, c.state, state)
				require.Equal(t, c.ticks, ticks)
			}
		})
	}
}

func TestPulse(t *testing.T) {
	never := func() bool { return false }
	always := func() bool { return true }
	p := &pulse{}
	require.Equal(t, "is stopped", p.look('T', 1, never))
	require.Empty(t, p.look('S', 2, always), "it took time")
	require.Empty(t, p.look('S', 2, always), "not looked yet")
	require.Equal(t, "is frozen", p.look('S', 2, always))
	require.Equal(t, "is frozen", p.look('D', 2, never), "still, between looks")
	require.Empty(t, p.look('S', 3, always), "thawed")
	for range 50 {
		require.Empty(t, p.look('R', 3, always), "it waits for a core")
		require.Empty(t, p.look('t', 3, always), "it is in a debugger")
	}
	for range 50 {
		require.Empty(t, p.look('S', 3, never))
	}
	require.Equal(t, 50*hangLook, p.idle)
}

func BenchmarkPulse(b *testing.B) {
	f, err := os.Open("/proc/self/stat")
	require.NoError(b, err)
	defer f.Close()
	buf, p := make([]byte, 1024), &pulse{}
	b.ReportAllocs()
	for b.Loop() {
		n, _ := f.ReadAt(buf, 0)
		state, ticks, _ := parseStat(buf[:n])
		p.look(state, ticks, func() bool { return false })
	}
}
