//go:build !amd64 || race

package release

import "sync/atomic"

// Store32 stores v in p.
func Store32(p *uint32, v uint32) { atomic.StoreUint32(p, v) }

// Store64 stores v in p.
func Store64(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

// Pause tells the processor that the caller spins.
func Pause() {}
