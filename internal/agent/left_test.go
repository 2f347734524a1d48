package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// What the function of a rank does where the rank has left.

// leavers is programs of which each does another thing when SafePoint has said ErrMoved.
var leavers = map[string]func(ctx context.Context, world *mpiv.Comm, moved error) error{
	"returns it, and more":        func(_ context.Context, _ *mpiv.Comm, moved error) error { return fmt.Errorf("turn: %w", moved) },
	"returns an error of its own": func(context.Context, *mpiv.Comm, error) error { return errors.New("my own error") },
	"returns nil":                 func(context.Context, *mpiv.Comm, error) error { return nil },
	"panics":                      func(_ context.Context, _ *mpiv.Comm, moved error) error { panic("what now") },
	"ends its goroutine":          func(context.Context, *mpiv.Comm, error) error { runtime.Goexit(); return nil },
	"never returns":               func(context.Context, *mpiv.Comm, error) error { select {} },
	"goes on with what it calls":  goOn,
}

func init() {
	for name, f := range leavers {
		members["a rank that moves "+name] = func(*member) {
			mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
				err := turns{state: true, safe: true}.run(ctx, world)
				if errors.Is(err, mpiv.ErrMoved) {
					return f(ctx, world, err)
				}
				return err
			})
		}
	}
}

// goOn makes calls of all kinds, of which each is to end at once.
func goOn(ctx context.Context, world *mpiv.Comm, moved error) error {
	next, v := (world.Rank()+1)%world.Size(), []uint64{7}
	var all []string
	says := func(call string, err error) {
		if !errors.Is(err, mpiv.ErrMoved) {
			all = append(all, fmt.Sprintf("%s = %v", call, err))
		}
	}
	waited := func(r mpiv.Request) error {
		_, err := r.Wait(ctx)
		return err
	}
	of := func(_ any, err error) error { return err }
	says("Send", mpiv.Send(ctx, world, v, next, 1))
	says("Ssend", mpiv.Ssend(ctx, world, v, next, 1))
	says("Isend", waited(mpiv.Isend(world, v, next, 1)))
	says("SendObj", mpiv.SendObj(ctx, world, v, next, 1))
	says("Start", func() error {
		p := mpiv.SendInit(world, v, next, 1)
		p.Start()
		return of(p.Wait(ctx))
	}())
	says("Recv", of(mpiv.Recv(ctx, world, v, mpiv.AnySource, mpiv.AnyTag)))
	says("Irecv", waited(mpiv.Irecv(world, v, next, 1)))
	r := mpiv.Irecv(world, v, next, 1)
	_, _, err := r.Test()
	says("Test", err)
	says("Sendrecv", of(mpiv.Sendrecv(ctx, world, v, next, 1, v, next, 1)))
	says("Probe", of(mpiv.Probe(ctx, world, next, 1)))
	_, _, err = mpiv.Iprobe(world, next, 1)
	says("Iprobe", err)
	says("Barrier", mpiv.Barrier(ctx, world))
	says("Ibarrier", waited(mpiv.Ibarrier(ctx, world)))
	says("Bcast", mpiv.Bcast(ctx, world, v, 0))
	says("BcastObj", of(mpiv.BcastObj(ctx, world, v, 0)))
	says("Allreduce", mpiv.Allreduce(ctx, world, v, v, mpiv.Sum))
	says("GatherObj", of(mpiv.GatherObj(ctx, world, v, 0)))
	says("Alltoall", mpiv.Alltoall(ctx, world, make([]uint64, world.Size()), make([]uint64, world.Size())))
	says("Scan", mpiv.Scan(ctx, world, v, v, mpiv.Sum))
	says("Dup", of(mpiv.Dup(ctx, world)))
	says("CreateGroup", of(mpiv.CreateGroup(ctx, world, world.Group(), 1)))
	says("Agree", of(world.Agree(ctx, 1)))
	says("Revoke", world.Revoke(ctx))
	says("Restore", world.State().Restore(ctx))
	if err := world.State().SafePoint(ctx); err != mpiv.ErrMoved { // as it is
		all = append(all, fmt.Sprintf("SafePoint = %v", err))
	}
	mpiv.Bcast(ctx, world, v, world.Size()) // a mistake of which nobody else may hear
	fmt.Printf("goes on: [%s]\n", strings.Join(all, "; "))
	return moved
}

func TestWhatIsDoneWhereARankHasLeft(t *testing.T) {
	t.Parallel()
	const ignored = "returned something else than ErrMoved where it was"
	for _, c := range []struct {
		does        string
		says, never string // on standard error
		ends        bool   // the job, for that
	}{
		{does: "returns it, and more", never: ignored},
		{does: "returns an error of its own", says: ignored + `: that is ignored" rank=1 returned="my own error"`},
		{does: "returns nil", says: ignored + `: that is ignored" rank=1 returned=<nil>`},
		{does: "ends its goroutine", says: "ended by runtime.Goexit"},
		{does: "panics", says: "rank 1: where it was before it moved: panic: what now", never: ignored, ends: true},
		{does: "never returns", never: ignored},
		{does: "goes on with what it calls", never: ignored},
	} {
		for _, survive := range []string{"moves", "crashes"} {
			t.Run(c.does+", "+survive, func(t *testing.T) {
				t.Parallel()
				tr := try(t, 3, 1, survive, "a rank that moves "+c.does)
				began := time.Now()
				moved := tr.moveRank(1)
				if c.ends { // before or after who asked for the move is told of it
					require.True(t, moved == nil || moved.Error() == "the job has ended", "%v", moved)
					require.Equal(t, 1, tr.Wait(), "said %s", tr.errs)
				} else {
					require.NoError(t, moved)
					tr.endsWell()
				}
				assert.Less(t, time.Since(began), 20*time.Second)
				require.Contains(t, tr.errs.String(), c.says)
				if c.never != "" {
					require.NotContains(t, tr.errs.String(), c.never)
				}
				if c.does == "goes on with what it calls" {
					require.Contains(t, tr.out.String(), "goes on: []\n")
				}
			})
		}
	}
}
