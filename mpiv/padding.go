package mpiv

import (
	"reflect"
	"sync"
)

// A gap is padding within an element, which holds whatever was in that memory before.
type gap struct{ from, to uintptr }

// paddedTypes is the gaps, in order, of each type that may be sent and has some.
var paddedTypes sync.Map // of []gap, by reflect.Type

// gapsOf is the gaps of T; nil if it has none, or may not be sent.
func gapsOf[T Elem]() []gap {
	if dense[T]() {
		return nil
	}
	gaps, _ := paddedTypes.Load(reflect.TypeFor[T]())
	all, _ := gaps.([]gap)
	return all
}

// gapsIn is all and the gaps of a value of type t that begins at byte at. Blank fields are such, too:
// the compiler need not set them.
func gapsIn(all []gap, t reflect.Type, at uintptr) []gap {
	switch t.Kind() {
	case reflect.Array:
		for i := range t.Len() {
			before := len(all)
			if all = gapsIn(all, t.Elem(), at+uintptr(i)*t.Elem().Size()); len(all) == before {
				break
			}
		}
	case reflect.Struct:
		end := at // of the fields so far
		for f := range t.Fields() {
			if f.Name == "_" {
				continue
			}
			all = withGap(all, gap{end, at + f.Offset})
			all = gapsIn(all, f.Type, at+f.Offset)
			end = at + f.Offset + f.Type.Size()
		}
		all = withGap(all, gap{end, at + t.Size()})
	}
	return all
}

func withGap(all []gap, g gap) []gap {
	if g.from == g.to {
		return all
	}
	return append(all, g)
}

// clearPadding clears the gaps of the Ts in b.
func clearPadding[T Elem](b []byte) {
	gaps, size := gapsOf[T](), sizeOf[T]()
	for of := 0; len(gaps) > 0 && of < len(b); of += size {
		for _, g := range gaps {
			clear(b[of+int(g.from) : of+int(g.to)])
		}
	}
}
