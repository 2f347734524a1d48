package mpiv

import "context"

// Bcast copies the data of rank root to that of all others. The length must be
// the same on all ranks.
//
// Short data goes down a binomial tree, or to few ranks directly; ranks of one host
// fetch it from the memory of root. Long data on
// many ranks of several is scattered and gathered by all: van de Geijn, in Barnett et al.,
// "Interprocessor Collective Communication Library" (SHPCC 1994); Thakur,
// Rabenseifner and Gropp (2005), the section on broadcast.
func Bcast[T Elem](ctx context.Context, c *Comm, data []T, root int) error {
	s := c.begin(ctx, opBcast, root)
	return s.done(s.bcast(broadcast(c, data, root), plain[T](), root))
}

// Ibcast starts a Bcast.
func Ibcast[T Elem](ctx context.Context, c *Comm, data []T, root int) Request {
	b, ok := broadcast(c, data, root), plain[T]()
	return c.begin(ctx, opBcast, root).soon(atOnce(c, data), func(s *series) error { return s.bcast(b, ok, root) })
}

// broadcast is the memory of data, which goes to all or comes from root.
func broadcast[T Elem](c *Comm, data []T, root int) []byte {
	if c != nil && c.rank == root {
		return outgoing(c, data)
	}
	return bytesOf(data)
}

// From this length and number of ranks on, a broadcast is a scatter and an
// allgather: then twice the bytes cost less than the depth of a tree.
const (
	bcastLong  = 64 << 10
	bcastRanks = 8
)

func (s *series) bcast(data []byte, plain bool, root int) error {
	if err := s.rooted(plain, root); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	switch {
	case s.few(0) && s.small(data), s.central(len(data)), s.fetched(len(data)):
		return s.bcastDirect(data, root)
	case len(data) < bcastLong || s.c.size < bcastRanks:
		return s.bcastTree(data, root)
	}
	l := evenly(1, len(data), s.c.size)
	if err := s.scatterEven(data, &l, root); err != nil {
		return err
	}
	own := s.distance(root)
	return s.allgatherRing(l.of(data, own), data, &l, own)
}

// fetched tells whether all fetch the data from the memory of root, at once: few ranks any, many
// what is long.
func (s *series) fetched(n int) bool {
	return (s.c.size <= centralRanks || n >= bcastLong) && s.c.box.Engine().Shared()
}

// distance is how far the calling rank comes after root.
func (s *series) distance(root int) int { return s.at(s.c.rank - root) }

// at is rank r of the Comm, counted around.
func (s *series) at(r int) int {
	size := s.c.size
	if r < 0 {
		return r + size
	}
	if r >= size {
		return r - size
	}
	return r
}

// bcastDirect is for short data, and few ranks.
func (s *series) bcastDirect(data []byte, root int) error {
	if s.c.rank != root {
		return s.recv(data, root)
	}
	if s.small(data) {
		for d := 1; d < s.c.size; d++ {
			if err := s.send(data, s.at(root+d)); err != nil {
				return err
			}
		}
		return nil
	}
	w := window{s: *s}
	for d := 1; d < s.c.size; d++ {
		w.send(data, s.at(root+d))
	}
	return w.wait()
}

func (s *series) bcastTree(data []byte, root int) error {
	rel, mask := s.distance(root), 1
	for ; mask < s.c.size; mask <<= 1 {
		if rel&mask != 0 {
			if err := s.recv(data, s.at(s.c.rank-mask)); err != nil {
				return err
			}
			break
		}
	}
	if s.small(data) {
		for mask >>= 1; mask > 0; mask >>= 1 {
			if rel+mask < s.c.size {
				if err := s.send(data, s.at(s.c.rank+mask)); err != nil {
					return err
				}
			}
		}
		return nil
	}
	w := window{s: *s}
	for mask >>= 1; mask > 0; mask >>= 1 {
		if rel+mask < s.c.size {
			w.send(data, s.at(s.c.rank+mask))
		}
	}
	return w.wait()
}

// scatterEven leaves block i of root's data on the rank that comes i after it,
// in its place; other blocks may come with it. Down a binomial tree.
func (s *series) scatterEven(data []byte, l *layout, root int) error {
	rel, mask := s.distance(root), 1
	for ; mask < s.c.size; mask <<= 1 {
		if rel&mask != 0 {
			n := min(mask, s.c.size-rel)
			if err := s.recv(l.span(data, rel, n), s.at(s.c.rank-mask)); err != nil {
				return err
			}
			break
		}
	}
	w := window{s: *s}
	for mask >>= 1; mask > 0; mask >>= 1 {
		if child := rel + mask; child < s.c.size {
			w.send(l.span(data, child, min(mask, s.c.size-child)), s.at(s.c.rank+mask))
		}
	}
	return w.wait()
}
