package mpiv

import "context"

// ReduceScatter combines the in of all ranks, element by element, and leaves
// the first counts[0] elements of the result in the out of rank 0, the next
// counts[1] in that of rank 1, and so on: len(out) = counts[Rank()], and len(in)
// is the sum of counts, which are equal on all ranks. out may be a part of in.
//
// Elements are combined in an order that depends on Size(), counts and the rank
// that gets them. Short data, and data of an op that does not commute, by an
// Allreduce; other data pairwise: Thakur, Rabenseifner and Gropp (2005), the
// section on reduce-scatter.
func ReduceScatter[T Elem](ctx context.Context, c *Comm, in, out []T, counts []int, op Op[T]) error {
	s := c.begin(ctx, opReduceScatter, -1)
	return s.done(s.reduceScatter(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, op.reduces()))
}

// IreduceScatter starts a ReduceScatter.
func IreduceScatter[T Elem](ctx context.Context, c *Comm, in, out []T, counts []int, op Op[T]) Request {
	return c.begin(ctx, opReduceScatter, -1).later(func(s *series) error {
		return s.reduceScatter(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, op.reduces())
	})
}

// ReduceScatterBlock is ReduceScatter with parts of equal length:
// len(in) = Size()*len(out).
func ReduceScatterBlock[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) error {
	s := c.begin(ctx, opReduceScatterBlock, -1)
	return s.done(s.reduceScatterBlock(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces()))
}

// IreduceScatterBlock starts a ReduceScatterBlock.
func IreduceScatterBlock[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) Request {
	return c.begin(ctx, opReduceScatterBlock, -1).later(func(s *series) error {
		return s.reduceScatterBlock(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), op.reduces())
	})
}

// reduceScatterLong is from how many bytes for each rank, on average, on the
// parts are exchanged pairwise.
const reduceScatterLong = 1 << 10

func (s *series) reduceScatter(in, out []byte, elem, n, room int, plain bool, counts []int, r *reduction) error {
	if err := s.reduces(plain, r); err != nil {
		return err
	}
	l, err := s.arranged("in", elem, counts, nil, n)
	if err != nil {
		return err
	}
	defer l.free()
	sum := 0
	for _, k := range counts {
		sum += k
	}
	if n != sum {
		return s.wants("len(in)", n, sum)
	}
	if room != counts[s.c.rank] {
		return s.wants("len(out)", room, counts[s.c.rank])
	}
	return s.reduceScatterBytes(in, out, &l, n, r)
}

func (s *series) reduceScatterBlock(in, out []byte, elem, n, room int, plain bool, r *reduction) error {
	if err := s.reduces(plain, r); err != nil {
		return err
	}
	if n != room*s.c.size {
		return s.wants("len(in)", n, room*s.c.size)
	}
	l := equal(elem, room, s.c.size)
	return s.reduceScatterBytes(in, out, &l, n, r)
}

func (s *series) reduceScatterBytes(in, out []byte, l *layout, n int, r *reduction) error {
	if err := s.enter(); err != nil {
		return err
	}
	if r.own {
		return s.watched(func() error { return s.reduceScatterParts(in, out, l, n, r) })
	}
	return s.reduceScatterParts(in, out, l, n, r)
}

func (s *series) reduceScatterParts(in, out []byte, l *layout, n int, r *reduction) (err error) {
	if s.c.size == 1 {
		copy(out, in)
		return nil
	}
	if len(in) < reduceScatterLong*s.c.size || !r.commutative && !s.few(len(in)) {
		room := takeScratch(len(in))
		defer room.freeUnless(&err)
		if err := s.allreduceBytes(in, room.b, l.elem, n, r); err != nil {
			return err
		}
		copy(out, l.of(room.b, s.c.rank))
		return nil
	}
	if s.few(len(in)) {
		return s.reduceScatterDirect(in, out, l, n, r)
	}
	acc, need := out, len(out)
	if overlap(in, out) {
		need *= 2
	}
	room := takeScratch(need)
	defer room.freeUnless(&err)
	into := room.b[:len(out)]
	if overlap(in, out) {
		acc = room.b[len(out):]
	}
	if err := s.reducePairs(in, acc, into, l, r); err != nil {
		return err
	}
	copy(out, acc)
	return nil
}

// reducePairs combines, in acc, the rank's own block with those of the ranks
// before it, the nearest first.
func (s *series) reducePairs(in, acc, into []byte, l *layout, r *reduction) error {
	first := true
	for d := 1; d < s.c.size; d++ {
		to, from := s.at(s.c.rank+d), s.at(s.c.rank-d)
		if first {
			if err := s.sendrecv(l.of(in, to), to, acc, from); err != nil {
				return err
			}
			r.combine(acc, l.of(in, s.c.rank), acc)
			first = false
			continue
		}
		if err := s.sendrecv(l.of(in, to), to, into, from); err != nil {
			return err
		}
		r.combine(acc, acc, into)
	}
	return nil
}

// reduceScatterDirect combines elements as Allreduce does.
func (s *series) reduceScatterDirect(in, out []byte, l *layout, n int, r *reduction) (err error) {
	f := s.folding(r, l.elem, n, -1)
	if !overlap(in, out) {
		return f.reduceParts(in, out, l)
	}
	room := takeScratch(len(out))
	defer room.freeUnless(&err)
	if err := f.reduceParts(in, room.b, l); err != nil {
		return err
	}
	copy(out, room.b)
	return nil
}
