//go:build linux

package checkpoint

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

var sizes = []struct {
	name string
	n    int
}{{"4KiB", 4 << 10}, {"1MiB", 1 << 20}, {"64MiB", 64 << 20}}

func state(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i >> 5)
	}
	return b
}

// BenchmarkSave compares with a plain copy into the same two mappings in turn.
func BenchmarkSave(b *testing.B) {
	for _, s := range sizes {
		a, _ := newArea(b)
		from, n := state(s.n), uint64(0)
		require.NoError(b, a.Reserve(int64(s.n)))
		b.Run(s.name+"/save", func(b *testing.B) {
			b.SetBytes(int64(s.n))
			b.ReportAllocs()
			for b.Loop() {
				n++
				if err := a.Save(n, from); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(s.name+"/copy", func(b *testing.B) {
			b.SetBytes(int64(s.n))
			for b.Loop() {
				n++
				copy(a.slots[n&1].mem[pageLen:], from)
			}
		})
	}
}

// BenchmarkFirstSave is of a snapshot for which nothing is reserved.
func BenchmarkFirstSave(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			from := state(s.n)
			b.SetBytes(int64(s.n))
			for b.Loop() {
				b.StopTimer()
				a, path := newArea(b)
				b.StartTimer()
				if err := a.Save(1, from); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				a.Close()
				Remove(path)
				b.StartTimer()
			}
		})
	}
}

// BenchmarkDelta is an agent's work for each snapshot: find one chunk that
// changed, and have a replica take it.
func BenchmarkDelta(b *testing.B) {
	for _, s := range sizes {
		b.Run(s.name, func(b *testing.B) {
			a, _ := newArea(b)
			other, _ := newArea(b)
			r := NewReplica(other)
			from := state(s.n)
			var sums *Sums
			b.SetBytes(int64(s.n))
			n := uint64(0)
			for b.Loop() {
				n++
				from[int(n)%s.n]++
				b.StopTimer()
				require.NoError(b, a.Save(n, from))
				b.StartTimer()
				sums, _ = carry(b, a, r, sums, 0)
			}
		})
	}
}

func BenchmarkHash(b *testing.B) {
	from := state(ChunkLen)
	for _, bits := range []int{64, 128} {
		b.Run(fmt.Sprint(bits), func(b *testing.B) {
			b.SetBytes(ChunkLen)
			sum := uint64(0)
			for b.Loop() {
				if bits == 64 {
					sum += xxh3.Hash(from)
				} else {
					sum += xxh3.Hash128(from).Lo
				}
			}
		})
	}
}

func BenchmarkAppend(b *testing.B) {
	d, _ := newDeterminants(b)
	b.ReportAllocs()
	rec := Determinant{Kind: 1, Source: 3, Count: 1}
	n := uint64(0)
	for b.Loop() {
		rec.Seq = n
		if err := d.Append(rec); err != nil {
			b.Fatal(err)
		}
		if n++; n%1000 == 0 { // a snapshot
			d.Truncate(n)
		}
	}
}

func BenchmarkFrom(b *testing.B) {
	d, path := newDeterminants(b)
	for i := range uint64(leastRing) {
		require.NoError(b, d.Append(determinantOf(i)))
	}
	reader := openDeterminants(b, path)
	for b.Loop() {
		n := 0
		for range reader.From(0) {
			n++
		}
		require.Equal(b, leastRing, n)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/leastRing, "ns/record")
}
