package main

import (
	"context"
	"errors"
	"math/rand/v2"

	"github.com/mpiv/mpiv/mpiv"
)

// sizes are lengths of messages, in elements of 8 bytes.
var sizes = []int{0, 1, 2, 5, 30, 100, 500, 1000, 2000, 9000, 40_000, 300_000}

// size is the length of a message, rather a short one.
func size(r *rand.Rand) int {
	return sizes[min(r.IntN(len(sizes)), r.IntN(len(sizes)))]
}

// few is the length of a short message.
func few(r *rand.Rand) int { return sizes[r.IntN(6)] }

// message says who sends it, and hangs on all that the rank has received.
func (w *walk) message(c *mpiv.Comm, n, to, tag, number int) []uint64 {
	m := make([]uint64, n)
	copy(m, []uint64{mix(w.Sum, uint64(to*1000+number)), w.Luck, uint64(c.Rank()), uint64(tag), uint64(number)})
	for i := 5; i < n; i++ {
		m[i] = m[0] + m[1]*uint64(i)
	}
	return m
}

// check tells whether m is as s says it is, and what it tells that does not depend on timing.
func (w *walk) check(m []uint64, s mpiv.Status) uint64 {
	n := len(m)
	if s.Count != n || s.Bytes != 8*n || n > 2 && m[2] != uint64(s.Source) || n > 3 && m[3] != uint64(s.Tag) {
		wrong("turn %d: a message of %d, %v, has the status %+v", w.Turn, n, m[:min(n, 5)], s)
	}
	for i := 5; i < n; i++ {
		if m[i] != m[0]+m[1]*uint64(i) {
			wrong("turn %d: element %d of a message of %d is %x, %v", w.Turn, i, n, m[i], m[:5])
		}
	}
	if n > 1 {
		w.Luck = mix(w.Luck, m[1])
	}
	if n == 0 {
		return mix(uint64(s.Source), uint64(s.Tag))
	}
	return mix(m[0], mix(uint64(s.Source), uint64(s.Tag*1_000_000+n)))
}

// mode is one in which m is sent: standard, synchronous, ready or, if it is short, buffered.
func mode(m []uint64, r *rand.Rand) int {
	how := r.IntN(4)
	if how == 3 && len(m) > 2000 {
		return 0
	}
	return how
}

// send starts to send in some mode.
func send(c *mpiv.Comm, m []uint64, to, tag int, r *rand.Rand) mpiv.Request {
	return []func(*mpiv.Comm, []uint64, int, int) mpiv.Request{mpiv.Isend[uint64], mpiv.Issend[uint64], mpiv.Irsend[uint64], mpiv.Ibsend[uint64]}[mode(m, r)](c, m, to, tag)
}

// sendNow sends in some mode, and may wait for the receive.
func sendNow(ctx context.Context, c *mpiv.Comm, m []uint64, to, tag int, r *rand.Rand) {
	must([]func(context.Context, *mpiv.Comm, []uint64, int, int) error{mpiv.Send[uint64], mpiv.Ssend[uint64], mpiv.Rsend[uint64], mpiv.Bsend[uint64]}[mode(m, r)](ctx, c, m, to, tag))
}

// receive receives a message of at most n elements in some way.
func receive(ctx context.Context, w *walk, c *mpiv.Comm, n, from, tag int, r *rand.Rand) ([]uint64, mpiv.Status) {
	in := make([]uint64, n+r.IntN(3))
	var s mpiv.Status
	var m *mpiv.Message
	switch ok := false; r.IntN(8) {
	case 0:
		s = must2(mpiv.Recv(ctx, c, in, from, tag))
	case 1:
		all, s, err := mpiv.RecvAlloc[uint64](ctx, c, from, tag)
		must(err)
		return all, s
	case 2:
		p := must2(mpiv.Probe(ctx, c, from, tag))
		s = must2(mpiv.Recv(ctx, c, in[:p.Count/8], p.Source, p.Tag))
	case 3:
		var err error
		m, s, err = mpiv.Mprobe(ctx, c, from, tag)
		must(err)
		s = must2(mpiv.Mrecv(ctx, m, in))
	case 4:
		var err error
		for i := 0; !ok; i++ {
			s, ok, err = mpiv.Iprobe(c, from, tag)
			must(err)
			w.chance(i)
		}
		s = must2(mpiv.Recv(ctx, c, in, s.Source, s.Tag))
	case 5:
		var err error
		for i := 0; m == nil; i++ {
			m, s, err = mpiv.Improbe(c, from, tag)
			must(err)
			w.chance(i)
		}
		q := mpiv.Imrecv(m, in)
		s = must2(q.Wait(ctx))
	case 6:
		q := mpiv.Irecv(c, in, from, tag)
		var err error
		for i := 0; !ok; i++ {
			s, ok, err = q.Test()
			must(err)
			w.chance(i)
		}
	default:
		q := mpiv.Irecv(c, in, from, tag)
		s = must2(q.Wait(ctx))
	}
	return in[:s.Count], s
}

// end ends requests in some way; done is told of each, in their order.
func end(ctx context.Context, w *walk, rs []mpiv.Request, r *rand.Rand, done func(i int, s mpiv.Status)) {
	all, how, left := make([]mpiv.Status, len(rs)), r.IntN(7), 0
	for i := range rs {
		if rs[i] != (mpiv.Request{}) {
			left++
		}
	}
	for next := 0; left > 0; {
		var some []int
		var ok bool
		statuses := make([]mpiv.Status, len(rs))
		var err error
		switch one := make([]mpiv.Status, 1); how {
		case 0, 1:
			if ok = true; how == 0 {
				err = mpiv.Waitall(ctx, rs, statuses)
			} else {
				ok, err = mpiv.Testall(rs, statuses)
			}
			if ok {
				copy(all, statuses)
				left = 0
			}
		case 2, 3:
			i := 0
			if ok = true; how == 2 {
				i, one[0], err = mpiv.Waitany(ctx, rs)
			} else {
				i, one[0], ok, err = mpiv.Testany(rs)
			}
			if ok {
				some, statuses = []int{i}, one
			}
		case 4:
			some, err = mpiv.Waitsome(ctx, rs, statuses)
		case 5:
			some, err = mpiv.Testsome(rs, statuses)
		default:
			for rs[next] == (mpiv.Request{}) {
				next++
			}
			some = []int{next}
			statuses[0], err = rs[next].Wait(ctx)
		}
		must(err)
		w.chance(len(some))
		for j, i := range some {
			w.chance(i)
			all[i] = statuses[j]
			left--
		}
	}
	for i, s := range all {
		done(i, s)
	}
}

// exchange sends one message each around a ring.
func exchange(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	n, me, by, how := c.Size(), c.Rank(), r.IntN(c.Size()), r.IntN(6)
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = size(r)
	}
	to, from := (me+by)%n, (me-by+n)%n
	out, most := w.message(c, lengths[me], to, tag, 0), lengths[from]
	in := make([]uint64, most+r.IntN(3))
	source := from
	if r.IntN(3) == 0 {
		source = mpiv.AnySource
	}
	var s mpiv.Status
	switch {
	case how == 0:
		s = must2(mpiv.Sendrecv(ctx, c, out, to, tag, in, source, tag))
	case how == 1:
		q := mpiv.Irecv(c, in, source, tag)
		sendNow(ctx, c, out, to, tag, r)
		end(ctx, w, []mpiv.Request{q}, r, func(_ int, t mpiv.Status) { s = t })
	case how == 2 && by > 0:
		first := true // to receive, in each of the rings
		for x := (me + by) % n; x != me; x = (x + by) % n {
			first = first && me < x
		}
		if !first {
			sendNow(ctx, c, out, to, tag, r)
		}
		in, s = receive(ctx, w, c, most, source, tag, r)
		if first {
			sendNow(ctx, c, w.message(c, lengths[me], to, tag, 1), to, tag, r)
		}
	case how == 3:
		sendObject(ctx, w, c, to, from, source, tag, r)
		return
	default:
		q := send(c, out, to, tag, r)
		in, s = receive(ctx, w, c, most, source, tag, r)
		end(ctx, w, []mpiv.Request{q}, r, func(int, mpiv.Status) {})
	}
	if s.Count != most || s.Source != from || s.Tag != tag {
		wrong("turn %d: the status is %+v, not rank %d, tag %d, %d", w.Turn, s, from, tag, most)
	}
	w.fold(w.check(in[:s.Count], s))
}

// storm sends many messages to few, who receive them in any order, and answer.
func storm(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	n, me, targets, lots := c.Size(), c.Rank(), 1+r.IntN(2), 1+r.IntN(8)
	answered, anyTag := r.IntN(2) == 0, mpiv.AnyTag
	if answered || r.IntN(2) == 0 {
		anyTag = tag
	} else {
		must(mpiv.Barrier(ctx, c)) // what others send before or after would be received
	}
	var out, answers []mpiv.Request
	most := 0
	for target := range min(targets, n) {
		for range n * lots {
			l := few(r)
			if r.IntN(10) == 0 {
				l = size(r)
			}
			most = max(most, l)
		}
		for i := range lots {
			t := tag
			if anyTag == mpiv.AnyTag {
				t += i % 3
			}
			l := int(mix(uint64(me*100+i), uint64(tag)) % uint64(most+1))
			out = append(out, send(c, w.message(c, l, target, t, i), target, t, r))
		}
	}
	var back [][]uint64
	if me < targets {
		sum := uint64(0)
		last := map[[2]int]uint64{}
		heard := func(m []uint64, s mpiv.Status) {
			sum += w.check(m, s)
			w.chance(s.Source)
			if k := [2]int{s.Source, s.Tag}; len(m) > 4 {
				if m[4]+1 <= last[k] {
					wrong("turn %d: message %d of %v comes after %d", w.Turn, m[4], k, last[k]-1)
				}
				last[k] = m[4] + 1
			}
			if answered {
				answers = append(answers, send(c, w.message(c, 4, s.Source, tag+50, 0), s.Source, tag+50, r))
			}
		}
		if r.IntN(2) == 0 {
			for range n * lots {
				heard(receive(ctx, w, c, most, mpiv.AnySource, anyTag, r))
			}
		} else {
			var in []mpiv.Request
			for range n * lots {
				back = append(back, make([]uint64, most))
				in = append(in, mpiv.Irecv(c, back[len(back)-1], mpiv.AnySource, anyTag))
			}
			end(ctx, w, in, r, func(i int, s mpiv.Status) { heard(back[i][:s.Count], s) })
		}
		w.fold(sum)
	}
	if answered {
		sum := uint64(0)
		for range min(targets, n) * lots {
			m, s := receive(ctx, w, c, 4, mpiv.AnySource, tag+50, r)
			sum += w.check(m, s)
		}
		w.fold(sum)
	}
	end(ctx, w, append(out, answers...), r, func(int, mpiv.Status) {})
	if anyTag == mpiv.AnyTag {
		must(mpiv.Barrier(ctx, c))
	}
}

// persist starts requests again and again.
func persist(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	n, me, by, l := c.Size(), c.Rank(), r.IntN(c.Size()), size(r)
	to, from := (me+by)%n, (me-by+n)%n
	out, in := make([]uint64, l), make([]uint64, l+1)
	how := r.IntN(4)
	if l > 2000 {
		how %= 3
	}
	ps := []*mpiv.Persistent{mpiv.RecvInit(c, in, from, tag),
		[]func(*mpiv.Comm, []uint64, int, int) *mpiv.Persistent{mpiv.SendInit[uint64], mpiv.SsendInit[uint64], mpiv.RsendInit[uint64], mpiv.BsendInit[uint64]}[how](c, out, to, tag)}
	for i := range 1 + r.IntN(3) {
		copy(out, w.message(c, l, to, tag, i))
		must(mpiv.Startall(ps...))
		s := make([]mpiv.Status, 2)
		if r.IntN(2) == 0 {
			must(mpiv.Waitall(ctx, ps, s))
		} else {
			for left := 2; left > 0; left-- {
				j, t, err := mpiv.Waitany(ctx, ps)
				must(err)
				w.chance(j)
				s[j] = t
			}
		}
		w.fold(w.check(in[:s[0].Count], s[0]))
	}
}

// takeBack cancels what nobody answers.
func takeBack(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	to := r.IntN(c.Size())
	rs := []mpiv.Request{mpiv.Irecv(c, make([]uint64, 3), mpiv.AnySource, tag+1), mpiv.Irecv(c, make([]uint64, 3), to, tag+2),
		mpiv.Issend(c, w.message(c, size(r), to, tag+3, 0), to, tag+3)}
	for _, i := range r.Perm(3) {
		rs[i].Cancel()
		if _, err := rs[i].Wait(ctx); !errors.Is(err, mpiv.ErrCancelled) {
			wrong("turn %d: Cancel of request %d: %v", w.Turn, i, err)
		}
	}
	nothingLeft(ctx, w, c)
}

// nothingLeft tells whether all that was sent has been received, or taken back.
func nothingLeft(ctx context.Context, w *walk, c *mpiv.Comm) {
	must(mpiv.Barrier(ctx, c))
	if s, found, err := mpiv.Iprobe(c, mpiv.AnySource, mpiv.AnyTag); found || err != nil {
		wrong("turn %d: rank %d of %s has received all that was for it, and there is another message: %+v, %v", w.Turn, c.Rank(), c.Name(), s, err)
	}
	must(mpiv.Barrier(ctx, c)) // before the next is sent
}

// tooLate cancels what may have been received.
func tooLate(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	n, me, by, l, what := c.Size(), c.Rank(), r.IntN(c.Size()), size(r), r.IntN(3)
	to, from := (me+by)%n, (me-by+n)%n
	in := make([]uint64, l)
	m := w.message(c, l, to, tag, 0)
	if what == 0 { // the receive
		q := mpiv.Irecv(c, in, from, tag)
		e := send(c, m, to, tag, r)
		q.Cancel()
		s, err := q.Wait(ctx)
		if w.chance(0); errors.Is(err, mpiv.ErrCancelled) {
			w.chance(1)
			s, err = mpiv.Recv(ctx, c, in, from, tag)
		}
		must(err)
		must2(e.Wait(ctx))
		w.fold(w.check(in[:s.Count], s))
		nothingLeft(ctx, w, c)
		return
	}
	q := mpiv.Irecv(c, in, from, tag) // or the send
	e := mpiv.Issend(c, m, to, tag)
	if what == 1 {
		_, _, err := e.Test()
		must(err)
	}
	e.Cancel()
	_, err := e.Wait(ctx)
	gone, is := []uint64{0}, make([]uint64, 1)
	if errors.Is(err, mpiv.ErrCancelled) {
		gone[0], err = 1, nil
	}
	must(err)
	w.chance(int(gone[0]))
	must2(mpiv.Sendrecv(ctx, c, gone, to, tag+1, is, from, tag+1))
	if is[0] == 1 {
		q.Cancel()
		if _, err := q.Wait(ctx); !errors.Is(err, mpiv.ErrCancelled) {
			wrong("turn %d: a message that was taken back was received: %v", w.Turn, err)
		}
	} else {
		s := must2(q.Wait(ctx))
		w.check(in[:s.Count], s)
	}
	nothingLeft(ctx, w, c)
}

// short receives with too little room.
func short(ctx context.Context, w *walk, c *mpiv.Comm, tag int, r *rand.Rand) {
	n, me, by, l := c.Size(), c.Rank(), r.IntN(c.Size()), 1+size(r)
	to, from := (me+by)%n, (me-by+n)%n
	m := w.message(c, l, to, tag, 0)
	e := send(c, m, to, tag, r)
	if _, err := mpiv.Recv(ctx, c, make([]uint64, r.IntN(l)), from, tag); !errors.Is(err, mpiv.ErrTruncate) {
		wrong("turn %d: a receive with too little room: %v", w.Turn, err)
	}
	must2(e.Wait(ctx))
	must2(mpiv.SendrecvReplace(ctx, c, m, to, tag+1, from, tag+1))
	w.fold(m[0])
}
