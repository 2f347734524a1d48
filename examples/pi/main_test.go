package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/mpiv/mpiv/mpiv"
)

// serial is the same area, computed in one go.
func serial(slices int) float64 {
	sum := 0.
	for i := range slices {
		x := (float64(i) + 0.5) / float64(slices)
		sum += 4 / (1 + x*x)
	}
	return sum / float64(slices)
}

func TestAreaIsThatOfOneRank(t *testing.T) {
	for _, size := range []int{1, 2, 3, 8} {
		for _, slices := range []int{1, 5, 100_000} {
			err := mpiv.Run(t.Context(), size, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
				got, err := integrate(ctx, world, int64(slices))
				want := serial(slices)
				if world.Rank() != 0 {
					want = 0
				}
				if err == nil && math.Abs(got-want) > 1e-13 {
					err = fmt.Errorf("integrate(%d) by rank %d of %d = %.15f, want %.15f", slices, world.Rank(), size, got, want)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		}
	}
	if off := math.Abs(serial(100_000) - math.Pi); off > 1e-10 {
		t.Errorf("the area is off π by %g", off)
	}
}

func TestArguments(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	for args, ok := range map[string]bool{"1000": true, "0": false, "many": false, "10 20": false} {
		os.Args = append([]string{"pi"}, strings.Fields(args)...)
		err := mpiv.Run(t.Context(), 3, mpiv.Options{}, run)
		exit, usage := errors.AsType[*mpiv.ExitError](err)
		if (err == nil) != ok || !ok && (!usage || exit.Code != 2) {
			t.Errorf("pi %s: %v", args, err)
		}
	}
}
