package mpiv

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// Where the pieces of the data begin and end, which hangs on the network and on how many ranks share a process, makes
// no difference, down to which of two NaNs there is.
func TestKernelsInPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	float32s := make([]float32, 2*40)
	for i := range float32s {
		float32s[i] = []float32{1, math.Float32frombits(0x7fc00000 | r.Uint32()>>10), math.Float32frombits(0xffc00000 | r.Uint32()>>10)}[r.IntN(3)]
	}
	float64s := make([]float64, 2*40)
	for i := range float64s {
		float64s[i] = []float64{1, math.Float64frombits(0x7ff8<<48 | r.Uint64()>>13), math.Float64frombits(0xfff8<<48 | r.Uint64()>>13)}[r.IntN(3)]
	}
	testPieces(t, 4, bytesOf(float32s), Sum[float32]().r, Prod[float32]().r, Min[float32]().r, Max[float32]().r, Sum[complex64]().r)
	testPieces(t, 8, bytesOf(float64s), Sum[float64]().r, Prod[float64]().r, Min[float64]().r, Max[float64]().r, Sum[complex128]().r)
}

func testPieces(t *testing.T, size int, data []byte, all ...*reduction) {
	n := len(data) / 2
	a, b := data[:n], data[n:]
	for _, r := range all {
		want := make([]byte, n)
		r.combine(want, a, b)
		for at := 2 * size; at < n; at += 2 * size {
			got := make([]byte, n)
			r.combine(got[:at], a[:at], b[:at])
			r.combine(got[at:], a[at:], b[at:])
			if !bytes.Equal(got, want) {
				t.Fatalf("%s of %d bytes each, in pieces of %d and %d: %x, want %x", r.name, size, at, n-at, got, want)
			}
		}
	}
}

func BenchmarkKernels(b *testing.B) {
	for _, n := range []int{8, 1 << 10, 32 << 10, 512 << 10} {
		x, y := make([]float64, n/8), make([]float64, n/8)
		for _, k := range []struct {
			name string
			r    *reduction
		}{
			{"Sum/float64", Sum[float64]().r}, {"Sum/float32", Sum[float32]().r}, {"Sum/int64", Sum[int64]().r}, {"Sum/int32", Sum[int32]().r},
			{"Max/float64", Max[float64]().r}, {"Min/int32", Min[int32]().r}, {"Prod/float64", Prod[float64]().r}, {"BOr", BOr[int32]().r}, {"LAnd/uint8", LAnd[uint8]().r},
		} {
			b.Run(fmt.Sprintf("%s/%s", k.name, byteSize(n)), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					k.r.combine(bytesOf(y), bytesOf(x), bytesOf(y))
				}
			})
		}
	}
}
