package release

import "sync/atomic"

// A Bool is false at first. Set releases; Get acquires, as a Load of
// sync/atomic does. Only one goroutine at a time may Set.
type Bool struct{ v uint32 }

func (b *Bool) Get() bool { return atomic.LoadUint32(&b.v) != 0 }

func (b *Bool) Set(v bool) {
	n := uint32(0)
	if v {
		n = 1
	}
	if atomic.LoadUint32(&b.v) != n {
		Store32(&b.v, n)
	}
}

// A Uint64 is 0 at first. Set releases; Get acquires. Only one goroutine at a
// time may Set.
type Uint64 struct{ v uint64 }

func (u *Uint64) Get() uint64 { return atomic.LoadUint64(&u.v) }

func (u *Uint64) Set(v uint64) { Store64(&u.v, v) }
