package main

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/mpiv/mpiv/mpiv"
)

type result struct {
	steps    int
	checksum uint64
}

// serial is what solve does, on one plain array.
func serial(n int, tolerance float64) (r result) {
	now := make([][]float64, n+2)
	for i := range now {
		now[i] = make([]float64, n+2)
	}
	for j := range now[0] {
		now[0][j] = 1
	}
	for change := math.Inf(1); change > tolerance; r.steps++ {
		change = 0
		next := make([][]float64, n+2)
		for i := range next {
			next[i] = append([]float64(nil), now[i]...)
		}
		for i := 1; i <= n; i++ {
			for j := 1; j <= n; j++ {
				next[i][j] = (now[i-1][j] + now[i+1][j] + now[i][j-1] + now[i][j+1]) / 4
				change = max(change, math.Abs(next[i][j]-now[i][j]))
			}
		}
		now = next
	}
	for i := range n {
		for j := range n {
			r.checksum += math.Float64bits(now[i+1][j+1]) * uint64(2*(i*n+j)+1)
		}
	}
	return r
}

func TestAnyNumberOfRanksFindsTheSame(t *testing.T) {
	for _, n := range []int{9, 37} {
		want := serial(n, 1e-3)
		if want.steps < 50 {
			t.Fatalf("%d x %d points need %d steps: too few to mean anything", n, n, want.steps)
		}
		for _, size := range []int{1, 2, 4, 6, 7, 9} {
			err := mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
				steps, checksum, err := solve(ctx, world, n, 1e-3)
				if got := (result{steps, checksum}); err == nil && got != want {
					err = fmt.Errorf("solve(%d points) by rank %d of %d = %+v, want %+v", n, world.Rank(), size, got, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
}

func TestTooManyRanks(t *testing.T) {
	err := mpiv.Run(t.Context(), 5, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
		_, _, err := solve(ctx, world, 4, 1e-3)
		return err
	})
	if err == nil {
		t.Error("solve(4 points) by 5 x 1 ranks = nil, want an error")
	}
}
