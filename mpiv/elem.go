package mpiv

import (
	"reflect"
	"sync/atomic"
	"unsafe"
)

// Elem is a type whose values can be sent as they lie in memory: of fixed size
// and free of pointers. Numbers, arrays and structs of such types are; strings,
// slices, maps, pointers and interfaces are not, and end in ErrType. Any
// encodable value goes with SendObj.
type Elem interface{ any }

// bytesOf is the memory of s.
func bytesOf[T Elem](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*sizeOf[T]())
}

func sizeOf[T Elem]() int {
	var t T
	return int(unsafe.Sizeof(t))
}

// plainTypes caches, by the address of their type, types that were found fit to
// send; a type that collides with another is examined again each time.
var plainTypes [256]atomic.Uintptr

// plain tells whether T may be sent.
func plain[T Elem]() bool {
	var p any = (*T)(nil)
	id := *(*uintptr)(unsafe.Pointer(&p)) // the type word of an interface
	slot := &plainTypes[id>>5%256]
	if slot.Load() == id {
		return true
	}
	ok := plainType(reflect.TypeFor[T]())
	if ok {
		slot.Store(id)
	}
	return ok
}

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
