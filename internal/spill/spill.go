// Package spill is memory that the system may put on disk: for what must be kept and is
// seldom looked at, such as a log that has outgrown the memory meant for it.
package spill

// Slices are of lengths in powers of two, so that what was given back can be taken again.
const (
	smallest = 16 // 64 KiB
	classes  = 32
)
