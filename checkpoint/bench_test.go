//go:build linux

package checkpoint

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"

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
		for range a.slots { // or the system would have to find the memory
			n++
			require.NoError(b, save(a, n, from))
		}
		b.Run(s.name+"/save", func(b *testing.B) {
			b.SetBytes(int64(s.n))
			b.ReportAllocs()
			for b.Loop() {
				n++
				if err := save(a, n, from); err != nil {
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
				if err := save(a, 1, from); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				a.Close()
				os.Remove(path)
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
				require.NoError(b, save(a, n, from))
				b.StartTimer()
				sums, _ = carry(b, a, r, sums, 0)
			}
		})
	}
}

// BenchmarkWritten is a snapshot, of which so many pages scattered over it were written to since
// the one before: what the rank does (save), its agent (delta) and that of another host (commit).
// What was written to is not known and not looked for (all), found by comparing, or known.
func BenchmarkWritten(b *testing.B) {
	const size = 256 << 20
	for _, percent := range []int{0, 1, 10, 100} {
		for _, how := range []string{"all", "compared", "known"} {
			b.Run(fmt.Sprintf("%d%%/%s", percent, how), func(b *testing.B) {
				benchWritten(b, size, percent, how)
			})
		}
	}
}

func benchWritten(b *testing.B, size, percent int, how string) {
	a, path := newArea(b)
	agent := openArea(b, path)
	other, _ := newArea(b)
	r := NewReplica(other)
	from := state(size)
	var number uint64
	var sums *Sums
	var took [3]time.Duration
	var copied, sent int64
	once := func() {
		number++
		written := []Range{}
		for i := range size / ChunkLen * percent / 100 {
			at := i * 100 / percent * ChunkLen
			binary.NativeEndian.PutUint64(from[at:], number)
			written = append(written, Range{at, at + 1})
		}
		began := time.Now()
		p := Part{Bytes: from}
		switch how {
		case "known":
			p.Known, p.Written = true, written
		case "all":
			p.Known, p.Written = true, []Range{{0, size}}
		}
		require.NoError(b, a.Begin(number, p))
		require.NoError(b, a.End(nil))
		saved := time.Now()
		d, err := agent.Delta(sums, 256<<10)
		require.NoError(b, err)
		found := time.Now()
		require.NoError(b, r.Begin(d.Number, d.Lengths, d.Base))
		for c, err := range d.Chunks() {
			require.NoError(b, err)
			require.NoError(b, r.Put(c.Part, c.Off, c.Data))
		}
		require.NoError(b, r.Commit(d.Sums.Sum()))
		sums = d.Sums
		for i, x := range []time.Duration{saved.Sub(began), found.Sub(saved), time.Since(found)} {
			took[i] += x
		}
		copied, sent = copied+a.Copied(), sent+d.Bytes
	}
	for range 4 {
		once()
	}
	took, copied, sent = [3]time.Duration{}, 0, 0
	for b.Loop() {
		once()
	}
	n := float64(b.N)
	for i, unit := range []string{"save-ms/op", "delta-ms/op", "commit-ms/op"} {
		b.ReportMetric(took[i].Seconds()*1e3/n, unit)
	}
	b.ReportMetric(float64(copied)/1e6/n, "copied-MB/op")
	b.ReportMetric(float64(sent)/1e6/n, "sent-MB/op")
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
