//go:build linux

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const roleStrangers = "rank-strangers"

const (
	tagMeet     = 6
	streamBytes = 256 << 10
	streamDeep  = 8 // messages under way
	lookEach    = 500 * time.Millisecond
)

// strangersRank is the program of strangers: rank 0 sends to rank 1 without a break,
// until its input ends. The n-th of the arguments is after how long rank 2 + n first
// says a word to rank 0. They print
//
//	rate BYTES/S      rank 1, each half second
//	met N MS          rank 2 + N: its word was received, after so long
//	toll …            rank 1, at the end
func strangersRank(args []string) error {
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		if world.Size() != 2+len(args) {
			return fmt.Errorf("started with %d ranks, want %d", world.Size(), 2+len(args))
		}
		switch rank := world.Rank(); rank {
		case 0:
			return both(ctx, func(ctx context.Context) error { return stream(ctx, world) }, func(ctx context.Context) error {
				for n := range args {
					if _, err := mpiv.Recv(ctx, world, []byte{}, 2+n, tagMeet); err != nil {
						return err
					}
				}
				return nil
			})
		case 1:
			return drain(ctx, world)
		default:
			after, err := time.ParseDuration(args[rank-2])
			if err != nil {
				return err
			}
			time.Sleep(after)
			begun := time.Now()
			if err := mpiv.Ssend(ctx, world, []byte{}, 0, tagMeet); err != nil {
				return err
			}
			fmt.Printf("met %d %d\n", rank-2, time.Since(begun).Milliseconds())
			return nil
		}
	})
	return nil
}

func stream(ctx context.Context, world *mpiv.Comm) error {
	stop := untilInputEnds()
	var reqs [streamDeep]mpiv.Request
	var bufs [streamDeep][]byte
	for i := range bufs {
		bufs[i] = make([]byte, streamBytes)
	}
	k := uint64(0)
	for ; ; k++ {
		select {
		case <-stop:
			if err := mpiv.Waitall(ctx, reqs[:], nil); err != nil {
				return err
			}
			if err := mpiv.Send(ctx, world, []byte{}, 1, tagData); err != nil {
				return err
			}
			return mpiv.Send(ctx, world, []uint64{k}, 1, tagCount)
		default:
		}
		i := k % streamDeep
		if err := mpiv.Waitall(ctx, reqs[i:i+1], nil); err != nil {
			return err
		}
		fill(bufs[i], mix(k))
		reqs[i] = mpiv.Isend(world, bufs[i], 1, tagData)
	}
}

func drain(ctx context.Context, world *mpiv.Comm) error {
	var mu sync.Mutex
	got, came := int64(0), time.Now() // bytes, and when the last of them came
	ended := make(chan struct{})
	return both(ctx, func(ctx context.Context) error {
		tick := time.NewTicker(lookEach)
		defer tick.Stop()
		last, at := int64(0), came
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ended:
				return nil
			case <-tick.C:
				mu.Lock()
				n, now := got, came
				mu.Unlock()
				rate := 0.0
				if n > last {
					// From message to message: to count them by the clock would
					// make steps of 2 %.
					rate = float64(n-last) / now.Sub(at).Seconds()
				}
				fmt.Printf("rate %.0f\n", rate)
				last, at = n, now
			}
		}
	}, func(ctx context.Context) error {
		defer close(ended)
		var t tally
		into, want := make([]byte, streamBytes), make([]byte, streamBytes)
		for {
			s, err := mpiv.Recv(ctx, world, into, 0, tagData)
			if err != nil {
				return err
			}
			if s.Count == 0 {
				break
			}
			mu.Lock()
			got, came = got+int64(s.Count), time.Now()
			mu.Unlock()
			if fill(want, mix(t.next)); string(into[:s.Count]) != string(want) {
				t.wrong++
			}
			t.saw(t.next)
		}
		sent := []uint64{0}
		if _, err := mpiv.Recv(ctx, world, sent, 0, tagCount); err != nil {
			return err
		}
		fmt.Println(t.toll(sent[0]))
		return nil
	})
}
