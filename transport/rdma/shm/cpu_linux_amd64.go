package shm

import "unsafe"

// prefetchWrite makes this core fetch b, to write to it soon.
func prefetchWrite(b []byte) { prefetchLines(unsafe.SliceData(b), len(b)) }

//go:noescape
func prefetchLines(p *byte, n int)

// prefetchRead makes this core fetch the line of p, to read it soon.
//
//go:noescape
func prefetchRead(p *uint64)

// prefetchBody makes this core fetch b, to read it soon. It must not be empty.
func prefetchBody(b []byte) { prefetchReadLines(unsafe.SliceData(b), len(b)) }

//go:noescape
func prefetchReadLines(p *byte, n int)
