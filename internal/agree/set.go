package agree

import "math/bits"

// A Set is some of the members 0 … n-1. Those of one agreement are of the same
// length, which NewSet gives.
type Set []uint64

// NewSet is the empty set of so many members.
func NewSet(size int) Set { return make(Set, (size+63)/64) }

// Has tells whether r is in s.
func (s Set) Has(r int) bool { return s[r/64]>>(r%64)&1 != 0 }

// Add puts r into s.
func (s Set) Add(r int) { s[r/64] |= 1 << (r % 64) }

// Len is how many members are in s.
func (s Set) Len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// First is the lowest member in s; -1 if there is none.
func (s Set) First() int {
	for i, w := range s {
		if w != 0 {
			return 64*i + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// Clone is a copy of s.
func (s Set) Clone() Set { return append(Set(nil), s...) }

func (s Set) union(t Set) {
	for i := range s {
		s[i] |= t[i]
	}
}

func (s Set) intersect(t Set) {
	for i := range s {
		s[i] &= t[i]
	}
}
