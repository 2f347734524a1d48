//go:build !linux

package pages

import "sync"

// Aside is memory of n bytes for what comes before the program has any for it. It is given
// back by GiveBack or MoveInto.
func Aside(n int) ([]byte, error) { return make([]byte, n), nil }

// GiveBack ends the use of memory of Aside.
func GiveBack([]byte) {}

// MoveInto has into, which is as long, hold what b does, and gives b back.
func MoveInto(into, b []byte) { copy(into, b) }

// Ready would have the system find memory in few steps.
func Ready([]byte, *sync.WaitGroup) {}

// A Reserve is always empty: what this system does with memory that is not used is not known.
type Reserve struct{}

// Fill does nothing.
func (*Reserve) Fill(int, <-chan struct{}) (short bool) { return false }

// Empty does nothing.
func (*Reserve) Empty() {}

// Aside has none.
func (*Reserve) Aside(int) ([]byte, bool) { return nil, false }

// Under has none.
func (*Reserve) Under([]byte) bool { return false }
