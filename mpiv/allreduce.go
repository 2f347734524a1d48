package mpiv

import "context"

// Allreduce combines the in of all ranks, element by element, and leaves the
// same result in the out of each. len(in) = len(out), equal on all ranks. in
// and out may be the same slice.
//
// Elements are combined in rank order, grouped in a way that depends on Size()
// alone, so the bits of the result do not change when ranks move. They are
// those that Reduce gives to any root.
//
// Few ranks exchange messages each with each other. Among more, short data goes
// by recursive doubling, long data by a reduce-scatter and an allgather:
// Rabenseifner, "Optimization of Collective Reduction Operations"
// (ICCS 2004); Thakur, Rabenseifner and Gropp, "Optimization of Collective
// Communication Operations in MPICH" (IJHPCA 2005), the section on reduce and
// allreduce.
func Allreduce[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) error {
	s := c.begin(ctx, opAllreduce, -1)
	return s.done(s.allreduce(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces()))
}

// Iallreduce starts an Allreduce.
func Iallreduce[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) Request {
	return c.begin(ctx, opAllreduce, -1).soon(atOnce(c, in) && !op.reduces().calls(), func(s *series) error {
		return s.allreduce(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces())
	})
}

func (s *series) allreduce(in, out []byte, elem, n, room int, plain bool, r *reduction) error {
	if err := s.reduces(plain, r); err != nil {
		return err
	}
	if room != n {
		return s.wants("len(out)", room, n)
	}
	if err := s.apart(in, out); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	if r.own {
		return s.watched(func() error { return s.allreduceBytes(in, out, elem, n, r) })
	}
	return s.allreduceBytes(in, out, elem, n, r)
}

// halvingLong is from which length on few ranks whose number is a power of two
// halve their data instead: then they need no room beside in and out.
const halvingLong = 512 << 10

func (s *series) allreduceBytes(in, out []byte, elem, n int, r *reduction) error {
	switch {
	case s.c.size == 1:
		copy(out, in)
		return nil
	case s.c.size == 2 && len(in) < reduceLongTwo:
		return s.allreduceTwo(in, out, r)
	case s.central(len(in)), s.fetches(len(in)):
		if err := s.reduceBytes(in, out, elem, n, r, 0); err != nil {
			return err
		}
		return s.bcastDirect(out, 0)
	}
	f := s.folding(r, elem, n, -1)
	if s.few(len(in)) && (len(in) < halvingLong || f.extra > 0) {
		return f.allreduceDirect(in, out)
	}
	if f.out {
		if err := s.send(in, f.partner); err != nil {
			return err
		}
		return s.recv(out, f.partner)
	}
	if f.long {
		if err := f.allreduceLong(in, out); err != nil {
			return err
		}
	} else if err := f.allreduceShort(in, out); err != nil {
		return err
	}
	if f.partner >= 0 {
		return s.send(out, f.partner)
	}
	return nil
}

// allreduceTwo: short data of two ranks, which both combine.
func (s *series) allreduceTwo(in, out []byte, r *reduction) error {
	peer := 1 - s.c.rank
	return s.combineTwo(in, out, r, func(theirs []byte) error { return s.sendrecv(in, peer, theirs, peer) })
}

func (f *folding) allreduceShort(in, out []byte) (err error) {
	room := takeScratch(f.roomFor(in, out))
	defer room.freeUnless(&err)
	acc, err := f.fold(in, out, room.b)
	if err != nil {
		return err
	}
	for mask := 1; mask < f.ranks; mask <<= 1 {
		peer := f.rank(f.me ^ mask)
		into := room.b
		if !same(acc, out) {
			into = out
		}
		if err := f.s.sendrecv(acc, peer, into, peer); err != nil {
			return err
		}
		f.combine(out, acc, into, mask)
		acc = out
	}
	return nil
}

func (f *folding) allreduceLong(in, out []byte) (err error) {
	room := takeScratch(f.roomFor(in, out))
	defer room.freeUnless(&err)
	acc, err := f.fold(in, out, room.b)
	if err != nil {
		return err
	}
	h, err := f.scatter(acc, out, room.b)
	if err != nil {
		return err
	}
	for mask := f.ranks >> 1; mask > 0; mask >>= 1 {
		peer := f.rank(f.me ^ mask)
		if err := f.s.sendrecv(h.mine(out), peer, h.other(out), peer); err != nil {
			return err
		}
		h.up()
	}
	return nil
}
