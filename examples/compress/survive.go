package main

import (
	"context"

	"github.com/mpiv/mpiv/mpiv"
)

// What a role must have to go on in another process are its variables here, beside
// those that its end has, and files that are there too. Files are at the place that
// the variables say: the reader reads again what it has read, and the writer cuts off
// what was written after the last safe point, to write it again.

// A survivor is the end of a role that can go on in another process.
type survivor interface {
	// restore fills what v points to, and tells whether the role goes on: again is
	// false where it begins. It is called once, before anything is said to others.
	restore(ctx context.Context, v vars) (again bool, err error)
	// safePoint is called between two blocks, where the role may be saved or go on
	// elsewhere: mpiv.ErrMoved.
	safePoint(ctx context.Context) error
}

// vars are pointers to variables, by name.
type vars map[string]any

func restore(ctx context.Context, s *mpiv.State, all ...vars) (again bool, err error) {
	if s == nil {
		return false, nil
	}
	for _, v := range all {
		for name, ptr := range v {
			s.Protect(name, ptr)
		}
	}
	err = s.Restore(ctx)
	return !s.First(), err
}

// safePoint calls finish, which ends the requests of the rank, only when there is
// something to do: it costs waiting.
func safePoint(ctx context.Context, s *mpiv.State, finish func(ctx context.Context) error) error {
	if s == nil || !s.Due() {
		return nil
	}
	if err := finish(ctx); err != nil {
		return err
	}
	return s.SafePoint(ctx)
}

func (r *rankReader) restore(ctx context.Context, v vars) (bool, error) {
	return restore(ctx, r.state, v, vars{"credits": &r.credits, "stopped": &r.stopped})
}

func (r *rankReader) safePoint(ctx context.Context) error {
	return safePoint(ctx, r.state, r.arrived)
}

func (c *rankCompressor) restore(ctx context.Context, v vars) (bool, error) {
	return restore(ctx, c.state, v, vars{"asks": &c.asks, "begun": &c.begun})
}

func (c *rankCompressor) safePoint(ctx context.Context) error {
	return safePoint(ctx, c.state, func(ctx context.Context) error { return mpiv.Waitall(ctx, c.sent[:], nil) })
}

func (w *rankWriter) restore(ctx context.Context, v vars) (bool, error) {
	return restore(ctx, w.state, v, vars{"ended": &w.ended})
}

func (w *rankWriter) safePoint(ctx context.Context) error {
	return safePoint(ctx, w.state, func(context.Context) error { return nil })
}
