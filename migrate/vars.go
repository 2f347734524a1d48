// Package migrate says what of a rank survives a move or a crash and lays it
// out for travel. It does no I/O and starts no goroutines.
//
// State travels by name and type, not as memory: field names, fixed widths,
// little-endian, int as 64 bits. The other end may be another architecture or
// another build of the program. docs/decisions/0012-state.md says why.
//
// # What travels
//
// Booleans, numbers, strings, arrays, slices, maps, structs with all their
// fields, and pointers to these. A type that has MarshalBinary and
// UnmarshalBinary, or GobEncode and GobDecode, on itself or on its pointer,
// travels as these say (time.Time, big.Int, rand.PCG), unless it may have them
// from an embedded field: then it travels field by field. Interfaces, channels,
// functions, uintptr, unsafe.Pointer, map keys with pointers in them and
// most of package sync are refused.
//
// A field tagged `mpiv:"-"`, a sync.Mutex or a sync.RWMutex does not travel:
// where the struct is one of the protected variables, or a field of one, it
// keeps the value it has there, and is zero elsewhere.
//
// Pointers, slices and maps that are the same stay the same: shared values and
// cycles travel, pointers to protected variables too. What overlaps otherwise,
// as a pointer into a slice does, ends in [ErrShared] rather than in two copies.
// Strings need not stay shared. Capacity beyond the length does not travel.
//
// # Newer builds
//
// Fields are found by name, in any order. A field that is new here keeps its
// value as one tagged "-" does. A field that is gone here is an error, unless
// the struct here allows its loss:
//
//	type Grid struct {
//		_     struct{} `mpiv:"drop=scratch,old"`
//		Cells []float64
//	}
//
// # Objects
//
// What ranks send to each other in one piece is laid out in much the same way: see [Encode].
package migrate

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unsafe"
)

var (
	// ErrName says that a variable has no name, or another's.
	ErrName = errors.New("not a usable name")
	// ErrType says that something in a type cannot travel.
	ErrType = errors.New("type cannot travel")
	// ErrTag says that a field has a tag that there is not. It comes with ErrType.
	ErrTag = errors.New("unknown tag")
	// ErrShared says that two things overlap in memory and would not do so
	// after the journey.
	ErrShared = errors.New("memory is shared")
	// ErrValue says that a value of a type that travels does not.
	ErrValue = errors.New("value cannot travel")
	// ErrMismatch says that state and variables do not fit each other, or an
	// object and the type that was asked for.
	ErrMismatch = errors.New("state does not fit the variables")
	// ErrMalformed says that bytes are no image and no object: they were damaged,
	// or are of another version of the format.
	ErrMalformed = errors.New("malformed")
)

// Vars are the variables that a rank protects, by name. The zero value is
// ready. Vars are not for use by several goroutines at once.
type Vars struct {
	list  []variable
	types types
	rest  int // bytes of the rest in the last image: a hint for the next
	met   int // objects in it
}

type variable struct {
	name string
	node *node
	ptr  unsafe.Pointer // to the program's variable
}

// Protect adds the variable that ptr points to. The error is [ErrName] when name
// is empty or used already, or [ErrType], which says what cannot travel and
// where. Nothing is read: the variable may be set later.
func (v *Vars) Protect(name string, ptr any) error {
	if name == "" {
		return fmt.Errorf("%w: a protected variable needs a name that is not empty", ErrName)
	}
	if slices.ContainsFunc(v.list, func(old variable) bool { return old.name == name }) {
		return fmt.Errorf("%w: %q is protected already; choose another name", ErrName, name)
	}
	p := reflect.ValueOf(ptr)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return fmt.Errorf("%w: %s: pass the address of the variable, not %T", ErrType, name, ptr)
	}
	n, err := v.types.add(p.Type().Elem(), name)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrType, err)
	}
	v.list = append(v.list, variable{name: name, node: n, ptr: p.UnsafePointer()})
	return nil
}
