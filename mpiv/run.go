package mpiv

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/topology"
)

// Run runs a world of size ranks inside this process, each in a goroutine, and
// waits for all. The error joins those of the ranks; the first of them ends the
// context of the others. A rank that panics, or calls t.FailNow, has failed. When Run returns, no goroutine of the library is left.
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
// that another's has caused. What run returns where its rank has left counts for nothing,
// unless it panics, and is waited for no longer than windUp.
func runRanks(ctx context.Context, lives <-chan *process.Life, opt Options, run func(ctx context.Context, world *Comm) error, ended func(r topology.Rank, err error, told bool)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		ranks []stay
		mu    sync.Mutex // guards errs
		errs  []error
	)
	end := func(life *process.Life, world *Comm, err error) {
		r := life.Rank
		if world.state.moved() {
			if _, panicked := errors.AsType[*PanicError](err); !panicked {
				life.Gone(gone(err))
				return
			}
			err = fmt.Errorf("where it was before it moved: %w", err)
		}
		ended(r, err, errors.Is(err, ErrAbandoned) || ctx.Err() != nil && errors.Is(err, context.Canceled))
		if err != nil {
			stop()
			mu.Lock()
			errs = append(errs, fmt.Errorf("rank %d: %w", r, err))
			mu.Unlock()
		}
	}
	for life := range lives {
		world := worldOf(life.Box, opt, life.Survives())
		s := stay{over: make(chan struct{}), left: world.state.left}
		ranks = append(ranks, s)
		go func() {
			defer close(s.over)
			var err error
			returned := false
			defer func() {
				if !returned {
					err = exited()
				}
				end(life, world, err)
			}()
			life.Record(&world.state.recorder)
			life.Consult(world.state.state.barred)
			life.Labelled(ctx, func(ctx context.Context) { err = runRank(ctx, world, run) })
			returned = true
		}()
	}
	awaitAll(ranks)
	mu.Lock()
	defer mu.Unlock()
	return errors.Join(errs...)
}

// A stay is that of a rank in this process.
type stay struct {
	over chan struct{} // closed when run has ended
	left chan struct{} // closed when the rank has moved
}

// windUp is how long the job waits, when all ranks have ended, for functions of which the
// rank has left: to close what they hold.
const windUp = time.Second

// awaitAll waits until all ranks have ended or left, and for what is left of the latter.
func awaitAll(ranks []stay) {
	var winding []stay
	for _, s := range ranks {
		select {
		case <-s.over:
		case <-s.left:
			winding = append(winding, s)
		}
	}
	if len(winding) == 0 {
		return
	}
	late := time.After(windUp)
	for _, s := range winding {
		select {
		case <-s.over:
		case <-late:
			return
		}
	}
}

// gone is what a Life is told that run returned where its rank has left.
func gone(err error) error {
	if errors.Is(err, ErrMoved) {
		return process.ErrLeft
	}
	return err
}

// runRank runs one rank; a panic of its is an error with the stack.
func runRank(ctx context.Context, world *Comm, run func(ctx context.Context, world *Comm) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &PanicError{Value: p, Stack: debug.Stack()}
		}
	}()
	if err := run(ctx, world); err != nil {
		return sound(err)
	}
	return world.leftovers()
}

// sound is err; or, if its methods panic, an error that says so: whoever asks err later has
// nothing that recovers. A nil pointer of a type of errors is such a one.
func sound(err error) (is error) {
	defer func() {
		if p := recover(); p != nil {
			is = fmt.Errorf("run returned an error of type %T whose methods panic, as those of a nil pointer may: return nil itself where there is no error (%v)", err, p)
		}
	}()
	_, _ = err.Error(), errors.Is(err, ErrMoved)
	return err
}

// A PanicError is the error of a rank that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }

// exited is the error of what called runtime.Goexit, for a function that this runs.
func exited() error {
	return fmt.Errorf("it ended by runtime.Goexit, as t.FailNow and t.Fatal do\n\n%s", debug.Stack())
}
