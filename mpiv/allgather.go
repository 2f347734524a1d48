package mpiv

import (
	"context"
	"math"
)

// Allgather collects the in of all ranks, which are of equal length, in rank
// order in the out of each: len(out) = Size()*len(in). in may be the rank's own
// part of out.
//
// Few ranks exchange messages each with each other; of more that share the cores
// of one host, one collects for all. Short data of others: in
// ⌈log₂ Size()⌉ steps, by recursive doubling or, where Size() is no power of
// two, after Bruck et al., "Efficient Algorithms for All-to-All Communications
// in Multiport Message-Passing Systems" (IEEE TPDS 1997). Long data: around a
// ring, where only neighbours exchange messages. Thakur, Rabenseifner and Gropp
// (2005), the section on allgather.
func Allgather[T Elem](ctx context.Context, c *Comm, in, out []T) error {
	s := c.begin(ctx, opAllgather, -1)
	return s.done(s.allgather(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T]()))
}

// Iallgather starts an Allgather.
func Iallgather[T Elem](ctx context.Context, c *Comm, in, out []T) Request {
	return c.begin(ctx, opAllgather, -1).soon(atOnce(c, in), func(s *series) error {
		return s.allgather(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T]())
	})
}

// Allgatherv is Allgather of parts of different lengths: that of rank i has
// counts[i] elements, equal on all ranks, and goes to out[displs[i]:]. displs
// nil: the parts follow each other.
func Allgatherv[T Elem](ctx context.Context, c *Comm, in, out []T, counts, displs []int) error {
	s := c.begin(ctx, opAllgatherv, -1)
	return s.done(s.allgatherv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs))
}

// Iallgatherv starts an Allgatherv.
func Iallgatherv[T Elem](ctx context.Context, c *Comm, in, out []T, counts, displs []int) Request {
	return c.begin(ctx, opAllgatherv, -1).later(func(s *series) error {
		return s.allgatherv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs)
	})
}

// Bounds on the bytes gathered by each rank.
const (
	allgatherLong  = 512 << 10 // from here on around a ring
	allgatherShort = 32 << 10  // up to here parts of different lengths are packed
)

func (s *series) allgather(in, out []byte, elem, n, room int, plain bool) error {
	if err := s.usable(plain); err != nil {
		return err
	}
	if room != n*s.c.size {
		return s.wants("len(out)", room, n*s.c.size)
	}
	l := equal(elem, n, s.c.size)
	if err := s.placeable(in, out, &l); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	return s.allgatherBlocks(in, out, &l)
}

func (s *series) allgatherv(in, out []byte, elem, n, room int, plain bool, counts, displs []int) error {
	if err := s.usable(plain); err != nil {
		return err
	}
	l, err := s.arranged("out", elem, counts, displs, room)
	if err != nil {
		return err
	}
	defer l.free()
	if n != counts[s.c.rank] {
		return s.wants("len(in)", n, counts[s.c.rank])
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	total *= elem
	if displs != nil && total <= allgatherShort {
		return s.allgatherPacked(in, out, &l, total)
	}
	if err := s.placeable(in, out, &l); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	if total <= allgatherShort {
		return s.allgatherBlocks(in, out[:total:total], &l) // there may be more of out, and not on all ranks the same
	}
	return s.allgatherRing(in, out, &l, s.c.rank)
}

// allgatherPacked is for short parts that lie apart.
func (s *series) allgatherPacked(in, out []byte, l *layout, total int) (err error) {
	if err := s.place(in, out, l); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	packed, err := s.arranged("out", l.elem, l.counts, nil, math.MaxInt) // that there is room is known
	if err != nil {
		return err
	}
	defer packed.free()
	room := takeScratch(total)
	defer room.freeUnless(&err)
	if err := s.allgatherBlocks(in, room.b, &packed); err != nil {
		return err
	}
	for i := range s.c.size {
		copy(l.of(out, i), packed.of(room.b, i))
	}
	return nil
}

// allgatherBlocks fills b with the blocks of all ranks, which follow each other;
// in is the rank's own. It is sent from where it is, not from b: other cores
// may have it in their caches, and what was just written to b they cannot.
func (s *series) allgatherBlocks(in, b []byte, l *layout) error {
	switch size := s.c.size; {
	case size == 2:
		peer := 1 - s.c.rank
		if err := s.sendrecv(in, peer, l.of(b, peer), peer); err != nil {
			return err
		}
		l.put(b, s.c.rank, in)
		return nil
	case s.central(len(b)), s.centralShared(len(b) / size):
		l.put(b, s.c.rank, in)
		if err := s.reportTo(0, in, func(i int) []byte { return l.of(b, i) }); err != nil {
			return err
		}
		return s.bcastDirect(b, 0)
	case s.few(len(b)), s.fewShared():
		sent, into := repeated(in, size), l.divided(b)
		if err := s.exchange(&sent, &into); err != nil {
			return err
		}
		l.put(b, s.c.rank, in)
		return nil
	case len(b) >= allgatherLong:
		return s.allgatherRing(in, b, l, s.c.rank)
	case size&(size-1) == 0:
		return s.allgatherDoubling(in, b, l)
	}
	l.put(b, s.c.rank, in)
	return s.allgatherBruck(b, l)
}

func (s *series) allgatherDoubling(in, b []byte, l *layout) error {
	for d := 1; d < s.c.size; d <<= 1 {
		partner := s.c.rank ^ d
		mine, theirs := l.span(b, s.c.rank&^(d-1), d), l.span(b, partner&^(d-1), d)
		if d == 1 {
			mine = in
		}
		if err := s.sendrecv(mine, partner, theirs, partner); err != nil {
			return err
		}
		if d == 1 {
			l.put(b, s.c.rank, in)
		}
	}
	if s.c.size == 1 {
		l.put(b, s.c.rank, in)
	}
	return nil
}

// allgatherBruck doubles the blocks that follow the rank's own, counted around,
// in each step. They are received in their places: those that go around the end
// of b in two messages.
func (s *series) allgatherBruck(b []byte, l *layout) error {
	size := s.c.size
	for d := 1; d < size; d <<= 1 {
		n := min(d, size-d)
		to, from := s.at(s.c.rank-d), s.at(s.c.rank+d)
		w := window{s: *s}
		w.recv(l.span(b, from, min(n, size-from)), from)
		if from+n > size {
			w.recv(l.span(b, 0, from+n-size), from)
		}
		w.send(l.span(b, s.c.rank, min(n, size-s.c.rank)), to)
		if s.c.rank+n > size {
			w.send(l.span(b, 0, s.c.rank+n-size), to)
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
	return nil
}

// allgatherRing fills b; the calling rank has block own of it, which is in, the
// rank after it the next.
func (s *series) allgatherRing(in, b []byte, l *layout, own int) error {
	right, left := s.at(s.c.rank+1), s.at(s.c.rank-1)
	mine, at := in, own
	for range s.c.size - 1 {
		at = s.at(at - 1)
		next := l.of(b, at)
		if err := s.sendrecv(mine, right, next, left); err != nil {
			return err
		}
		mine = next
	}
	l.put(b, own, in)
	return nil
}
