package mpiv

import (
	"fmt"
	"testing"
)

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
