package mpiv

import (
	"bytes"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"golang.org/x/sys/cpu"
)

// The vector loops leave the same bits as those in Go, whatever the length and
// wherever dst is. Of a NaN only that it is one is compared.
func TestVectorLoopsLeaveTheSameBits(t *testing.T) {
	if !cpu.X86.HasAVX2 {
		t.Skip("this processor has no AVX2")
	}
	testVectors(t, func(r *rand.Rand) float64 {
		return []float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), r.NormFloat64(), math.Ldexp(r.Float64(), r.IntN(2000)-1000)}[r.IntN(7)]
	})
	testVectors(t, func(r *rand.Rand) float32 {
		return []float32{0, float32(math.Copysign(0, -1)), float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), float32(r.NormFloat64())}[r.IntN(6)]
	})
	testVectors(t, func(r *rand.Rand) int64 { return int64(r.Uint64()) })
	testVectors(t, (*rand.Rand).Uint64)
	testVectors(t, func(r *rand.Rand) int32 { return int32(r.Uint32()) })
	testVectors(t, (*rand.Rand).Uint32)
}

func testVectors[T Real](t *testing.T, random func(r *rand.Rand) T) {
	kind := reflect.TypeFor[T]().Kind()
	r := rand.New(rand.NewPCG(1, 2))
	for i, of := range []*kinds{&sums, &prods, &mins, &maxs} {
		fast, scalar := of[kind].combine, []kernel{sum[T], prod[T], least[T], greatest[T]}[i]
		for n := range 70 {
			a, b := make([]T, n), make([]T, n)
			for i := range a {
				a[i], b[i] = random(r), random(r)
			}
			want := make([]T, n)
			scalar(bytesOf(want), bytesOf(a), bytesOf(b))
			for _, where := range []string{"apart", "a", "b"} {
				x, y := append([]T(nil), a...), append([]T(nil), b...)
				got := map[string][]T{"apart": make([]T, n), "a": x, "b": y}[where]
				fast(bytesOf(got), bytesOf(x), bytesOf(y))
				for i := range got {
					if got[i] != got[i] && want[i] != want[i] {
						got[i] = want[i]
					}
				}
				if !bytes.Equal(bytesOf(got), bytesOf(want)) {
					t.Fatalf("%s of %d %v, dst %s: %v and %v = %v, want %v", of[kind].name, n, kind, where, a, b, got, want)
				}
			}
		}
	}
}
