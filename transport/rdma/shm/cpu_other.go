//go:build linux && !amd64

package shm

import "sync/atomic"

func storeRelease(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func prefetchWrite([]byte) {}
