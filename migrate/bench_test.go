package migrate

import (
	"bytes"
	"encoding/gob"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

func TestLargeSlicesAreNotCopied(t *testing.T) {
	if !littleEndian {
		t.Skip("memory is what travels on little-endian machines only; this one copies")
	}
	grid := make([]float64, 64*mib/8)
	v := protect(t, &grid)
	into := protect(t, pointer(make([]float64, len(grid))))
	i, err := v.Image()
	require.NoError(t, err)
	require.Less(t, allocated(func() { v.Image() }), uint64(64<<10))
	require.Less(t, allocated(func() {
		f, err := into.Receive(i.Manifest)
		require.NoError(t, err)
		copy(f.Segments()[0], i.Segments[0])
		require.NoError(t, f.Finish())
	}), uint64(64<<10))
}

// allocated is what do sets aside.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func BenchmarkImage(b *testing.B) {
	b.Run("64MiB", func(b *testing.B) {
		grid := make([]float64, 64*mib/8)
		image(b, protect(b, &grid))
	})
	b.Run("particles-with-padding/64MiB", func(b *testing.B) {
		image(b, protect(b, pointer(make([]padded, 64*mib/17))))
	})
	b.Run("structs", func(b *testing.B) { image(b, protect(b, pointer(population()))) })
}

func image(b *testing.B, v *Vars) {
	i, err := v.Image()
	require.NoError(b, err)
	b.SetBytes(i.Bytes())
	b.ReportAllocs()
	for b.Loop() {
		v.Image()
	}
}

// BenchmarkReceive has no copy into the segments: that is the network's work.
func BenchmarkReceive(b *testing.B) {
	b.Run("64MiB", func(b *testing.B) {
		receive(b, protect(b, pointer(make([]float64, 64*mib/8))), protect(b, pointer(make([]float64, 64*mib/8))), func() {})
	})
	b.Run("64MiB-anew", func(b *testing.B) {
		var grid []float64
		receive(b, protect(b, pointer(make([]float64, 64*mib/8))), protect(b, &grid), func() { grid = nil })
	})
	b.Run("structs", func(b *testing.B) {
		receive(b, protect(b, pointer(population())), protect(b, new([]*being)), func() {})
	})
}

func receive(b *testing.B, from, into *Vars, forget func()) {
	i, err := from.Image()
	require.NoError(b, err)
	b.SetBytes(i.Bytes())
	b.ReportAllocs()
	for b.Loop() {
		forget()
		f, err := into.Receive(i.Manifest)
		if err != nil {
			b.Fatal(err)
		}
		for k, s := range f.Segments()[:1] {
			copy(s, i.Segments[k])
		}
		if err := f.Finish(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkObject is a message there and back, and what encoding/gob takes for it, with an
// encoder and a decoder for each message.
func BenchmarkObject(b *testing.B) {
	table := make(map[string]int)
	for i := range 100 {
		table[fmt.Sprint("key ", i)] = i
	}
	objectAndGob(b, "struct", &Small{ID: 7, Name: "small", At: Place{1, 2}, Tags: []string{"a", "b"}})
	objectAndGob(b, "floats/1MiB", pointer(ramp(mib/8)))
	objectAndGob(b, "map/100", &table)
}

// Small is a message as many are.
type Small struct {
	ID   int
	Name string
	At   Place
	Tags []string
}

func objectAndGob[V any](b *testing.B, name string, v *V) {
	run := func(name string, encode func(*V) ([]byte, error), decode func([]byte, *V) error) {
		laid, err := encode(v)
		require.NoError(b, err)
		b.Run(name+"/encode", func(b *testing.B) {
			b.SetBytes(int64(len(laid)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := encode(v); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			b.SetBytes(int64(len(laid)))
			b.ReportAllocs()
			for b.Loop() {
				var into V
				if err := decode(laid, &into); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run(name+"/mpiv", func(v *V) ([]byte, error) { return Encode(v) }, func(b []byte, v *V) error { return Decode(b, v) })
	run(name+"/gob", func(v *V) ([]byte, error) {
		var buf bytes.Buffer
		err := gob.NewEncoder(&buf).Encode(v)
		return buf.Bytes(), err
	}, func(b []byte, v *V) error { return gob.NewDecoder(bytes.NewReader(b)).Decode(v) })
}

// population is 100 000 structs behind pointers, with a name, a short slice
// and a friend each.
func population() []*being {
	all := make([]*being, 100_000)
	for i := range all {
		all[i] = &being{id: i, name: "being", at: [3]float64{1, 2, 3}, bonds: []int32{1, 2, 3}, friend: all[i/2]}
	}
	return all
}

type being struct {
	id     int
	name   string
	at     [3]float64
	bonds  []int32
	friend *being
}
