package mpiv

import (
	"crypto/subtle"
	"reflect"
)

// The loops of the built-in reductions. An operation that does the same to the
// bits of signed and unsigned integers has one loop for both.
var (
	sums = commuting("Sum", map[reflect.Kind]kernel{
		reflect.Int8: sum[uint8], reflect.Int16: sum[uint16], reflect.Int32: sum[uint32], reflect.Int64: sum[uint64],
		reflect.Uint8: sum[uint8], reflect.Uint16: sum[uint16], reflect.Uint32: sum[uint32], reflect.Uint64: sum[uint64],
		reflect.Float32: sumFloats[float32], reflect.Float64: sumFloats[float64],
		reflect.Complex64: sumFloats[float32], reflect.Complex128: sumFloats[float64],
	})
	prods = commuting("Prod", map[reflect.Kind]kernel{
		reflect.Int8: prod[uint8], reflect.Int16: prod[uint16], reflect.Int32: prod[uint32], reflect.Int64: prod[uint64],
		reflect.Uint8: prod[uint8], reflect.Uint16: prod[uint16], reflect.Uint32: prod[uint32], reflect.Uint64: prod[uint64],
		reflect.Float32: prod[float32], reflect.Float64: prod[float64],
		reflect.Complex64: prod[complex64], reflect.Complex128: prod[complex128],
	})
	mins = commuting("Min", map[reflect.Kind]kernel{
		reflect.Int8: least[int8], reflect.Int16: least[int16], reflect.Int32: least[int32], reflect.Int64: least[int64],
		reflect.Uint8: least[uint8], reflect.Uint16: least[uint16], reflect.Uint32: least[uint32], reflect.Uint64: least[uint64],
		reflect.Float32: least[float32], reflect.Float64: least[float64],
	})
	maxs = commuting("Max", map[reflect.Kind]kernel{
		reflect.Int8: greatest[int8], reflect.Int16: greatest[int16], reflect.Int32: greatest[int32], reflect.Int64: greatest[int64],
		reflect.Uint8: greatest[uint8], reflect.Uint16: greatest[uint16], reflect.Uint32: greatest[uint32], reflect.Uint64: greatest[uint64],
		reflect.Float32: greatest[float32], reflect.Float64: greatest[float64],
	})
	minLocs = commuting("MinLoc", map[reflect.Kind]kernel{
		reflect.Int8: leastLoc[int8], reflect.Int16: leastLoc[int16], reflect.Int32: leastLoc[int32], reflect.Int64: leastLoc[int64],
		reflect.Uint8: leastLoc[uint8], reflect.Uint16: leastLoc[uint16], reflect.Uint32: leastLoc[uint32], reflect.Uint64: leastLoc[uint64],
		reflect.Float32: leastLoc[float32], reflect.Float64: leastLoc[float64],
	})
	maxLocs = commuting("MaxLoc", map[reflect.Kind]kernel{
		reflect.Int8: greatestLoc[int8], reflect.Int16: greatestLoc[int16], reflect.Int32: greatestLoc[int32], reflect.Int64: greatestLoc[int64],
		reflect.Uint8: greatestLoc[uint8], reflect.Uint16: greatestLoc[uint16], reflect.Uint32: greatestLoc[uint32], reflect.Uint64: greatestLoc[uint64],
		reflect.Float32: greatestLoc[float32], reflect.Float64: greatestLoc[float64],
	})
	lands = commuting("LAnd", map[reflect.Kind]kernel{
		reflect.Bool: allTrue[uint8],
		reflect.Int8: allTrue[uint8], reflect.Int16: allTrue[uint16], reflect.Int32: allTrue[uint32], reflect.Int64: allTrue[uint64],
		reflect.Uint8: allTrue[uint8], reflect.Uint16: allTrue[uint16], reflect.Uint32: allTrue[uint32], reflect.Uint64: allTrue[uint64],
	})
	lors = commuting("LOr", map[reflect.Kind]kernel{
		reflect.Bool: anyTrue[uint8],
		reflect.Int8: anyTrue[uint8], reflect.Int16: anyTrue[uint16], reflect.Int32: anyTrue[uint32], reflect.Int64: anyTrue[uint64],
		reflect.Uint8: anyTrue[uint8], reflect.Uint16: anyTrue[uint16], reflect.Uint32: anyTrue[uint32], reflect.Uint64: anyTrue[uint64],
	})
	lxors = commuting("LXor", map[reflect.Kind]kernel{
		reflect.Bool: oddTrue[uint8],
		reflect.Int8: oddTrue[uint8], reflect.Int16: oddTrue[uint16], reflect.Int32: oddTrue[uint32], reflect.Int64: oddTrue[uint64],
		reflect.Uint8: oddTrue[uint8], reflect.Uint16: oddTrue[uint16], reflect.Uint32: oddTrue[uint32], reflect.Uint64: oddTrue[uint64],
	})

	bitAnd = reduction{name: "BAnd", commutative: true, combine: bitwiseAnd}
	bitOr  = reduction{name: "BOr", commutative: true, combine: bitwiseOr}
	bitXor = reduction{name: "BXor", commutative: true, combine: bitwiseXor}
)

// sum does four elements at a time, with no bounds left to check.
func sum[T Number](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	for len(d) >= 4 && len(x) >= 4 && len(y) >= 4 {
		x0, x1, x2, x3 := x[0]+y[0], x[1]+y[1], x[2]+y[2], x[3]+y[3]
		d[0], d[1], d[2], d[3] = x0, x1, x2, x3
		d, x, y = d[4:], x[4:], y[4:]
	}
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

// sumFloats is sum where of two NaNs the processor gives that of the first operand. That is x here, whichever element it
// is; of four at a time the compiler has it be y for some, and results would hang on where pieces of the data begin.
func sumFloats[T float32 | float64](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = x[i] + y[i]
	}
}

func prod[T Number](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = x[i] * y[i]
	}
}

func least[T Real](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = min(x[i], y[i])
	}
}

func greatest[T Real](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = max(x[i], y[i])
	}
}

func leastLoc[T Real](dst, a, b []byte) {
	d, x, y := elems[Loc[T]](dst), elems[Loc[T]](a), elems[Loc[T]](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		if y[i].before(x[i], y[i].Value < x[i].Value) {
			d[i] = y[i]
		} else {
			d[i] = x[i]
		}
	}
	clearPadding[Loc[T]](dst)
}

func greatestLoc[T Real](dst, a, b []byte) {
	d, x, y := elems[Loc[T]](dst), elems[Loc[T]](a), elems[Loc[T]](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		if y[i].before(x[i], y[i].Value > x[i].Value) {
			d[i] = y[i]
		} else {
			d[i] = x[i]
		}
	}
	clearPadding[Loc[T]](dst)
}

// before tells whether l is chosen over m; better: its value is. A NaN, as in
// Min and Max, is better than any number.
func (l Loc[T]) before(m Loc[T], better bool) bool {
	if l.Value == m.Value {
		return l.Index < m.Index
	}
	lnan, mnan := l.Value != l.Value, m.Value != m.Value
	switch {
	case lnan && mnan:
		return l.Index < m.Index
	case lnan || mnan:
		return lnan
	}
	return better
}

type word interface {
	uint8 | uint16 | uint32 | uint64
}

// truth is 1 for true; the compiler makes it one instruction.
func truth[T word](b bool) T {
	var t T
	if b {
		t = 1
	}
	return t
}

func allTrue[T word](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = truth[T](x[i] != 0) & truth[T](y[i] != 0)
	}
}

func anyTrue[T word](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = truth[T](x[i]|y[i] != 0)
	}
}

func oddTrue[T word](dst, a, b []byte) {
	d, x, y := elems[T](dst), elems[T](a), elems[T](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = truth[T](x[i] != 0) ^ truth[T](y[i] != 0)
	}
}

// The bits are combined in words, whatever the elements are, and what is left
// byte by byte. crypto/subtle has the loop for XOR in assembly.

func bitwiseAnd(dst, a, b []byte) {
	d, x, y := elems[uint64](dst), elems[uint64](a), elems[uint64](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = x[i] & y[i]
	}
	for i := 8 * len(d); i < len(dst); i++ {
		dst[i] = a[i] & b[i]
	}
}

func bitwiseOr(dst, a, b []byte) {
	d, x, y := elems[uint64](dst), elems[uint64](a), elems[uint64](b)
	x, y = x[:len(d)], y[:len(d)]
	for i := range d {
		d[i] = x[i] | y[i]
	}
	for i := 8 * len(d); i < len(dst); i++ {
		dst[i] = a[i] | b[i]
	}
}

func bitwiseXor(dst, a, b []byte) { subtle.XORBytes(dst, a, b) }
