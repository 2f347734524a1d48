package mpiv

import "github.com/mpiv/mpiv/internal/engine"

// Few ranks exchange messages each with each other at once: one round takes
// less time than ⌈log₂ Size()⌉ rounds that depend on each other, most of all
// where ranks share a core and must get their turn in each round.

// directRanks is up to how many ranks are few.
const directRanks = 8

// few tells whether the Comm has more than two ranks, but few.
func (s *series) few() bool { return s.c.size > 2 && s.c.size <= directRanks }

// parts is a piece of memory for each of few ranks.
type parts [directRanks][]byte

// divided is b in parts for the ranks, as l says.
func (l *layout) divided(b []byte) (p parts) {
	for i := range l.parts {
		p[i] = l.of(b, i)
	}
	return p
}

// repeated is b for each of size ranks.
func repeated(b []byte, size int) (p parts) {
	for i := range size {
		p[i] = b
	}
	return p
}

// exchange sends out[i] to each other rank i and receives in[i] from it.
func (s *series) exchange(out, in *parts) error {
	var recvs, sends [directRanks]engine.Request
	size, rank := s.c.size, s.c.rank
	for d := 1; d < size; d++ {
		from := s.at(rank - d)
		recvs[from] = s.irecv(in[from], from)
	}
	var err error
	for d := 1; d < size && err == nil; d++ {
		to := s.at(rank + d)
		if s.small(out[to]) {
			err = s.send(out[to], to)
		} else {
			sends[to] = s.isend(out[to], to)
		}
	}
	for d := 1; d < size; d++ {
		if from := s.at(rank - d); err == nil {
			err = s.wait(recvs[from], in[from], from)
		} else {
			s.drop(recvs[from])
		}
	}
	for d := 1; d < size; d++ {
		to := s.at(rank + d)
		switch {
		case sends[to].Null():
		case err == nil:
			err = s.sent(sends[to], to)
		default:
			s.drop(sends[to])
		}
	}
	return err
}

// combineAll leaves the parts of all ranks combined in dst, grouped as the
// algorithms for many ranks do. It overwrites all of them but the rank's own.
func (f *folding) combineAll(dst []byte, p *parts) {
	rank, own := f.s.c.rank, -1
	for i := range f.ranks {
		if i >= f.extra {
			if p[i] = p[i+f.extra]; rank == i+f.extra {
				own = i
			}
			continue
		}
		a, b := p[2*i], p[2*i+1]
		into := b
		if rank == 2*i+1 {
			into = a
		}
		f.r.combine(into, a, b)
		p[i] = into
	}
	for mask := 1; mask < f.ranks; mask <<= 1 {
		for i := 0; i < f.ranks; i += 2 * mask {
			a, b := p[i], p[i+mask]
			into := b
			switch {
			case 2*mask == f.ranks:
				into = dst
			case i+mask == own:
				into = a
			}
			f.r.combine(into, a, b)
			p[i] = into
		}
	}
}

// received is room for the parts of the other ranks; own is the rank's own.
func (s *series) received(room *scratch, own []byte) (p parts) {
	n, at := len(own), 0
	for i := range s.c.size {
		if i == s.c.rank {
			p[i] = own
			continue
		}
		p[i] = room.b[at : at+n : at+n]
		at += n
	}
	return p
}

// reduceParts leaves the rank's own part of in, as l divides it, combined with
// those of the others in dst.
func (f *folding) reduceParts(in, dst []byte, l *layout) error {
	room := takeScratch(len(dst) * (f.s.c.size - 1))
	defer room.free()
	out, p := l.divided(in), f.s.received(room, l.of(in, f.s.c.rank))
	if err := f.s.exchange(&out, &p); err != nil {
		return err
	}
	f.combineAll(dst, &p)
	return nil
}

// allreduceDirect exchanges all of short data, or parts of long data to be
// combined and then their results.
func (f *folding) allreduceDirect(in, out []byte) error {
	if !f.long {
		room := takeScratch(len(in) * (f.s.c.size - 1))
		defer room.free()
		sent, p := repeated(in, f.s.c.size), f.s.received(room, in)
		if err := f.s.exchange(&sent, &p); err != nil {
			return err
		}
		f.combineAll(out, &p)
		return nil
	}
	l := evenly(f.elem, f.n, f.s.c.size)
	own := l.of(out, f.s.c.rank)
	if err := f.reduceParts(in, own, &l); err != nil {
		return err
	}
	sent, p := repeated(own, f.s.c.size), l.divided(out)
	return f.s.exchange(&sent, &p)
}

// reduceDirect sends all of short data to root, or the results of parts of long
// data.
func (f *folding) reduceDirect(in, out []byte) error {
	rank, size := f.s.c.rank, f.s.c.size
	if !f.long {
		if rank != f.root {
			return f.s.send(in, f.root)
		}
		room := takeScratch(len(in) * (size - 1))
		defer room.free()
		p := f.s.received(room, in)
		w := window{s: *f.s}
		for d := 1; d < size; d++ {
			from := f.s.at(rank - d)
			w.recv(p[from], from)
		}
		if err := w.wait(); err != nil {
			return err
		}
		f.combineAll(out, &p)
		return nil
	}
	l := evenly(f.elem, f.n, size)
	if rank == f.root {
		if err := f.reduceParts(in, l.of(out, rank), &l); err != nil {
			return err
		}
		return f.s.gatherFrom(out, &l)
	}
	lo, hi := l.at(rank)
	room := takeScratch(hi - lo)
	defer room.free()
	if err := f.reduceParts(in, room.b, &l); err != nil {
		return err
	}
	return f.s.send(room.b, f.root)
}
