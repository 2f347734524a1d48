//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

const roleFailover = "rank-failover"

// Tags of the rank programs.
const (
	tagBig   = 1
	tagSmall = 2
	tagCount = 3
)

const (
	bigBytes   = 64 << 20
	smallBytes = 16               // a number and the time it was sent
	smallPause = time.Millisecond // from one small message to the next
	quietPause = 15 * time.Millisecond
)

// failoverRank is the program of failover: rank 0 sends messages of 64 MB without a
// break and, beside them, a small one each millisecond, until its input ends. Rank 1
// compares what comes. They print
//
//	big K START END     rank 0: when the K-th was begun and done, in nanoseconds since 1970
//	gap START LASTED    rank 1: no small message came for more than quietPause
//	toll …              rank 1, at the end: small and big messages together
func failoverRank([]string) error {
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		if world.Size() != 2 {
			return fmt.Errorf("started with %d ranks, want 2", world.Size())
		}
		if world.Rank() == 0 {
			return failoverSend(ctx, world)
		}
		return failoverReceive(ctx, world)
	})
	return nil
}

// untilInputEnds returns a channel that is closed when nobody writes to this
// process any more. Its goroutine ends then, or with the process.
func untilInputEnds() <-chan struct{} {
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return stop
}

// both runs two halves of a rank and returns when both have.
func both(ctx context.Context, f, g func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 2)
	for i, half := range []func(context.Context) error{f, g} {
		wg.Go(func() {
			if errs[i] = half(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func failoverSend(ctx context.Context, world *mpiv.Comm) error {
	stop := untilInputEnds()
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	var bigs, smalls uint64
	err := both(ctx, func(ctx context.Context) error {
		b, next := make([]byte, bigBytes), make([]byte, bigBytes)
		fill(b, mix(bigs))
		for ; !stopped(); bigs++ {
			begun := time.Now()
			sent := mpiv.Isend(world, b, 1, tagBig)
			fill(next, mix(bigs+1)) // meanwhile, so that one is always under way
			if err := mpiv.Waitall(ctx, []mpiv.Request{sent}, nil); err != nil {
				return err
			}
			fmt.Printf("big %d %d %d\n", bigs, begun.UnixNano(), time.Now().UnixNano())
			b, next = next, b
		}
		return mpiv.Send(ctx, world, []byte{}, 1, tagBig)
	}, func(ctx context.Context) error {
		b := make([]byte, smallBytes)
		for ; !stopped(); smalls++ {
			binary.LittleEndian.PutUint64(b, smalls)
			binary.LittleEndian.PutUint64(b[8:], uint64(time.Now().UnixNano()))
			if err := mpiv.Send(ctx, world, b, 1, tagSmall); err != nil {
				return err
			}
			time.Sleep(smallPause)
		}
		return mpiv.Send(ctx, world, []byte{}, 1, tagSmall)
	})
	if err != nil {
		return err
	}
	return mpiv.Send(ctx, world, []uint64{bigs, smalls}, 1, tagCount)
}

func failoverReceive(ctx context.Context, world *mpiv.Comm) error {
	var big, small tally
	err := both(ctx, func(ctx context.Context) error {
		into, want := make([]byte, bigBytes), make([]byte, bigBytes)
		for {
			s, err := mpiv.Recv(ctx, world, into, 0, tagBig)
			if err != nil || s.Count == 0 {
				return err
			}
			got := into[:s.Count]
			if fill(want, mix(big.next)); bytes.Equal(got, want) {
				big.saw(big.next)
				continue
			}
			big.wrong++ // also if it is another one of them, whole
			big.next++
		}
	}, func(ctx context.Context) error {
		b := make([]byte, smallBytes)
		heard := time.Now()
		for {
			s, err := mpiv.Recv(ctx, world, b, 0, tagSmall)
			if err != nil || s.Count == 0 {
				return err
			}
			now := time.Now()
			if d := now.Sub(heard); d > quietPause {
				fmt.Printf("gap %d %d\n", heard.UnixNano(), d)
			}
			heard = now
			if s.Count != smallBytes {
				small.wrong++
				continue
			}
			small.saw(binary.LittleEndian.Uint64(b))
		}
	})
	if err != nil {
		return err
	}
	sent := make([]uint64, 2)
	if _, err := mpiv.Recv(ctx, world, sent, 0, tagCount); err != nil {
		return err
	}
	all := big.toll(sent[0])
	all.add(small.toll(sent[1]))
	fmt.Println(all)
	return nil
}
