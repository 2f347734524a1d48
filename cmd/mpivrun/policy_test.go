package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// feed has rank 0 send blocks of 1 MB to rank 1, which says each 100 ms how much has come,
// for as many seconds as it is told.
func feed(ctx context.Context, world *mpiv.Comm) error {
	seconds, _ := strconv.Atoi(os.Args[1])
	block := make([]byte, 1_000_000)
	n, got, last := 0, 0, time.Now()
	state := world.State()
	state.Protect("n", &n)
	if err := state.Restore(ctx); err != nil {
		return err
	}
	began := time.Now()
	more := []byte{1}
	for ; more[0] == 1; n++ {
		if err := state.SafePoint(ctx); err != nil {
			return err
		}
		switch world.Rank() {
		case 0:
			block[0] = byte(n)
			if err := mpiv.Send(ctx, world, block, 1, 1); err != nil {
				return err
			}
			if _, err := mpiv.Recv(ctx, world, more, 1, 2); err != nil {
				return err
			}
		case 1:
			if _, err := mpiv.Recv(ctx, world, block, 0, 1); err != nil {
				return err
			}
			if block[0] != byte(n) {
				return fmt.Errorf("block %d is number %d", n, block[0])
			}
			if time.Since(began) > time.Duration(seconds)*time.Second {
				more[0] = 0
			}
			if err := mpiv.Send(ctx, world, more, 0, 2); err != nil {
				return err
			}
			got += len(block)
			if passed := time.Since(last); passed >= 100*time.Millisecond {
				fmt.Printf("%s %.2f MB/s\n", time.Now().Format("15:04:05.000"), float64(got)/1e6/passed.Seconds())
				got, last = 0, time.Now()
			}
		default:
			return nil
		}
	}
	if world.Rank() == 1 {
		fmt.Println("blocks in order")
	}
	return nil
}
