//go:build !race

package lock

import (
	"unsafe"

	"github.com/mpiv/mpiv/internal/barrier"
)

// enter knows the offsets of bias and busy.
const (
	_ = -(unsafe.Offsetof(Mutex{}.bias) ^ 0)
	_ = -(unsafe.Offsetof(Mutex{}.busy) ^ 8)
)

// enter takes m if it is biased to the calling goroutine. It stores busy and
// then looks at bias again, with no fence between: who ends the bias has one put
// there.
//
//go:noescape
func enter(m *Mutex) bool

// goroutine is a number that no other living goroutine has.
func goroutine() uintptr

// self is the calling goroutine's number; 0 where there is no bias.
func self() uintptr {
	if !barrier.Free() {
		return 0
	}
	return goroutine()
}
