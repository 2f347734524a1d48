package main

import (
	"context"
	"sync"
)

// A layout says which rank does what.
type layout struct {
	reader, writer int
	first, last    int // the ranks that compress
}

// layoutFor gives a job of size ranks, at least two, its roles: rank 0 reads,
// the last writes, those in between compress. With two ranks there is nobody in
// between, so both compress beside what else they do.
func layoutFor(size int) layout {
	if size == 2 {
		return layout{reader: 0, writer: 1, first: 0, last: 1}
	}
	return layout{reader: 0, writer: size - 1, first: 1, last: size - 2}
}

func (l layout) compressors() int { return l.last - l.first + 1 }

func (l layout) compresses(rank int) bool { return l.first <= rank && rank <= l.last }

// A role is one of the things a rank may have to do.
type role func(ctx context.Context) error

// together plays roles side by side and waits for all. The first error ends the
// context of the others, and is what it returns.
func together(ctx context.Context, roles ...role) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		all   sync.WaitGroup
		once  sync.Once
		first error
	)
	for _, play := range roles {
		all.Go(func() {
			if err := play(ctx); err != nil {
				once.Do(func() { first = err })
				stop()
			}
		})
	}
	all.Wait()
	return first
}
