package mpiv

import (
	"context"
	"fmt"
)

// Scatter gives each rank its part of the in of root, in rank order, in out:
// len(in) = Size()*len(out). On the other ranks in is not used. On root out may
// be the rank's own part of in.
//
// Short data of many ranks goes down a binomial tree, other data from root
// directly.
func Scatter[T Elem](ctx context.Context, c *Comm, in, out []T, root int) error {
	s := c.begin(ctx, opScatter, root)
	return s.done(s.scatter(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), root))
}

// Iscatter starts a Scatter.
func Iscatter[T Elem](ctx context.Context, c *Comm, in, out []T, root int) Request {
	return c.begin(ctx, opScatter, root).soon(atOnce(c, out), func(s *series) error {
		return s.scatter(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), root)
	})
}

// Scatterv is Scatter of parts of different lengths: that of rank i is
// counts[i] elements from in[displs[i]] on. displs nil: the parts follow each
// other. in, counts and displs are used on root only.
func Scatterv[T Elem](ctx context.Context, c *Comm, in []T, counts, displs []int, out []T, root int) error {
	s := c.begin(ctx, opScatterv, root)
	return s.done(s.scatterv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs, root))
}

// Iscatterv starts a Scatterv.
func Iscatterv[T Elem](ctx context.Context, c *Comm, in []T, counts, displs []int, out []T, root int) Request {
	return c.begin(ctx, opScatterv, root).later(func(s *series) error {
		return s.scatterv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), counts, displs, root)
	})
}

func (s *series) scatter(in, out []byte, elem, room, n int, plain bool, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	l := equal(elem, n, s.c.size)
	if s.c.rank == root {
		if room != n*s.c.size {
			return s.wants("len(in)", room, n*s.c.size)
		}
		if err := s.pickable(in, out, &l); err != nil {
			return err
		}
	}
	if err := s.enter(); err != nil {
		return err
	}
	switch {
	case len(out) < treeLong && s.c.size > directRanks && !s.central(len(out)):
		return s.scatterTree(in, out, &l, root)
	case s.c.rank == root:
		return s.scatterTo(in, out, &l)
	}
	return s.recv(out, root)
}

// pickable tells that out is the rank's own block of in, or apart from it.
func (s *series) pickable(in, out []byte, l *layout) error {
	if overlap(in, out) && !same(out, l.of(in, s.c.rank)) {
		return s.fail(fmt.Errorf("%w: out must be apart from in, or the rank's own part of it", ErrOverlap))
	}
	return nil
}

// scatterTo sends the blocks of in to the other ranks, and copies the rank's own to out.
func (s *series) scatterTo(in, out []byte, l *layout) error {
	own := l.of(in, s.c.rank)
	if l.counts == nil && s.small(l.of(in, 0)) {
		copy(out, own) // behind the messages it would wait until they have left the core
		for i := 1; i < s.c.size; i++ {
			to := s.at(s.c.rank + i)
			if err := s.send(l.of(in, to), to); err != nil {
				return err
			}
		}
		return nil
	}
	w := window{s: *s}
	for i := 1; i < s.c.size; i++ {
		to := s.at(s.c.rank + i)
		w.send(l.of(in, to), to)
	}
	s.copyMeanwhile(out, own)
	return w.wait()
}

// scatterTree is gatherTree the other way around.
func (s *series) scatterTree(in, out []byte, l *layout, root int) (err error) {
	rel, size, n := s.distance(root), s.c.size, len(out)
	if rel&1 != 0 {
		return s.recv(out, s.at(s.c.rank-1))
	}
	top := 1
	for top < size {
		top <<= 1
	}
	if rel == 0 {
		for mask := top >> 1; mask > 0; mask >>= 1 {
			to, k := s.at(root+mask), min(mask, size-mask)
			if err := s.send(l.span(in, to, min(k, size-to)), to); err != nil {
				return err
			}
			if to+k > size {
				if err := s.send(l.span(in, 0, to+k-size), to); err != nil {
					return err
				}
			}
		}
		copy(out, l.of(in, root))
		return nil
	}
	mask := rel & -rel
	room := takeScratch(n * min(mask, size-rel))
	defer room.freeUnless(&err)
	if err := s.recvRound(room.b, n, min(mask, size-rel), s.at(s.c.rank-mask), rel == mask); err != nil {
		return err
	}
	copy(out, room.b[:n])
	for mask >>= 1; mask > 0; mask >>= 1 {
		if child := rel + mask; child < size {
			b := room.b[n*mask : n*(mask+min(mask, size-child))]
			if err := s.send(b, s.at(s.c.rank+mask)); err != nil {
				return err
			}
		}
	}
	return nil
}

// recvRound receives k blocks of n bytes as sendRound sends them.
func (s *series) recvRound(b []byte, n, k, from int, fromRoot bool) error {
	if k0 := s.c.size - s.c.rank; fromRoot && k0 < k {
		if err := s.recv(b[:n*k0], from); err != nil {
			return err
		}
		b = b[n*k0:]
	}
	return s.recv(b, from)
}

func (s *series) scatterv(in, out []byte, elem, room, n int, plain bool, counts, displs []int, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	if s.c.rank != root {
		if err := s.enter(); err != nil {
			return err
		}
		return s.recv(out, root)
	}
	l, err := s.arranged("in", elem, counts, displs, room)
	if err != nil {
		return err
	}
	defer l.free()
	if n != counts[root] {
		return s.wants("len(out)", n, counts[root])
	}
	if err := s.pickable(in, out, &l); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	return s.scatterTo(in, out, &l)
}
