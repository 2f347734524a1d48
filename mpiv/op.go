package mpiv

import (
	"reflect"
	"unsafe"
)

// An Op says how a reduction combines elements: Sum, Prod, Min, Max, LAnd, LOr,
// LXor, BAnd, BOr, BXor, MinLoc, MaxLoc, or what NewOp makes.
//
//	mpiv.Allreduce(ctx, world, in, out, mpiv.Sum)
type Op[T Elem] func() Reduction[T]

// A Reduction is an Op at work on elements of one type.
type Reduction[T Elem] struct{ r *reduction }

// A reduction combines buffers, element by element.
type reduction struct {
	name        string
	commutative bool
	combine     kernel // nil: not for this type
	own         bool   // of the program, so it may panic
}

// A kernel leaves a∘b in dst, which may be a or b; all have the same length and
// hold whole elements.
type kernel func(dst, a, b []byte)

// Integer is the types that Go's integer operators work on.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Real is the types that have an order.
type Real interface {
	Integer | ~float32 | ~float64
}

// Number is the types that can be added and multiplied.
type Number interface {
	Real | ~complex64 | ~complex128
}

// Logical is the types that are true or false; of integers, 0 is false, and
// true is written as 1 where two are combined. What is combined with none, as in a
// reduction of one rank, stays as it is.
type Logical interface{ Integer | ~bool }

// Sum adds. Integers wrap around.
func Sum[T Number]() Reduction[T] { return builtin[T](&sums, kindOf[T]()) }

// Prod multiplies. Integers wrap around.
func Prod[T Number]() Reduction[T] { return builtin[T](&prods, kindOf[T]()) }

// Min is the least element; NaN if there is one.
func Min[T Real]() Reduction[T] { return builtin[T](&mins, kindOf[T]()) }

// Max is the greatest element; NaN if there is one.
func Max[T Real]() Reduction[T] { return builtin[T](&maxs, kindOf[T]()) }

// LAnd is true where all are.
func LAnd[T Logical]() Reduction[T] { return builtin[T](&lands, kindOf[T]()) }

// LOr is true where one at least is.
func LOr[T Logical]() Reduction[T] { return builtin[T](&lors, kindOf[T]()) }

// LXor is true where an odd number of them is.
func LXor[T Logical]() Reduction[T] { return builtin[T](&lxors, kindOf[T]()) }

// BAnd is the bits that are set in all.
func BAnd[T Integer]() Reduction[T] { return Reduction[T]{&bitAnd} }

// BOr is the bits that are set in one at least.
func BOr[T Integer]() Reduction[T] { return Reduction[T]{&bitOr} }

// BXor is the bits that are set in an odd number of them.
func BXor[T Integer]() Reduction[T] { return Reduction[T]{&bitXor} }

// A Loc is a value and where it is from, for MinLoc and MaxLoc.
type Loc[T Real] struct {
	Value T
	Index int64
}

// MinLoc is the Loc of the least value; of equals, that of the lowest index.
func MinLoc[T Real]() Reduction[Loc[T]] { return builtin[Loc[T]](&minLocs, kindOf[T]()) }

// MaxLoc is the Loc of the greatest value; of equals, that of the lowest index.
func MaxLoc[T Real]() Reduction[Loc[T]] { return builtin[Loc[T]](&maxLocs, kindOf[T]()) }

// NewOp is an Op of the program's own. f leaves in[i]∘inout[i] in inout[i] for
// all i; it is called with parts of the data, by several goroutines at once if
// there are several ranks in the process, and must be associative.
//
// The elements of lower ranks are on the left, in. commutative promises that
// this does not matter, which makes ReduceScatter of long data among many ranks
// faster.
func NewOp[T Elem](name string, f func(in, inout []T), commutative bool) Op[T] {
	r := Reduction[T]{&reduction{name: name, commutative: commutative, own: true}}
	if f != nil {
		r.r.combine = func(dst, a, b []byte) {
			switch {
			case same(dst, a) && !same(a, b):
				room := takeScratch(len(b))
				defer room.free()
				copy(room.b, b)
				f(elems[T](a), elems[T](room.b))
				copy(dst, room.b)
			case same(dst, b):
				f(elems[T](a), elems[T](b))
			default:
				copy(dst, b)
				f(elems[T](a), elems[T](dst))
			}
			clearPadding[T](dst)
		}
	}
	return func() Reduction[T] { return r }
}

// reduces is the reduction that op stands for; nil if it is none.
func (op Op[T]) reduces() *reduction {
	if op == nil {
		return nil
	}
	return op().r
}

// elems is b as elements of T; the rest of b that is no whole element is left
// out.
func elems[T Elem](b []byte) []T {
	size := sizeOf[T]()
	if size == 0 || len(b) < size {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/size)
}

// kindOf is T's kind; int and uint are those of their width.
func kindOf[T any]() reflect.Kind {
	const wide = unsafe.Sizeof(int(0)) == 8
	switch k := reflect.TypeFor[T]().Kind(); {
	case k == reflect.Int && wide:
		return reflect.Int64
	case k == reflect.Int:
		return reflect.Int32
	case k == reflect.Uint && wide:
		return reflect.Uint64
	case k == reflect.Uint:
		return reflect.Uint32
	default:
		return k
	}
}

// kinds is a reduction for each kind that it has a kernel for.
type kinds [reflect.Complex128 + 1]reduction

func builtin[T Elem](of *kinds, k reflect.Kind) Reduction[T] { return Reduction[T]{&of[k]} }

// commuting completes a table of built-in reductions, which all commute.
func commuting(name string, kernels map[reflect.Kind]kernel) (t kinds) {
	vectorize(name, kernels)
	for k := range t {
		t[k] = reduction{name: name, commutative: true, combine: kernels[reflect.Kind(k)]}
	}
	return t
}
