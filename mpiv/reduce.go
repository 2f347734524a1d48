package mpiv

import (
	"context"
	"fmt"
)

// Reduce combines the in of all ranks, element by element, and leaves the
// result in the out of root. len(in) is equal on all ranks and, on root,
// len(out). On the other ranks out is not used. On root in and out may be the
// same slice.
//
// The result has the bits that Allreduce gives, whichever rank is root. The
// algorithms are Allreduce's, without the way back.
func Reduce[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T], root int) error {
	s := c.begin(ctx, opReduce, root)
	return s.done(s.reduce(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces(), root))
}

// Ireduce starts a Reduce.
func Ireduce[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T], root int) Request {
	return c.begin(ctx, opReduce, root).soon(atOnce(c, in) && !op.reduces().calls(), func(s *series) error {
		return s.reduce(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces(), root)
	})
}

func (s *series) reduce(in, out []byte, elem, n, room int, plain bool, r *reduction, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	if err := s.reduces(plain, r); err != nil {
		return err
	}
	if s.c.rank == root {
		if room != n {
			return s.wants("len(out)", room, n)
		}
		if err := s.apart(in, out); err != nil {
			return err
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	if r.own {
		return s.watched(func() error { return s.reduceBytes(in, out, elem, n, r, root) })
	}
	return s.reduceBytes(in, out, elem, n, r, root)
}

// reduceBytes leaves the result in the out of root; that of others is not used.
func (s *series) reduceBytes(in, out []byte, elem, n int, r *reduction, root int) error {
	if s.c.rank != root {
		out = nil
	}
	if s.c.size == 2 && s.small(in) {
		return s.reduceTwo(in, out, r, root)
	}
	f := s.folding(r, elem, n, root)
	switch {
	case s.c.size == 1:
		copy(out, in)
		return nil
	case (s.c.size <= directRanks || s.fewShared()) && len(in) <= reduceLongShared && s.c.box.Engine().Shared():
		return f.reduceToRoot(in, out, root)
	case s.c.size > 2 && s.c.size <= directRanks:
		return f.reduceDirect(in, out)
	case f.out:
		return s.send(in, f.partner)
	case f.long:
		return f.reduceLong(in, out)
	}
	return f.reduceShort(in, out)
}

// reduceTwo: short data of two ranks, which root combines.
func (s *series) reduceTwo(in, out []byte, r *reduction, root int) error {
	peer := 1 - s.c.rank
	if s.c.rank != root {
		return s.send(in, peer)
	}
	return s.combineTwo(in, out, r, func(theirs []byte) error { return s.recv(theirs, peer) })
}

// combineTwo leaves in combined with that of the other of two ranks in out; receive has it in theirs.
func (s *series) combineTwo(in, out []byte, r *reduction, receive func(theirs []byte) error) (err error) {
	theirs := out
	if same(in, out) {
		room := takeScratch(len(in))
		defer room.freeUnless(&err)
		theirs = room.b
	}
	if err := receive(theirs); err != nil {
		return err
	}
	if s.c.rank == 0 {
		r.combine(out, in, theirs)
	} else {
		r.combine(out, theirs, in)
	}
	return nil
}

// calls tells whether r calls a function of the program.
func (r *reduction) calls() bool { return r != nil && r.own }

// reduces is usable for a reduction.
func (s *series) reduces(plain bool, r *reduction) error {
	if err := s.usable(plain); err != nil {
		return err
	}
	switch {
	case r == nil:
		return s.fail(fmt.Errorf("%w: there is none", ErrOp))
	case r.combine == nil:
		return s.fail(fmt.Errorf("%w: %s has no function for this type", ErrOp, r.name))
	}
	return nil
}

// A folding is how a reduction goes about its ranks. A number of them that is a
// power of two is left when some have given their data to a neighbour; the
// groups of 2, 4, 8 … of those that are left are combined with each other, the
// lower one always on the left.
type folding struct {
	s       *series
	r       *reduction
	elem    int
	n       int
	long    bool
	ranks   int  // a power of two: those left
	extra   int  // the others: each of the first 2*extra ranks has a partner
	partner int  // of the calling rank; -1 if it has none
	out     bool // the calling rank gives its data to its partner
	me      int  // number of the calling rank among those left
	root    int  // -1 if there is none
}

// reduceLong is the length in bytes from which on a reduction divides the data
// among the ranks. Two ranks exchange all of more, since that is but one message
// each, and where root can fetch the data of few from their memory it does so up
// to another length.
const (
	reduceLong       = 8 << 10
	reduceLongTwo    = 2 << 20
	reduceLongShared = 256 << 10
)

func (s *series) folding(r *reduction, elem, n, root int) folding {
	f := folding{s: s, r: r, elem: elem, n: n, partner: -1, root: root, ranks: 1}
	for 2*f.ranks <= s.c.size {
		f.ranks *= 2
	}
	f.extra = s.c.size - f.ranks
	f.long = n*elem >= reduceLong && n >= s.c.size
	if rank := s.c.rank; rank < 2*f.extra {
		f.partner = rank ^ 1
		f.me = rank / 2
		f.out = f.rank(f.me) != rank
	} else {
		f.me = rank - f.extra
	}
	return f
}

// rank is the rank in the Comm of the i-th of those left: of two partners the
// even one, but root where it is one of them.
func (f *folding) rank(i int) int {
	switch {
	case i >= f.extra:
		return i + f.extra
	case f.root == 2*i+1:
		return f.root
	}
	return 2 * i
}

// combine leaves acc, which is of the calling rank's group of mask ranks, and
// theirs, of the neighbouring group, combined in dst.
func (f *folding) combine(dst, acc, theirs []byte, mask int) {
	if f.me&mask == 0 {
		f.r.combine(dst, acc, theirs)
	} else {
		f.r.combine(dst, theirs, acc)
	}
}

// roomFor is how many bytes of scratch a reduction of in to out needs.
func (f *folding) roomFor(in, out []byte) int {
	n := len(in)
	if f.partner < 0 && !same(in, out) {
		if f.long {
			return 0 // it goes from in to out, and half of out is free
		}
		if f.ranks == 2 {
			return 0
		}
	}
	return n
}

// fold combines in with that of the partner, if there is one, in out. It
// returns where the result is: in or out.
func (f *folding) fold(in, out, room []byte) ([]byte, error) {
	if f.partner < 0 {
		return in, nil
	}
	into := out
	if same(in, out) {
		into = room
	}
	if err := f.s.recv(into, f.partner); err != nil {
		return nil, err
	}
	if f.s.c.rank < f.partner {
		f.r.combine(out, in, into)
	} else {
		f.r.combine(out, into, in)
	}
	return out, nil
}

// reduceShort goes up a tree in which each group is represented by its lowest
// rank, or by root.
func (f *folding) reduceShort(in, out []byte) (err error) {
	root := f.left(f.root)
	room := takeScratch(2 * len(in))
	defer room.freeUnless(&err)
	spare := room.b[:len(in)]
	if f.me != root {
		out = room.b[len(in):]
	}
	acc, err := f.fold(in, out, spare)
	if err != nil {
		return err
	}
	for mask := 1; mask < f.ranks; mask <<= 1 {
		peer := f.me&^(mask-1) ^ mask // the lowest of the other group
		if peer == root&^(mask-1) {
			return f.s.send(acc, f.rank(root))
		}
		if root&^(2*mask-1) != f.me&^(2*mask-1) && peer < f.me {
			return f.s.send(acc, f.rank(peer))
		}
		into := out
		if same(acc, out) {
			into = spare
		}
		if err := f.s.recv(into, f.rank(peer)); err != nil {
			return err
		}
		f.combine(out, acc, into, mask)
		acc = out
	}
	return nil
}

// left is the number of rank among those left.
func (f *folding) left(rank int) int {
	if rank < 2*f.extra {
		return rank / 2
	}
	return rank - f.extra
}

func (f *folding) reduceLong(in, out []byte) (err error) {
	root := f.left(f.root)
	n := f.roomFor(in, out)
	if f.me != root {
		n += len(in)
	}
	room := takeScratch(n)
	defer room.freeUnless(&err)
	spare := room.b
	if f.me != root {
		out, spare = room.b[:len(in):len(in)], room.b[len(in):]
	}
	acc, err := f.fold(in, out, spare)
	if err != nil {
		return err
	}
	h, err := f.scatter(acc, out, spare)
	if err != nil {
		return err
	}
	for mask := f.ranks >> 1; mask > 0; mask >>= 1 {
		peer := f.rank(f.me ^ mask)
		if f.me&mask != root&mask {
			return f.s.send(h.mine(out), peer)
		}
		if err := f.s.recv(h.other(out), peer); err != nil {
			return err
		}
		h.up()
	}
	return nil
}

// halving is which blocks of the data a rank works on: all at first, half as
// many in each step.
type halving struct {
	l      layout
	level  int
	lo, hi [32]int // of each level
}

// down gives one half of the blocks away.
func (h *halving) down(upper bool) {
	lo, hi := h.lo[h.level], h.hi[h.level]
	h.level++
	h.lo[h.level], h.hi[h.level] = lo, (lo+hi)/2
	if upper {
		h.lo[h.level], h.hi[h.level] = (lo+hi)/2, hi
	}
}

func (h *halving) up() { h.level-- }

// mine is the blocks of b that the rank has.
func (h *halving) mine(b []byte) []byte {
	lo, hi := h.lo[h.level], h.hi[h.level]
	return h.l.span(b, lo, hi-lo)
}

// other is the blocks of b that it last gave away.
func (h *halving) other(b []byte) []byte {
	lo, hi := h.lo[h.level-1], h.hi[h.level-1]
	if mid := (lo + hi) / 2; h.lo[h.level] == lo {
		lo = mid
	} else {
		hi = mid
	}
	return h.l.span(b, lo, hi-lo)
}

// scatter leaves in the out of each rank its blocks of the result: the first
// step exchanges half of the data between neighbours, each further one half as
// much between ranks twice as far apart. Room is needed if acc is out.
func (f *folding) scatter(acc, out, room []byte) (h halving, err error) {
	h.l = evenly(f.elem, f.n, f.ranks)
	h.hi[0] = f.ranks
	for mask := 1; mask < f.ranks; mask <<= 1 {
		h.down(f.me&mask != 0)
		mine := h.mine(out)
		var into []byte
		switch {
		case h.level == 1 && !same(acc, out):
			into = mine
		case h.level == 1:
			into = room[:len(mine)]
		case h.lo[1] == 0:
			into = out[len(out)-len(mine):] // given away in the first step
		default:
			into = out[:len(mine):len(mine)]
		}
		peer := f.rank(f.me ^ mask)
		if err := f.s.sendrecv(h.other(acc), peer, into, peer); err != nil {
			return h, err
		}
		f.combine(mine, h.mine(acc), into, mask)
		acc = out
	}
	return h, nil
}
