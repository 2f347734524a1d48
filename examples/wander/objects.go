package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/mpiv/mpiv/mpiv"
)

// A parcel is an object with much in it. It leads back to itself by its type.
type parcel struct {
	From, Number int
	Luck         uint64
	Words        []string
	Of           map[string]uint64
	At           map[line]*line
	Inner        *parcel
	Lines        [][]line
}

// parcel hangs on all that the rank has received. Those of other ranks are of another size.
func (w *walk) parcel(c *mpiv.Comm, number int, r *rand.Rand) *parcel {
	r = rand.New(rand.NewPCG(r.Uint64(), uint64(c.Rank())))
	p := &parcel{From: c.Rank(), Number: number, Luck: w.Luck, Of: make(map[string]uint64), At: make(map[line]*line)}
	for i := range 2 + r.IntN(20) {
		x := mix(w.Sum, uint64(number*1000+i))
		p.Words = append(p.Words, fmt.Sprintf("word %x", x%1000))
		p.Of[fmt.Sprint("key ", x%100_000)] = x
		p.At[line{x, uint64(i)}] = &line{^x, 1}
	}
	for range r.IntN(3) {
		lines := make([]line, few(r))
		for i := range lines {
			lines[i] = line{w.Sum, uint64(i)}
		}
		p.Lines = append(p.Lines, lines)
	}
	if r.IntN(2) == 0 {
		p.Inner = w.parcel(c, number+1, r)
	}
	return p
}

// open tells what is in p that does not depend on timing.
func (w *walk) open(p *parcel, from, number int) (sum uint64) {
	if p.From != from || p.Number != number {
		wrong("turn %d: a parcel of rank %d, number %d, is from %d, number %d", w.Turn, from, number, p.From, p.Number)
	}
	w.Luck = mix(w.Luck, p.Luck)
	for _, s := range p.Words {
		for _, b := range []byte(s) {
			sum = mix(sum, uint64(b))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(p.Of)) {
		sum = mix(sum, mix(p.Of[k], uint64(len(k))))
	}
	var at uint64
	for k, v := range p.At { // in any order
		at += mix(mix(k.A, k.B), mix(v.A, v.B))
	}
	for _, lines := range p.Lines {
		for _, l := range lines {
			sum = mix(sum, mix(l.A, l.B))
		}
	}
	if p.Inner != nil {
		sum = mix(sum, w.open(p.Inner, from, number+1))
	}
	return mix(sum, at)
}

// sendObject sends an object to a rank, and receives one that comes from another.
func sendObject(ctx context.Context, w *walk, c *mpiv.Comm, to, from, source, tag int, r *rand.Rand) {
	if r.IntN(2) == 0 {
		e := mpiv.IsendObj(c, []uint64{w.Sum, uint64(c.Rank())}, to, tag)
		v, _, err := mpiv.RecvObj[[]uint64](ctx, c, source, tag)
		must(err)
		must2(e.Wait(ctx))
		w.fold(v...)
		return
	}
	e := mpiv.IsendObj(c, w.parcel(c, 4, r), to, tag)
	p, _, err := mpiv.RecvObj[*parcel](ctx, c, source, tag)
	must(err)
	must2(e.Wait(ctx))
	w.fold(w.open(p, from, 4))
}

// objects does collectives with encoded values of several types, and agrees.
func objects(ctx context.Context, w *walk, c *mpiv.Comm, r *rand.Rand) {
	n, me, root := c.Size(), c.Rank(), r.IntN(c.Size())
	v := []uint64{w.Sum}
	switch r.IntN(9) {
	case 0:
		v = must2(mpiv.BcastObj(ctx, c, v, root))
	case 1:
		for _, o := range must2(mpiv.AllgatherObj(ctx, c, v)) {
			w.fold(o...)
		}
	case 2:
		all := must2(mpiv.GatherObj(ctx, c, v, root))
		for i := range n {
			if len(all) > 0 {
				all[i][0] += uint64(i)
			}
		}
		v = must2(mpiv.ScatterObj(ctx, c, all, root))
	case 3:
		w.fold(must2(c.Agree(ctx, w.Sum|1)))
	case 4:
		of := must2(mpiv.BcastObj(ctx, c, w.parcel(c, 0, r).Of, root))
		for _, k := range slices.Sorted(maps.Keys(of)) {
			w.fold(of[k])
		}
	case 5:
		for i, p := range must2(mpiv.AllgatherObj(ctx, c, *w.parcel(c, 1, r))) {
			w.fold(w.open(&p, i, 1))
		}
	case 6:
		all := must2(mpiv.GatherObj(ctx, c, w.parcel(c, 2, r), root))
		for i, p := range all {
			w.fold(w.open(p, i, 2))
		}
		p := must2(mpiv.ScatterObj(ctx, c, all, root)) // its own comes back
		w.fold(w.open(p, me, 2))
	case 7:
		for _, s := range must2(mpiv.BcastObj(ctx, c, w.parcel(c, 3, r).Words, root)) {
			w.fold(uint64(len(s)), uint64(s[len(s)-1]))
		}
	}
	w.fold(v...)
}
