package shm

import "unsafe"

// storeRelease stores v so that who sees it sees all that was written before.
// Unlike atomic.StoreUint64 it does not wait until the store has left the core,
// which halves the rate of messages.
//
//go:noescape
func storeRelease(p *uint64, v uint64)

// prefetchWrite makes this core fetch b, to write to it soon.
func prefetchWrite(b []byte) { prefetchLines(unsafe.SliceData(b), len(b)) }

//go:noescape
func prefetchLines(p *byte, n int)
