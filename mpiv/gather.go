package mpiv

import (
	"context"
	"fmt"
)

// Gather collects the in of all ranks, which are of equal length, in rank order
// in the out of root: len(out) = Size()*len(in). On the other ranks out is not
// used. On root in may be the rank's own part of out.
//
// Short data of many ranks goes up a binomial tree, other data to root directly.
func Gather[T Elem](ctx context.Context, c *Comm, in, out []T, root int) error {
	s := c.begin(ctx, opGather, root)
	return s.done(s.gather(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), root))
}

// Igather starts a Gather.
func Igather[T Elem](ctx context.Context, c *Comm, in, out []T, root int) Request {
	return c.begin(ctx, opGather, root).soon(atOnce(c, in), func(s *series) error {
		return s.gather(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), root)
	})
}

// Gatherv is Gather of parts of different lengths: that of rank i has counts[i]
// elements and goes to out[displs[i]:]. displs nil: the parts follow each
// other. out, counts and displs are used on root only.
func Gatherv[T Elem](ctx context.Context, c *Comm, in, out []T, counts, displs []int, root int) error {
	s := c.begin(ctx, opGatherv, root)
	return s.done(s.gatherv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs, root))
}

// Igatherv starts a Gatherv.
func Igatherv[T Elem](ctx context.Context, c *Comm, in, out []T, counts, displs []int, root int) Request {
	return c.begin(ctx, opGatherv, root).later(func(s *series) error {
		return s.gatherv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs, root)
	})
}

// treeLong is from how many bytes of each rank on a gather or scatter is
// between root and each rank, as it is among few ranks: passing them on would
// cost more than it saves.
const treeLong = 2 << 10

func (s *series) gather(in, out []byte, elem, n, room int, plain bool, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	l := equal(elem, n, s.c.size)
	if s.c.rank == root {
		if room != n*s.c.size {
			return s.wants("len(out)", room, n*s.c.size)
		}
		if err := s.placeable(in, out, &l); err != nil {
			return err
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	switch {
	case len(in) < treeLong && s.c.size > directRanks && !s.central(len(in)):
		return s.gatherTree(in, out, &l, root)
	case s.c.rank == root:
		return s.gatherFrom(in, out, &l)
	}
	return s.send(in, root)
}

// gatherFrom receives the blocks of out from the other ranks; in is the rank's own.
func (s *series) gatherFrom(in, out []byte, l *layout) error {
	own := l.of(out, s.c.rank)
	if l.counts == nil && s.small(own) {
		copy(own, in)
		return s.collect(func(i int) []byte { return l.of(out, i) })
	}
	w := window{s: *s}
	for i := 1; i < s.c.size; i++ {
		from := s.at(s.c.rank + i)
		w.recv(l.of(out, from), from)
	}
	s.copyMeanwhile(own, in)
	return w.wait()
}

// gatherTree: a rank that comes rel after root collects the blocks of the
// ranks after it, up to the next that is its equal in the tree.
func (s *series) gatherTree(in, out []byte, l *layout, root int) (err error) {
	rel, size, n := s.distance(root), s.c.size, len(in)
	if rel&1 != 0 {
		return s.send(in, s.at(s.c.rank-1))
	}
	mask := 1
	if rel != 0 {
		room := takeScratch(n * min(rel&-rel, size-rel))
		defer room.freeUnless(&err)
		copy(room.b, in)
		for ; rel&mask == 0; mask <<= 1 {
			if child := rel + mask; child < size {
				b := room.b[n*mask : n*(mask+min(mask, size-child))]
				if err := s.recv(b, s.at(s.c.rank+mask)); err != nil {
					return err
				}
			}
		}
		return s.sendRound(room.b, n, min(mask, size-rel), s.at(s.c.rank-mask), rel == mask)
	}
	l.put(out, root, in)
	for ; mask < size; mask <<= 1 {
		from, k := s.at(root+mask), min(mask, size-mask)
		if err := s.recv(l.span(out, from, min(k, size-from)), from); err != nil {
			return err
		}
		if from+k > size {
			if err := s.recv(l.span(out, 0, from+k-size), from); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendRound sends k blocks of n bytes, the first of them the rank's own. To
// root they go in two messages where the ranks go around, so that it receives
// them in their places.
func (s *series) sendRound(b []byte, n, k, to int, toRoot bool) error {
	if k0 := s.c.size - s.c.rank; toRoot && k0 < k {
		if err := s.send(b[:n*k0], to); err != nil {
			return err
		}
		b = b[n*k0:]
	}
	return s.send(b, to)
}

func (s *series) gatherv(in, out []byte, elem, n, room int, plain bool, counts, displs []int, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	if s.c.rank != root {
		if err := s.enter(); err != nil {
			return err
		}
		return s.send(in, root)
	}
	l, err := s.arranged("out", elem, counts, displs, room)
	if err != nil {
		return err
	}
	defer l.free()
	if n != counts[root] {
		return s.wants("len(in)", n, counts[root])
	}
	if err := s.placeable(in, out, &l); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	return s.gatherFrom(in, out, &l)
}

// place copies in to the rank's own block of out, unless it is that.
func (s *series) place(in, out []byte, l *layout) error {
	if err := s.placeable(in, out, l); err != nil {
		return err
	}
	l.put(out, s.c.rank, in)
	return nil
}

// placeable tells that in is the rank's own block of out, or apart from it.
func (s *series) placeable(in, out []byte, l *layout) error {
	if overlap(in, out) && !same(in, l.of(out, s.c.rank)) {
		return s.fail(fmt.Errorf("%w: in must be apart from out, or the rank's own part of it", ErrOverlap))
	}
	return nil
}
