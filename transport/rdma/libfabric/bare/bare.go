//go:build ofi && cgo && linux

// Package bare is libfabric without mpiv: a loop in C around its calls, for
// benchmarks to compare with. Built with the tag ofi.
package bare

// #cgo pkg-config: libfabric
// #cgo CFLAGS: -O2
// #include <stdlib.h>
// #include <rdma/fi_errno.h>
// #include "bare.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"
)

// What a Pair does: read, write, and read from memory that is registered anew.
const (
	Get  = C.BARE_GET
	Put  = C.BARE_PUT
	Pull = C.BARE_PULL
)

// A Pair is two endpoints in this process. One goroutine may use it.
type Pair struct {
	c   *C.struct_bare
	pin runtime.Pinner
}

// Open makes a pair, of which one end reads into, and writes from, near, at the
// other end's far. Both have the same length. Node is the address of this host, where
// the provider wants one.
func Open(provider, node string, near, far []byte) (*Pair, error) {
	p := new(Pair)
	p.pin.Pin(&near[0])
	p.pin.Pin(&far[0])
	name := C.CString(provider)
	defer C.free(unsafe.Pointer(name))
	var host *C.char
	if node != "" {
		host = C.CString(node)
		defer C.free(unsafe.Pointer(host))
	}
	at := func(b []byte) C.uintptr_t { return C.uintptr_t(uintptr(unsafe.Pointer(&b[0]))) }
	if err := result(C.bare_open(name, host, at(near), at(far), C.size_t(len(far)), &p.c)); err != nil {
		p.Close()
		return nil, fmt.Errorf("open %s: %w", provider, err)
	}
	return p, nil
}

// Run does n bytes so many times, one after the other.
func (p *Pair) Run(what, n, times int) error {
	return result(C.bare_run(p.c, C.int(what), C.size_t(n), C.int(times)))
}

// Close frees the pair.
func (p *Pair) Close() {
	C.bare_close(p.c)
	p.pin.Unpin()
}

func result(r C.int) error {
	if r == 0 {
		return nil
	}
	return errors.New(C.GoString(C.fi_strerror(-r)))
}
