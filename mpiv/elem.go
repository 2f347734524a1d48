package mpiv

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"strings"
	"sync/atomic"
	"unsafe"
)

// Elem is a type whose values can be sent as they lie in memory: of fixed size
// and free of pointers. Numbers, arrays and structs of such types are; strings,
// slices, maps, pointers and interfaces are not, and end in ErrType. Any
// encodable value goes with SendObj. What comes in the padding of a struct, and in
// blank fields, means nothing.
type Elem interface{ any }

// bytesOf is the memory of s.
func bytesOf[T Elem](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*sizeOf[T]())
}

func sizeOf[T Elem]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// denseTypes caches, by the address of their type, types that may be sent as they lie;
// a type that collides with another is examined again each time.
var denseTypes [256]atomic.Uintptr

// dense tells whether T may be sent, and has no padding.
func dense[T Elem]() bool {
	var p any = (*T)(nil)
	id := *(*uintptr)(unsafe.Pointer(&p)) // the type word of an interface
	return knownDense(id) || denseAnew[T](id)
}

func knownDense(id uintptr) bool { return denseTypes[id>>5%256].Load() == id }

// denseAnew is dense for a type that is not in the cache.
func denseAnew[T Elem](id uintptr) bool {
	t := reflect.TypeFor[T]()
	if _, padded := paddedTypes.Load(t); padded || sizeOf[T]() > math.MaxInt32 || !plainType(t) {
		return false
	}
	if gaps := gapsIn(nil, t, 0); len(gaps) > 0 {
		paddedTypes.Store(t, gaps)
		return false
	}
	denseTypes[id>>5%256].Store(id)
	return true
}

// plain tells whether T may be sent.
func plain[T Elem]() bool { return dense[T]() || gapsOf[T]() != nil }

// outgoing is the memory of data, to be sent on c. What lies in padding is nobody's, and may be another
// in the next life of a rank, which is to send the same bytes: then it is a copy with zeros there.
func outgoing[T Elem](c *Comm, data []T) []byte {
	b := bytesOf(data)
	if dense[T]() || c == nil || !c.box.Chooses() {
		return b
	}
	b = bytes.Clone(b)
	clearPadding[T](b)
	return b
}

// fits is nil if T may be sent; otherwise it says what about T is in the way.
func fits[T Elem]() error {
	if plain[T]() {
		return nil
	}
	t := reflect.TypeFor[T]()
	if sizeOf[T]() > math.MaxInt32 {
		return fmt.Errorf("%w: a value of %v has %d bytes; send slices of smaller elements", ErrType, t, sizeOf[T]())
	}
	return fmt.Errorf("%w: %v%s; use SendObj and RecvObj", ErrType, t, misfit(t))
}

// misfit leads to the first part of t that cannot be sent: ", in which Inner.Next is a
// *int"; "" if that is t itself.
func misfit(t reflect.Type) string {
	path := ""
	for {
		switch t.Kind() {
		case reflect.Array:
			t, path = t.Elem(), path+"[0]"
			continue
		case reflect.Struct:
			for f := range t.Fields() {
				if !plainType(f.Type) {
					t, path = f.Type, path+"."+f.Name
					break
				}
			}
			continue
		}
		if path == "" {
			return ""
		}
		return fmt.Sprintf(", in which %s is a %v", strings.TrimPrefix(path, "."), t)
	}
}

// plainType tells whether t is of fixed size and free of pointers.
func plainType(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
		reflect.Float32, reflect.Float64, reflect.Complex64, reflect.Complex128:
		return true
	case reflect.Array:
		return plainType(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if !plainType(t.Field(i).Type) {
				return false
			}
		}
		return true
	}
	return false
}
