package mpiv_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/mpiv"
)

// The line of an error is the program's, though the compiler puts what the library has for it into the program.
func TestAWrongPersistentRequestNamesTheProgramsLine(t *testing.T) {
	for _, start := range []func(*mpiv.Comm) *mpiv.Persistent{
		func(c *mpiv.Comm) *mpiv.Persistent { return mpiv.SendInit(c, []int{1}, 9, 0) },
		func(c *mpiv.Comm) *mpiv.Persistent { return mpiv.BsendInit(c, []int{1}, 0, 0) },
		func(c *mpiv.Comm) *mpiv.Persistent { return mpiv.RecvInit(c, []int{1}, 0, -9) },
	} {
		err := mpiv.Run(t.Context(), 1, mpiv.Options{}, func(ctx context.Context, world *mpiv.Comm) error {
			p := start(world)
			if err := p.Start(); err != nil {
				return err
			}
			_, err := p.Wait(ctx)
			return err
		})
		var said *mpiv.RankError
		require.ErrorAs(t, err, &said)
		require.Regexp(t, `^inlined_test\.go:`, said.Where)
	}
}
