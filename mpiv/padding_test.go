package mpiv

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

type cell struct {
	Kind  uint8
	Value float64
}

func TestGaps(t *testing.T) {
	for _, c := range []struct {
		of   any
		want []gap
	}{
		{int64(0), nil},
		{struct{}{}, nil},
		{[3]struct{ A, B int32 }{}, nil},
		{cell{}, []gap{{1, 8}}},
		{[2]cell{}, []gap{{1, 8}, {17, 24}}},
		{[0]cell{}, nil},
		{struct {
			A int32
			B [2]struct {
				C int8
				D int16
			}
			E int8
		}{}, []gap{{5, 6}, {9, 10}, {13, 16}}},
		{struct {
			A int64
			_ int32
			B int32
		}{}, []gap{{8, 12}}},
		{Loc[float64]{}, nil},
		{Loc[int16]{}, []gap{{2, 8}}},
	} {
		t.Run(fmt.Sprintf("%T", c.of), func(t *testing.T) {
			require.Equal(t, c.want, gapsIn(nil, reflect.TypeOf(c.of), 0))
		})
	}
}

// dirtied are n elements whose padding was something else before.
func dirtied[T Elem](n int, of func(i int) T) []T {
	all := make([]T, n)
	b := bytesOf(all)
	for i := range b {
		b[i] = 0xa5
	}
	for i := range all {
		v := of(i)
		x := bytesOf([]T{v})
		for k := range x {
			at := uintptr(k)
			inGap := false
			for _, g := range gapsOf[T]() {
				inGap = inGap || g.from <= at && at < g.to
			}
			if !inGap {
				b[i*sizeOf[T]()+k] = x[k]
			}
		}
	}
	return all
}

// clean is nil if all is what of says, with zeros in its padding.
func clean[T Elem](what string, all []T, of func(i int) T) error {
	want := make([]T, len(all))
	for i := range want {
		want[i] = of(i)
	}
	clearPadding[T](bytesOf(want))
	if !bytes.Equal(bytesOf(all), bytesOf(want)) {
		return fmt.Errorf("%s: got %x, want %x", what, bytesOf(all), bytesOf(want))
	}
	return nil
}

// What lies in padding may be another in a rank's next life, which is to send the same bytes.
func TestPaddingIsNotSentWhereMessagesAreCompared(t *testing.T) {
	of := func(i int) cell { return cell{uint8(i), math.Sqrt(float64(i))} }
	loc := func(i int) Loc[int16] { return Loc[int16]{int16(i), int64(i)} }
	add := NewOp("add", func(in, inout []cell) {
		for i := range in {
			inout[i].Value += in[i].Value
		}
	}, true)
	runWorld(t, 3, func(ctx context.Context, c *Comm) error {
		c.box.Record(engine.Recording{Record: func(engine.Choice) {}})
		const n = 5
		data, into := dirtied(n, of), make([]cell, n)
		to, from := (c.Rank()+1)%3, (c.Rank()+2)%3
		sends := map[string]func() error{
			"Send": func() error { return Send(ctx, c, data, to, 1) },
			"Isend": func() error {
				r := Isend(c, data, to, 1)
				_, err := r.Wait(ctx)
				return err
			},
		}
		for _, what := range []string{"Send", "Isend"} {
			clear(into)
			r := Irecv(c, into, from, 1)
			if err := sends[what](); err != nil {
				return err
			}
			if _, err := r.Wait(ctx); err != nil {
				return err
			}
			if err := clean(what, into, of); err != nil {
				return err
			}
		}
		all := make([]cell, 3*n)
		if err := Allgather(ctx, c, data, all); err != nil {
			return err
		}
		if err := clean("Allgather", all, func(i int) cell { return of(i % n) }); err != nil {
			return err
		}
		got := dirtied(n, of)
		if err := Bcast(ctx, c, got, 1); err != nil {
			return err
		}
		if c.Rank() != 1 {
			if err := clean("Bcast", got, of); err != nil {
				return err
			}
		}
		if err := Allreduce(ctx, c, data, got, add); err != nil {
			return err
		}
		if err := clean("Allreduce", got, func(i int) cell { v := of(i).Value; return cell{uint8(i), v + v + v} }); err != nil {
			return err
		}
		least := dirtied(n, loc)
		if err := Allreduce(ctx, c, dirtied(n, loc), least, MinLoc[int16]); err != nil {
			return err
		}
		return clean("MinLoc", least, loc)
	})
}
