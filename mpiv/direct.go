package mpiv

import "github.com/mpiv/mpiv/internal/engine"

// Few ranks exchange messages each with each other at once: one round of
// messages takes less time than ⌈log₂ Size()⌉ that depend on each other, most of
// all where ranks share a core and must get their turn in each round. Of short
// messages it is their number that costs, so there fewer ranks are few. Where a
// rank fetches data from the others' memory a message costs little, so more are.
const (
	directRanks      = 8
	directRanksShort = 4
	sharedRanks      = 16
)

// few tells whether there are more than two ranks, but few for n bytes.
func (s *series) few(n int) bool {
	size := s.c.size
	return size > 2 && (size <= directRanksShort || size <= directRanks && n >= pieceLen)
}

// fewShared tells whether ranks that share cores, and fetch their data from each other's
// memory, are few.
func (s *series) fewShared() bool {
	e := s.c.box.Engine()
	return s.c.size > 2 && s.c.size <= sharedRanks && e.Crowded() && e.Shared()
}

// Ranks that share cores must get their turn before they can answer, so what
// costs is how often a rank has to wait, and after that the number of messages.
// Short data of more than a few then goes to one rank, which sends the result to all: each waits
// once, and for the fewest messages that there can be. A few that send it each to
// each other need no more turns than one each.
const (
	centralRanks = 32
	centralLong  = 4 << 20 // of all blocks together
)

// central tells whether to do so where a message has up to n bytes.
func (s *series) central(n int) bool {
	return n <= eagerLen && s.c.size > directRanksShort && s.c.size <= centralRanks && s.c.box.Engine().Crowded()
}

// centralShared tells whether to do so with blocks of n bytes that ranks fetch from each other's memory.
// A rank that fetches all blocks from one other makes one call for them instead of one for each, and they
// have been copied once more. Few ranks gain where blocks would go in pieces: eight that share two
// cores (EPYC, mpivbench) take 83 µs instead of 174 for an Allgather of 16 KiB; sixteen, 264 instead of 1076.
func (s *series) centralShared(n int) bool {
	e, size := s.c.box.Engine(), s.c.size
	switch {
	case size <= directRanksShort || size > centralRanks || !e.Crowded() || !e.Shared():
		return false
	case size <= directRanks:
		return n >= pieceLen && n <= maxPieces*pieceLen
	}
	return n*size <= centralLong
}

// fetches tells whether one rank does the work for all also with longer data:
// where some ranks share cores and it fetches their data from their memory, to
// divide the work would only add messages.
func (s *series) fetches(n int) bool {
	return n <= reduceLongShared && s.c.size > directRanksShort && s.fewShared()
}

// reportTo sends part to root, which receives the part of rank i in into(i).
func (s *series) reportTo(root int, part []byte, into func(i int) []byte) error {
	if s.c.rank != root {
		return s.send(part, root)
	}
	return s.collect(into)
}

// collect receives into(i) from each other rank i, one after the other.
func (s *series) collect(into func(i int) []byte) error {
	for d := 1; d < s.c.size; d++ {
		from := s.at(s.c.rank + d)
		if err := s.recv(into(from), from); err != nil {
			return err
		}
	}
	return nil
}

// parts is a piece of memory for each of few ranks.
type parts [sharedRanks][]byte

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

// Parts that are somewhat too long to go at once are sent in pieces that mostly do: then
// no rank waits until another has its turn and takes them. It is shared memory that needs
// it: there 4 KiB always go at once, and up to 16 KiB where the ring is found to be
// faster than a read by the receiver, as it is between cores with a common cache. Four
// ranks on two such cores (EPYC, mpivbench) take 42 µs instead of 56 for an Allreduce of 64 KiB, and
// 23 instead of 36 for an Allgather of 32 KiB. Where all pieces are read they cost, 146 µs
// instead of 92 for an Allreduce of 128 KiB; but each end measures its ring by itself, and
// both have to be of one mind on the pieces. Pieces of 4 KiB gained nothing.
const (
	pieceLen  = 8 << 10
	maxPieces = 4
)

// pieces is in how many messages b goes.
func pieces(b []byte) int {
	if len(b) <= pieceLen || len(b) > maxPieces*pieceLen {
		return 1
	}
	return (len(b) + pieceLen - 1) / pieceLen
}

// piece is message i of b.
func piece(b []byte, i int) []byte {
	if pieces(b) == 1 {
		return b
	}
	end := min((i+1)*pieceLen, len(b))
	return b[i*pieceLen : end : end]
}

// exchange sends out[i] to each other rank i and receives in[i] from it.
func (s *series) exchange(out, in *parts) error {
	most, short := 1, true
	for i := range s.c.size {
		if i != s.c.rank {
			most = max(most, pieces(out[i]), pieces(in[i]))
			short = short && s.small(out[i]) && s.small(in[i])
		}
	}
	if short {
		return s.exchangeShort(func(i int) []byte { return out[i] }, func(i int) []byte { return in[i] })
	}
	if most > 1 {
		var recvs, sends [sharedRanks * maxPieces]engine.Request
		return s.exchangeBy(out, in, recvs[:], sends[:])
	}
	var recvs, sends [sharedRanks]engine.Request
	return s.exchangeBy(out, in, recvs[:], sends[:])
}

// exchangeShort sends out(i), which is short, to each other rank i and receives in(i) from it. What goes
// at once needs no receive that was posted before.
func (s *series) exchangeShort(out, in func(i int) []byte) error {
	var later []pending // sends that wait for their receivers: they may be at the same
	for d := 1; d < s.c.size; d++ {
		if to := s.at(s.c.rank + d); !s.trySend(out(to), to) {
			if s.stuck() {
				return errLater
			}
			later = append(later, pending{r: s.isend(out(to), to), peer: to})
		}
	}
	err := s.collect(in)
	for _, p := range later {
		if err == nil {
			err = s.sent(p.r, p.peer)
		} else {
			s.drop(p.r)
		}
	}
	return err
}

// exchangeBy is exchange with room for the requests that it needs.
func (s *series) exchangeBy(out, in *parts, recvs, sends []engine.Request) (err error) {
	size, rank := s.c.size, s.c.rank
	at := 0
	for d := 1; d < size; d++ {
		from := s.at(rank - d)
		for i := range pieces(in[from]) {
			recvs[at] = s.irecv(piece(in[from], i), from)
			at++
		}
	}
	at = 0
	for d := 1; d < size; d++ {
		to := s.at(rank + d)
		for i := range pieces(out[to]) {
			switch b := piece(out[to], i); {
			case err != nil:
			case s.small(b):
				err = s.send(b, to)
			default:
				sends[at] = s.isend(b, to)
			}
			at++
		}
	}
	at = 0
	for d := 1; d < size; d++ {
		from := s.at(rank - d)
		for i := range pieces(in[from]) {
			if err == nil {
				err = s.wait(recvs[at], piece(in[from], i), from)
			} else {
				s.drop(recvs[at])
			}
			at++
		}
	}
	at = 0
	for d := 1; d < size; d++ {
		to := s.at(rank + d)
		for range pieces(out[to]) {
			if err == nil {
				err = s.sent(sends[at], to)
			} else {
				s.drop(sends[at])
			}
			at++
		}
	}
	return err
}

// combineAll leaves the parts of all ranks combined in dst, grouped as the
// algorithms for many ranks do. It overwrites all of them but the rank's own.
// It goes by stretches that stay in the processor's nearest cache.
func (f *folding) combineAll(dst []byte, p *parts) {
	n := len(dst)
	if f.elem > 0 {
		n = max(1, combineLen/f.elem) * f.elem
	}
	for at := 0; at < len(dst); at += n {
		end := min(at+n, len(dst))
		var some parts
		for i := range f.s.c.size {
			some[i] = p[i][at:end:end]
		}
		f.combineSome(dst[at:end:end], &some)
	}
}

// combineLen is how many bytes a stretch has.
const combineLen = 4 << 10

func (f *folding) combineSome(dst []byte, p *parts) {
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

// received is places in room for the parts of the other ranks; own is the
// rank's own.
func (s *series) received(room, own []byte) (p parts) {
	n, at := len(own), 0
	for i := range s.c.size {
		if i == s.c.rank {
			p[i] = own
			continue
		}
		p[i] = room[at : at+n : at+n]
		at += n
	}
	return p
}

// reduceParts leaves the rank's own part of in, as l divides it, combined with
// those of the others in dst.
func (f *folding) reduceParts(in, dst []byte, l *layout) (err error) {
	room := takeScratch(len(dst) * (f.s.c.size - 1))
	defer room.freeUnless(&err)
	p := f.s.received(room.b, l.of(in, f.s.c.rank))
	return f.reduceInto(in, dst, l, &p)
}

// reduceInto is reduceParts with places for what is received.
func (f *folding) reduceInto(in, dst []byte, l *layout, p *parts) error {
	out := l.divided(in)
	if err := f.s.exchange(&out, p); err != nil {
		return err
	}
	f.combineAll(dst, p)
	return nil
}

// allreduceDirect exchanges all of short data, or parts of long data to be
// combined and then their results.
func (f *folding) allreduceDirect(in, out []byte) (err error) {
	if !f.long {
		room := takeScratch(len(in) * (f.s.c.size - 1))
		defer room.freeUnless(&err)
		sent, p := repeated(in, f.s.c.size), f.s.received(room.b, in)
		if err := f.s.exchange(&sent, &p); err != nil {
			return err
		}
		f.combineAll(out, &p)
		return nil
	}
	l := evenly(f.elem, f.n, f.s.c.size)
	own := l.of(out, f.s.c.rank)
	if f.n%f.s.c.size == 0 && !same(in, out) {
		// The parts have one length, and out is free.
		p := l.divided(out)
		p[f.s.c.rank] = l.of(in, f.s.c.rank)
		if err := f.reduceInto(in, own, &l, &p); err != nil {
			return err
		}
	} else if err := f.reduceParts(in, own, &l); err != nil {
		return err
	}
	sent, p := repeated(own, f.s.c.size), l.divided(out)
	return f.s.exchange(&sent, &p)
}

// reduceDirect sends all of short data to root, or the results of parts of long
// data.
func (f *folding) reduceDirect(in, out []byte) (err error) {
	rank, size := f.s.c.rank, f.s.c.size
	if !f.long {
		return f.reduceToRoot(in, out, f.root)
	}
	l := evenly(f.elem, f.n, size)
	if rank == f.root {
		if err := f.reduceParts(in, l.of(out, rank), &l); err != nil {
			return err
		}
		return f.s.gatherFrom(l.of(out, rank), out, &l)
	}
	lo, hi := l.at(rank)
	room := takeScratch(hi - lo)
	defer room.freeUnless(&err)
	if err := f.reduceParts(in, room.b, &l); err != nil {
		return err
	}
	return f.s.send(room.b, f.root)
}

// reduceToRoot sends all data to root, which combines it.
func (f *folding) reduceToRoot(in, out []byte, root int) (err error) {
	rank, size := f.s.c.rank, f.s.c.size
	if rank != root {
		return f.s.send(in, root)
	}
	room := takeScratch(len(in) * (size - 1))
	defer room.freeUnless(&err)
	p := f.s.received(room.b, in)
	if f.s.small(in) {
		if err := f.s.collect(func(i int) []byte { return p[i] }); err != nil {
			return err
		}
	} else {
		w := window{s: *f.s}
		for d := 1; d < size; d++ {
			from := f.s.at(rank + d)
			w.recv(p[from], from)
		}
		if err := w.wait(); err != nil {
			return err
		}
	}
	f.combineAll(out, &p)
	return nil
}
