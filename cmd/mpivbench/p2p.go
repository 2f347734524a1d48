package main

import (
	"context"
	"sync"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const (
	tagData  = 1
	tagReply = 2

	ackBytes = 4 // of the answer to a window
)

// micros is how long each of n took, of d together.
func micros(d time.Duration, n int) float64 { return d.Seconds() * 1e6 / float64(n) }

func latency(ctx context.Context, r *run) ([]float64, error) {
	peer, out, in := 1-r.world.Rank(), r.out[:r.size], r.in[:r.size]
	step := ping
	if r.world.Rank() != 0 {
		step = pong
	}
	var start time.Time
	for i := range r.warmup + r.iters {
		if i == r.warmup {
			start = time.Now()
		}
		if err := step(ctx, r.world, out, in, peer, tagData); err != nil {
			return nil, err
		}
		if err := r.next(ctx, i); err != nil {
			return nil, err
		}
	}
	return []float64{micros(time.Since(start), 2*r.iters)}, nil
}

// ping sends out and receives the answer, which has the tag reply.
func ping(ctx context.Context, c *mpiv.Comm, out, in []byte, peer, reply int) error {
	if err := mpiv.Send(ctx, c, out, peer, tagData); err != nil {
		return err
	}
	_, err := mpiv.Recv(ctx, c, in, peer, reply)
	return err
}

// pong receives a message and answers with out, under the tag reply.
func pong(ctx context.Context, c *mpiv.Comm, out, in []byte, peer, reply int) error {
	if _, err := mpiv.Recv(ctx, c, in, peer, tagData); err != nil {
		return err
	}
	return mpiv.Send(ctx, c, out, peer, reply)
}

func latencyMT(ctx context.Context, r *run) ([]float64, error) {
	if r.world.Rank() != 0 {
		return nil, r.answerAll(ctx)
	}
	out, in := r.out[:r.size], r.in[:r.size]
	var start time.Time
	for i := range r.warmup + r.iters {
		if i == r.warmup {
			start = time.Now()
		}
		if err := ping(ctx, r.world, out, in, 1, tagReply); err != nil {
			return nil, err
		}
	}
	return []float64{micros(time.Since(start), 2*r.iters)}, nil
}

// answerAll answers with r.threads goroutines. Their shares add up to the
// messages that rank 0 sends, so every one of them ends.
func (r *run) answerAll(ctx context.Context) error {
	total := r.warmup + r.iters
	errs := make(chan error, r.threads)
	var answering sync.WaitGroup
	for t := range r.threads {
		share := total / r.threads
		if t < total%r.threads {
			share++
		}
		answering.Go(func() { errs <- r.answer(ctx, share) })
	}
	answering.Wait()
	for range r.threads {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func (r *run) answer(ctx context.Context, messages int) error {
	out, in := r.out[:r.size], make([]byte, r.size)
	for range messages {
		if err := pong(ctx, r.world, out, in, 0, tagReply); err != nil {
			return err
		}
	}
	return nil
}

func bw(ctx context.Context, r *run) ([]float64, error) {
	d, err := r.stream(ctx, 1-r.world.Rank(), r.world.Rank() == 0)
	return []float64{r.messages() * float64(r.size) / 1e6 / d.Seconds()}, err
}

func mbwMR(ctx context.Context, r *run) ([]float64, error) {
	pairs, rank := r.world.Size()/2, r.world.Rank()
	peer, sending := rank+pairs, rank < pairs
	if !sending {
		peer = rank - pairs
	}
	d, err := r.stream(ctx, peer, sending)
	if err != nil {
		return nil, err
	}
	if !sending {
		d = 0
	}
	sum, err := total(ctx, r.world, d)
	rate := float64(pairs) * r.messages() / (sum / float64(pairs))
	return []float64{rate * float64(r.size) / 1e6, rate}, err
}

// messages is how many one rank sends in all timed windows.
func (r *run) messages() float64 { return float64(r.iters) * float64(r.window) }

// stream sends windows from one rank of a pair to the other. How long it took
// counts on the sender.
func (r *run) stream(ctx context.Context, peer int, sending bool) (time.Duration, error) {
	window := r.receiveWindow
	if sending {
		window = r.sendWindow
	}
	var start time.Time
	for i := range r.warmup + r.iters {
		if i == r.warmup {
			start = time.Now()
		}
		if err := window(ctx, peer); err != nil {
			return 0, err
		}
		if err := r.next(ctx, i); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (r *run) sendWindow(ctx context.Context, peer int) error {
	reqs, out := r.reqs[:r.window], r.out[:r.size]
	for i := range reqs {
		reqs[i] = mpiv.Isend(r.world, out, peer, tagData)
	}
	if err := mpiv.Waitall(ctx, reqs, nil); err != nil {
		return err
	}
	_, err := mpiv.Recv(ctx, r.world, r.in[:ackBytes], peer, tagReply)
	return err
}

func (r *run) receiveWindow(ctx context.Context, peer int) error {
	reqs, in := r.reqs[:r.window], r.in[:r.size]
	for i := range reqs {
		reqs[i] = mpiv.Irecv(r.world, in, peer, tagData)
	}
	if err := mpiv.Waitall(ctx, reqs, nil); err != nil {
		return err
	}
	return mpiv.Send(ctx, r.world, r.out[:ackBytes], peer, tagReply)
}

func bibw(ctx context.Context, r *run) ([]float64, error) {
	peer := 1 - r.world.Rank()
	var start time.Time
	for i := range r.warmup + r.iters {
		if i == r.warmup {
			start = time.Now()
		}
		if err := r.exchangeWindow(ctx, peer); err != nil {
			return nil, err
		}
		if err := r.next(ctx, i); err != nil {
			return nil, err
		}
	}
	return []float64{2 * r.messages() * float64(r.size) / 1e6 / time.Since(start).Seconds()}, nil
}

func (r *run) exchangeWindow(ctx context.Context, peer int) error {
	out, in := r.out[:r.size], r.in[:r.size]
	receives, sends := r.reqs[:r.window], r.reqs[r.window:]
	for i := range receives {
		receives[i] = mpiv.Irecv(r.world, in, peer, tagData)
	}
	for i := range sends {
		sends[i] = mpiv.Isend(r.world, out, peer, tagData)
	}
	return mpiv.Waitall(ctx, r.reqs, nil)
}
