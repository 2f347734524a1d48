package mpiv

import (
	"reflect"

	"golang.org/x/sys/cpu"
)

// The loops in kernels_amd64.s: n blocks of 32 bytes.

//go:noescape
func sumFloat64AVX2(dst, a, b *byte, n int)

//go:noescape
func sumFloat32AVX2(dst, a, b *byte, n int)

//go:noescape
func sumInt64AVX2(dst, a, b *byte, n int)

//go:noescape
func sumInt32AVX2(dst, a, b *byte, n int)

//go:noescape
func prodFloat64AVX2(dst, a, b *byte, n int)

//go:noescape
func prodFloat32AVX2(dst, a, b *byte, n int)

//go:noescape
func minInt32AVX2(dst, a, b *byte, n int)

//go:noescape
func maxInt32AVX2(dst, a, b *byte, n int)

//go:noescape
func minFloat64AVX2(dst, a, b *byte, n int)

//go:noescape
func minFloat32AVX2(dst, a, b *byte, n int)

//go:noescape
func maxFloat64AVX2(dst, a, b *byte, n int)

//go:noescape
func maxFloat32AVX2(dst, a, b *byte, n int)

type vectorLoop func(dst, a, b *byte, n int)

// vectorLoops is the loops of each reduction, by its name.
var vectorLoops = map[string]map[reflect.Kind]vectorLoop{
	"Sum": {
		reflect.Float64: sumFloat64AVX2, reflect.Complex128: sumFloat64AVX2,
		reflect.Float32: sumFloat32AVX2, reflect.Complex64: sumFloat32AVX2,
		reflect.Int64: sumInt64AVX2, reflect.Uint64: sumInt64AVX2,
		reflect.Int32: sumInt32AVX2, reflect.Uint32: sumInt32AVX2,
	},
	"Prod": {reflect.Float64: prodFloat64AVX2, reflect.Float32: prodFloat32AVX2},
	"Min":  {reflect.Float64: minFloat64AVX2, reflect.Float32: minFloat32AVX2, reflect.Int32: minInt32AVX2},
	"Max":  {reflect.Float64: maxFloat64AVX2, reflect.Float32: maxFloat32AVX2, reflect.Int32: maxInt32AVX2},
}

// vectorize replaces those of a reduction's kernels that can be faster here.
// The bits of the results are the same.
func vectorize(name string, kernels map[reflect.Kind]kernel) {
	if !cpu.X86.HasAVX2 {
		return
	}
	for k, loop := range vectorLoops[name] {
		kernels[k] = vectorized(loop, kernels[k])
	}
}

// vectorized runs loop over whole blocks, and rest over what is left.
func vectorized(loop vectorLoop, rest kernel) kernel {
	const block = 32
	return func(dst, a, b []byte) {
		if n := len(dst) / block; n > 0 {
			loop(&dst[0], &a[0], &b[0], n)
			n *= block
			dst, a, b = dst[n:], a[n:], b[n:]
		}
		if len(dst) > 0 {
			rest(dst, a, b)
		}
	}
}
