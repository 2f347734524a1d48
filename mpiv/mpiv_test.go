package mpiv

import (
	"context"
	"fmt"
	"testing"
)

func TestRingInOneProcess(t *testing.T) {
	for _, size := range []int{1, 2, 4, 100} {
		err := Run(t.Context(), size, Options{}, func(ctx context.Context, world *Comm) error {
			v := []int{world.Rank()}
			right, left := (world.Rank()+1)%world.Size(), (world.Rank()-1+world.Size())%world.Size()
			for range world.Size() {
				if _, err := SendrecvReplace(ctx, world, v, right, 1, left, 1); err != nil {
					return err
				}
			}
			if v[0] != world.Rank() {
				return fmt.Errorf("token is %d after a whole round", v[0])
			}
			return Barrier(ctx, world)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
