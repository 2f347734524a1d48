//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const roleCuts = "rank-cuts"

const (
	tagData = 4
	tagStop = 5

	cutsPause = 8 * time.Millisecond // between two messages of a pair, at most
)

// cutsRank is the program of cuts: every rank sends to every other what pair says,
// with short pauses, and compares what comes, until the input of rank 0 ends. Each
// prints its toll.
func cutsRank(args []string) error {
	if len(args) != 1 {
		return errors.New("want the seed")
	}
	seed, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil {
		return err
	}
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		stop := make(chan struct{})
		var got toll
		err := both(ctx,
			func(ctx context.Context) error { defer close(stop); return awaitStop(ctx, world) },
			func(ctx context.Context) error {
				return both(ctx,
					func(ctx context.Context) error { return sendAll(ctx, world, seed, stop) },
					func(ctx context.Context) (err error) { got, err = receiveAll(ctx, world, seed); return err })
			})
		if err != nil {
			return err
		}
		fmt.Println(got)
		return nil
	})
	return nil
}

// awaitStop returns when rank 0 says so, which does when its input ends.
func awaitStop(ctx context.Context, world *mpiv.Comm) error {
	if world.Rank() != 0 {
		_, err := mpiv.Recv(ctx, world, []byte{}, 0, tagStop)
		return err
	}
	select {
	case <-untilInputEnds():
	case <-ctx.Done():
		return ctx.Err()
	}
	for to := 1; to < world.Size(); to++ {
		if err := mpiv.Send(ctx, world, []byte{}, to, tagStop); err != nil {
			return err
		}
	}
	return nil
}

// eachPeer calls f for every other rank, on a goroutine each.
func eachPeer(ctx context.Context, world *mpiv.Comm, f func(ctx context.Context, peer int) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, world.Size())
	for peer := range world.Size() {
		if peer == world.Rank() {
			continue
		}
		wg.Go(func() {
			if errs[peer] = f(ctx, peer); errs[peer] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func sendAll(ctx context.Context, world *mpiv.Comm, seed uint64, stop <-chan struct{}) error {
	return eachPeer(ctx, world, func(ctx context.Context, to int) error {
		p := pair{seed, world.Rank(), to}
		buf := make([]byte, largestMessage)
		for k := uint64(0); ; k++ {
			select {
			case <-stop: // an empty message, and how many there were before it
				if err := mpiv.Send(ctx, world, []byte{}, to, tagData); err != nil {
					return err
				}
				return mpiv.Send(ctx, world, []uint64{k}, to, tagCount)
			case <-time.After(rand.N(cutsPause)):
			}
			if err := mpiv.Send(ctx, world, p.message(k, buf), to, tagData); err != nil {
				return err
			}
		}
	})
}

func receiveAll(ctx context.Context, world *mpiv.Comm, seed uint64) (all toll, err error) {
	var mu sync.Mutex // guards all
	err = eachPeer(ctx, world, func(ctx context.Context, from int) error {
		p := pair{seed, from, world.Rank()}
		var t tally
		into, spare := make([]byte, largestMessage), make([]byte, largestMessage)
		for {
			s, err := mpiv.Recv(ctx, world, into, from, tagData)
			if err != nil {
				return err
			}
			if s.Count == 0 {
				break
			}
			p.check(&t, into[:s.Count], spare)
		}
		sent := []uint64{0}
		if _, err := mpiv.Recv(ctx, world, sent, from, tagCount); err != nil {
			return err
		}
		mu.Lock()
		all.add(t.toll(sent[0]))
		mu.Unlock()
		return nil
	})
	return all, err
}
