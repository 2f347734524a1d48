//go:build linux

package door

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Of a head's addresses the first that answers counts, and an address is ahead of those after it.
func TestInTurn(t *testing.T) {
	const v4, second, v6 = "10.1.0.1:7", "10.2.0.1:7", "[fd00::1]:7"
	type answer struct {
		after time.Duration
		err   error
	}
	refused := errors.New("refused")
	never := answer{after: time.Hour}
	for name, c := range map[string]struct {
		addrs   []string
		answers map[string]answer
		want    string // none: it fails
		after   time.Duration
	}{
		"all answer":                   {[]string{v4, second}, map[string]answer{v4: {after: headStart / 2}, second: {}}, v4, headStart / 2},
		"the first does not":           {[]string{v4, second}, map[string]answer{v4: never, second: {}}, second, headStart},
		"the first is late":            {[]string{v4, second}, map[string]answer{v4: {after: 2 * headStart}, second: never}, v4, 2 * headStart},
		"the first refuses":            {[]string{v4, second}, map[string]answer{v4: {time.Millisecond, refused}, second: {}}, second, time.Millisecond},
		"the other version comes last": {[]string{v4, v6, second}, map[string]answer{v4: never, v6: {}, second: {after: headStart / 2}}, second, 3 * headStart / 2},
		"all refuse":                   {[]string{v4, second}, map[string]answer{v4: {0, refused}, second: {0, refused}}, "", 0},
		"nobody answers":               {[]string{v4, second}, map[string]answer{v4: never, second: never}, "", time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				began := time.Now()
				var late []string
				got, err := InTurn(ctx, c.addrs, func(ctx context.Context, addr string) (string, error) {
					a := c.answers[addr]
					select {
					case <-time.After(a.after):
						return addr, a.err
					case <-ctx.Done():
						return "", ctx.Err()
					}
				}, func(addr string) { late = append(late, addr) })
				require.Equal(t, c.after, time.Since(began))
				require.Equal(t, c.want, got)
				require.Equal(t, c.want == "", err != nil, "%v", err)
				require.Empty(t, late)
			})
		})
	}
}

// Who answers when another has done so already is given back.
func TestInTurnGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var back []string
		got, err := InTurn(ctx, []string{"first", "second"}, func(_ context.Context, addr string) (string, error) {
			if addr == "first" {
				time.Sleep(3 * headStart)
			}
			return addr, nil
		}, func(addr string) { back = append(back, addr) })
		require.NoError(t, err)
		require.Equal(t, "second", got)
		stop()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, []string{"first"}, back)
	})
}
