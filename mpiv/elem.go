package mpiv

import (
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
	return knownPlain(id) || plainAnew[T](id)
}

func knownPlain(id uintptr) bool { return plainTypes[id>>5%256].Load() == id }

// plainAnew is plain for a type that is not in the cache.
func plainAnew[T Elem](id uintptr) bool {
	ok := sizeOf[T]() <= math.MaxInt32 && plainType(reflect.TypeFor[T]())
	if ok {
		plainTypes[id>>5%256].Store(id)
	}
	return ok
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
