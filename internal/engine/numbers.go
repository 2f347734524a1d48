package engine

import "slices"

// numbers are those of messages, which are taken out about in the order in which they came: the first
// in a time that does not grow with how many there are.
type numbers struct {
	list  []uint64
	taken int // of its beginning
}

func (n *numbers) all() []uint64       { return n.list[n.taken:] }
func (n *numbers) has(seq uint64) bool { return slices.Contains(n.all(), seq) }
func (n *numbers) add(seq uint64)      { n.list = append(n.list, seq) }

// remove takes seq out, if it is there.
func (n *numbers) remove(seq uint64) {
	switch i := slices.Index(n.all(), seq); {
	case i < 0:
		return
	case i > 0:
		n.list = slices.Delete(n.list, n.taken+i, n.taken+i+1)
	default:
		n.taken++
	}
	if 2*n.taken >= len(n.list) {
		n.list, n.taken = slices.Delete(n.list, 0, n.taken), 0
	}
}
