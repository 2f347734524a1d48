package mpiv

import "context"

// Scan leaves in the out of each rank the in of the ranks up to and with it,
// combined element by element in rank order. len(in) = len(out), equal on all
// ranks. in and out may be the same slice.
//
// In ⌈log₂ Size()⌉ steps: Hillis and Steele, "Data Parallel Algorithms" (CACM
// 1986).
func Scan[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) error {
	s := c.begin(ctx, opScan, -1)
	return s.done(s.scan(outgoing(c, in), bytesOf(out), len(in), len(out), plain[T](), op.reduces(), false))
}

// Iscan starts a Scan.
func Iscan[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) Request {
	return c.begin(ctx, opScan, -1).later(func(s *series) error {
		return s.scan(outgoing(c, in), bytesOf(out), len(in), len(out), plain[T](), op.reduces(), false)
	})
}

// Exscan is Scan without the rank's own in. The out of rank 0 is left as it is.
func Exscan[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) error {
	s := c.begin(ctx, opExscan, -1)
	return s.done(s.scan(outgoing(c, in), bytesOf(out), len(in), len(out), plain[T](), op.reduces(), true))
}

// Iexscan starts an Exscan.
func Iexscan[T Elem](ctx context.Context, c *Comm, in, out []T, op Op[T]) Request {
	return c.begin(ctx, opExscan, -1).later(func(s *series) error {
		return s.scan(outgoing(c, in), bytesOf(out), len(in), len(out), plain[T](), op.reduces(), true)
	})
}

func (s *series) scan(in, out []byte, n, room int, plain bool, r *reduction, exclusive bool) error {
	if err := s.reduces(plain, r); err != nil {
		return err
	}
	if n != room {
		return s.wants("len(out)", room, n)
	}
	if err := s.apart(in, out); err != nil {
		return err
	}
	if err := s.enter(); err != nil {
		return err
	}
	if r.own {
		return s.watched(func() error { return s.scanBytes(in, out, r, exclusive) })
	}
	return s.scanBytes(in, out, r, exclusive)
}

func (s *series) scanBytes(in, out []byte, r *reduction, exclusive bool) (err error) {
	rooms := takeScratch(2 * len(in))
	defer rooms.freeUnless(&err)
	into, all := rooms.b[:len(in)], rooms.b[len(in):]
	if !exclusive {
		all = out
	}
	if !same(in, all) {
		copy(all, in)
	}
	// all is what the ranks from d-1 before this one up to it have.
	for d := 1; d < s.c.size; d <<= 1 {
		if err := s.shift(all, into, d); err != nil {
			return err
		}
		if d > s.c.rank {
			continue
		}
		if exclusive && d == 1 {
			copy(out, into)
		} else if exclusive {
			r.combine(out, into, out)
		}
		r.combine(all, into, all)
	}
	return nil
}

// shift sends b to the rank d after this one and receives into from that d
// before, where there are such.
func (s *series) shift(b, into []byte, d int) error {
	to, from := s.c.rank+d, s.c.rank-d
	switch {
	case from >= 0 && to < s.c.size:
		return s.sendrecv(b, to, into, from)
	case from >= 0:
		return s.recv(into, from)
	case to < s.c.size:
		return s.send(b, to)
	}
	return nil
}
