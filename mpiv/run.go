package mpiv

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/topology"
)

// Run runs a world of size ranks inside this process, each in a goroutine, and
// waits for all. The error joins those of the ranks; the first of them ends the
// context of the others. When Run returns, no goroutine of the library is left.
//
// Nobody looks for deadlocks, as mpivrun does: ranks that wait for each other wait until
// ctx ends. A test may call it in a bubble of testing/synctest: time passes when all ranks
// wait, and ranks that wait for each other without a deadline fail the test.
func Run(ctx context.Context, size int, opt Options, run func(ctx context.Context, world *Comm) error) error {
	if size < 1 {
		return fmt.Errorf("run %d ranks: want at least one", size)
	}
	ranks := make([]topology.Rank, size)
	for i := range ranks {
		ranks[i] = topology.Rank(i)
	}
	e := engine.New(engine.Config{Processes: [][]topology.Rank{ranks}})
	defer e.Close()
	return runRanks(ctx, livesOf(e), opt, run, func(topology.Rank, error, bool) {})
}

// livesOf is the ranks of e, where none comes or goes.
func livesOf(e *engine.Engine) <-chan *process.Life {
	ranks := e.Local()
	lives := make(chan *process.Life, len(ranks))
	for _, r := range ranks {
		lives <- &process.Life{Rank: r, Box: e.Box(r)}
	}
	close(lives)
	return lives
}

// runRanks runs the ranks that begin in this process, or come to it, until lives is
// closed and all have ended, and tells ended of each as it ends; told: with an error
// that another's has caused. It is not told of ranks that go on elsewhere.
func runRanks(ctx context.Context, lives <-chan *process.Life, opt Options, run func(ctx context.Context, world *Comm) error, ended func(r topology.Rank, err error, told bool)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		ranks sync.WaitGroup
		mu    sync.Mutex // guards errs
		errs  []error
	)
	for life := range lives {
		r := life.Rank
		ranks.Go(func() {
			var err error
			world := worldOf(life.Box, opt, life.Survives())
			life.Record(&world.state.recorder)
			labelled(ctx, r, func(ctx context.Context) { err = runRank(ctx, world, run) })
			if errors.Is(err, ErrMoved) {
				life.Gone()
				return
			}
			ended(r, err, errors.Is(err, ErrAbandoned) || ctx.Err() != nil && errors.Is(err, context.Canceled))
			if err != nil {
				stop()
				mu.Lock()
				errs = append(errs, fmt.Errorf("rank %d: %w", r, err))
				mu.Unlock()
			}
		})
	}
	ranks.Wait()
	return errors.Join(errs...)
}

// runRank runs one rank; a panic of its is an error with the stack.
func runRank(ctx context.Context, world *Comm, run func(ctx context.Context, world *Comm) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if err := run(ctx, world); err != nil {
		return err
	}
	return world.leftovers()
}

// A PanicError is the error of a rank that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }
