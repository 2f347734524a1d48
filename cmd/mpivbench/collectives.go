package main

import (
	"context"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

func barrier(ctx context.Context, r *run) ([]float64, error) {
	call := func() error { return mpiv.Barrier(ctx, r.world) }
	return r.timeCalls(ctx, call, func() error { return nil })
}

// timeApart times call, with an untimed barrier behind each.
func (r *run) timeApart(ctx context.Context, call func() error) ([]float64, error) {
	return r.timeCalls(ctx, call, func() error { return mpiv.Barrier(ctx, r.world) })
}

// timeCalls is the time of call, averaged over calls and ranks; after is
// called behind each, outside the clock.
func (r *run) timeCalls(ctx context.Context, call, after func() error) ([]float64, error) {
	var spent time.Duration
	epoch := time.Now() // time.Since reads one clock, time.Now two
	for i := range r.warmup + r.iters {
		start := time.Since(epoch)
		if err := call(); err != nil {
			return nil, err
		}
		if err := r.next(ctx, i); err != nil {
			return nil, err
		}
		if i >= r.warmup {
			spent += time.Since(epoch) - start
		}
		if err := after(); err != nil {
			return nil, err
		}
	}
	sum, err := total(ctx, r.world, spent)
	return []float64{sum * 1e6 / float64(r.iters) / float64(r.world.Size())}, err
}

// timeRequests is the time of start and of the wait for the request that it returns, averaged
// over calls and ranks; and what remains of that beside computing, if the rank computes for
// as long between the two.
func (r *run) timeRequests(ctx context.Context, start func() mpiv.Request) ([]float64, error) {
	var alone time.Duration
	call := func() error {
		req := start()
		compute(alone)
		_, err := req.Wait(ctx)
		return err
	}
	figures, err := r.timeApart(ctx, call)
	if err == nil {
		err = mpiv.Bcast(ctx, r.world, figures, 0)
	}
	if err != nil {
		return nil, err
	}
	alone = time.Duration(figures[0] * 1e3)
	beside, err := r.timeApart(ctx, call)
	if err != nil {
		return nil, err
	}
	return append(figures, beside[0]-alone.Seconds()*1e6), nil
}

// compute uses the core for so long.
func compute(d time.Duration) {
	if d <= 0 {
		return
	}
	for start := time.Now(); time.Since(start) < d; {
	}
}

// total is the seconds of all ranks together, on rank 0.
func total(ctx context.Context, c *mpiv.Comm, d time.Duration) (float64, error) {
	sum := []float64{0}
	err := mpiv.Reduce(ctx, c, []float64{d.Seconds()}, sum, mpiv.Sum[float64], 0)
	return sum[0], err
}

func bcast(ctx context.Context, r *run) ([]float64, error) {
	data := r.out[:r.size]
	return r.timeApart(ctx, func() error { return mpiv.Bcast(ctx, r.world, data, 0) })
}

func reduce(ctx context.Context, r *run) ([]float64, error) {
	in, out := floats(r.out[:r.size]), floats(r.in[:r.size])
	return r.timeApart(ctx, func() error { return mpiv.Reduce(ctx, r.world, in, out, mpiv.Sum[float32], 0) })
}

func allreduce(ctx context.Context, r *run) ([]float64, error) {
	in, out := floats(r.out[:r.size]), floats(r.in[:r.size])
	return r.timeApart(ctx, func() error { return mpiv.Allreduce(ctx, r.world, in, out, mpiv.Sum[float32]) })
}

func gather(ctx context.Context, r *run) ([]float64, error) {
	in, out := r.out[:r.size], r.in[:r.size*r.world.Size()]
	return r.timeApart(ctx, func() error { return mpiv.Gather(ctx, r.world, in, out, 0) })
}

func scatter(ctx context.Context, r *run) ([]float64, error) {
	in, out := r.out[:r.size*r.world.Size()], r.in[:r.size]
	return r.timeApart(ctx, func() error { return mpiv.Scatter(ctx, r.world, in, out, 0) })
}

func allgather(ctx context.Context, r *run) ([]float64, error) {
	in, out := r.out[:r.size], r.in[:r.size*r.world.Size()]
	return r.timeApart(ctx, func() error { return mpiv.Allgather(ctx, r.world, in, out) })
}

func alltoall(ctx context.Context, r *run) ([]float64, error) {
	blocks := r.size * r.world.Size()
	in, out := r.out[:blocks], r.in[:blocks]
	return r.timeApart(ctx, func() error { return mpiv.Alltoall(ctx, r.world, in, out) })
}

func ibarrier(ctx context.Context, r *run) ([]float64, error) {
	return r.timeRequests(ctx, func() mpiv.Request { return mpiv.Ibarrier(ctx, r.world) })
}

func iallreduce(ctx context.Context, r *run) ([]float64, error) {
	in, out := floats(r.out[:r.size]), floats(r.in[:r.size])
	return r.timeRequests(ctx, func() mpiv.Request { return mpiv.Iallreduce(ctx, r.world, in, out, mpiv.Sum[float32]) })
}

func ialltoall(ctx context.Context, r *run) ([]float64, error) {
	blocks := r.size * r.world.Size()
	in, out := r.out[:blocks], r.in[:blocks]
	return r.timeRequests(ctx, func() mpiv.Request { return mpiv.Ialltoall(ctx, r.world, in, out) })
}
