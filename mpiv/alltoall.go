package mpiv

import (
	"context"
	"fmt"
)

// Alltoall sends part i of in to rank i and receives part i of out from it. The
// parts are of equal length on all ranks: len(in) = len(out), a multiple of
// Size(). in and out may be the same slice.
//
// Short parts among many ranks travel in ⌈log₂ Size()⌉ steps, each with a
// message to one other rank: Bruck et al. (IEEE TPDS 1997). Others are
// exchanged pairwise. Thakur, Rabenseifner and Gropp (2005), the section on
// all-to-all.
func Alltoall[T Elem](ctx context.Context, c *Comm, in, out []T) error {
	s := c.begin(ctx, opAlltoall, -1)
	return s.done(s.alltoall(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T]()))
}

// Ialltoall starts an Alltoall.
func Ialltoall[T Elem](ctx context.Context, c *Comm, in, out []T) Request {
	return c.begin(ctx, opAlltoall, -1).soon(c.atMost(bruckRanks-1) && len(in)*sizeOf[T]() <= eagerLen, func(s *series) error {
		return s.alltoall(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T]())
	})
}

// Alltoallv is Alltoall of parts of different lengths: rank i is sent inCounts[i]
// elements from in[inDispls[i]] on, and sends outCounts[i] elements to
// out[outDispls[i]:]. Displs nil: the parts follow each other. Two ranks must
// agree on each count; where it is zero, no message is sent. in and out must
// not overlap.
func Alltoallv[T Elem](ctx context.Context, c *Comm, in []T, inCounts, inDispls []int, out []T, outCounts, outDispls []int) error {
	s := c.begin(ctx, opAlltoallv, -1)
	return s.done(s.alltoallv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), inCounts, inDispls, outCounts, outDispls))
}

// Ialltoallv starts an Alltoallv.
func Ialltoallv[T Elem](ctx context.Context, c *Comm, in []T, inCounts, inDispls []int, out []T, outCounts, outDispls []int) Request {
	return c.begin(ctx, opAlltoallv, -1).later(func(s *series) error {
		return s.alltoallv(outgoing(c, in), bytesOf(out), sizeOf[T](), len(in), len(out), plain[T](), inCounts, inDispls, outCounts, outDispls)
	})
}

// Up to this length of a part, and from this many ranks on, fewer messages are
// worth that each byte travels log₂(Size())/2 times.
const (
	bruckLen   = 256
	bruckRanks = 8
)

func (s *series) alltoall(in, out []byte, elem, n, room int, plain bool) (err error) {
	if err := s.usable(plain); err != nil {
		return err
	}
	size := s.c.size
	if n != room {
		return s.wants("len(out)", room, n)
	}
	if n%size != 0 {
		return s.fail(fmt.Errorf("%w: len(in) is %d, want a multiple of %d", ErrCount, n, size))
	}
	if err := s.apart(in, out); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	l := equal(elem, n/size, size)
	k := len(in) / size
	if k <= bruckLen && size >= bruckRanks && !s.fewShared() {
		return s.alltoallBruck(in, out, k)
	}
	if same(in, out) {
		room := takeScratch(len(in))
		defer room.freeUnless(&err)
		copy(room.b, in)
		in = room.b
	}
	return s.alltoallPairs(in, out, &l, &l)
}

// apart refuses buffers that overlap and are not the same.
func (s *series) apart(in, out []byte) error {
	if overlap(in, out) && !same(in, out) {
		return s.fail(fmt.Errorf("%w: in and out must be apart, or the same", ErrOverlap))
	}
	return nil
}

// alltoallBruck: the block that is to go d ranks on stands at d. In each step
// those whose distance has the step's bit go that far at once.
func (s *series) alltoallBruck(in, out []byte, k int) (err error) {
	size, rank := s.c.size, s.c.rank
	half := k * ((size + 1) / 2)
	room := takeScratch(len(in) + 2*half)
	defer room.freeUnless(&err)
	b, pack, unpack := room.b[:len(in)], room.b[len(in):len(in)+half], room.b[len(in)+half:]
	n := copy(b, in[rank*k:])
	copy(b[n:], in[:rank*k])
	for d := 1; d < size; d <<= 1 {
		n := 0
		for i := d; i < size; i = (i + 1) | d {
			n += copy(pack[n:], b[i*k:(i+1)*k])
		}
		if err := s.sendrecv(pack[:n], s.at(rank+d), unpack[:n], s.at(rank-d)); err != nil {
			return err
		}
		n = 0
		for i := d; i < size; i = (i + 1) | d {
			n += copy(b[i*k:(i+1)*k], unpack[n:])
		}
	}
	for i := range size {
		from := s.at(rank - i)
		copy(out[from*k:(from+1)*k], b[i*k:])
	}
	return nil
}

// alltoallPairs exchanges the blocks of in for those of out, a few ranks at a
// time.
func (s *series) alltoallPairs(in, out []byte, from, to *layout) error {
	size, rank := s.c.size, s.c.rank
	if size == 1 || from.counts == nil && s.small(from.of(in, 0)) {
		copy(to.of(out, rank), from.of(in, rank))
		return s.exchangeShort(func(i int) []byte { return from.of(in, i) }, func(i int) []byte { return to.of(out, i) })
	}
	const batch = windowLen / 2
	w := window{s: *s}
	for i := 1; i < size; i += batch {
		last := min(i+batch, size)
		for d := i; d < last; d++ {
			if peer := s.at(rank - d); to.sends(peer) {
				w.recv(to.of(out, peer), peer)
			}
		}
		for d := i; d < last; d++ {
			if peer := s.at(rank + d); from.sends(peer) {
				w.send(from.of(in, peer), peer)
			}
		}
		if i == 1 {
			s.copyMeanwhile(to.of(out, rank), from.of(in, rank))
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
	return nil
}

// sends tells whether block i is worth a message.
func (l *layout) sends(i int) bool { return l.counts == nil || l.counts[i] > 0 }

func (s *series) alltoallv(in, out []byte, elem, n, room int, plain bool, inCounts, inDispls, outCounts, outDispls []int) error {
	if err := s.usable(plain); err != nil {
		return err
	}
	from, err := s.arranged("in", elem, inCounts, inDispls, n)
	if err != nil {
		return err
	}
	defer from.free()
	to, err := s.arranged("out", elem, outCounts, outDispls, room)
	if err != nil {
		return err
	}
	defer to.free()
	if rank := s.c.rank; inCounts[rank] != outCounts[rank] {
		return s.wants("the rank's own count of out", outCounts[rank], inCounts[rank])
	}
	if overlap(in, out) {
		return s.fail(fmt.Errorf("%w: in and out must be apart", ErrOverlap))
	}
	if err := s.enter(); err != nil {
		return err
	}
	return s.alltoallPairs(in, out, &from, &to)
}
