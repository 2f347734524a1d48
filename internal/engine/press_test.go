package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
)

// Who is pressed sends no bodies that nobody asked for over the next connection either, as long as the peer holds many; and
// does when it holds none any more.
func TestThePressOutlivesAConnection(t *testing.T) {
	const bound, size, many = 16 << 10, 1 << 10, 100
	for name, drained := range map[string]bool{"many are held": false, "none are": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, engine.Config{Keep: true, Unexpected: bound}, 1, 1)
			sent, received := 0, 0
			progress := func() {
				for _, e := range w.engines {
					e.Progress()
				}
			}
			sends := func(n int) (last engine.Request) {
				for range n {
					last = w.boxes[0].Isend(from(1, 1), pattern(size, sent), engine.Standard)
					sent++
					progress()
					progress()
				}
				return last
			}
			receive := func() {
				got := make([]byte, size)
				_, err := w.boxes[1].Recv(t.Context(), recv, from(0, 1), got)
				require.NoError(t, err)
				require.Equal(t, pattern(size, received), got)
				received++
			}
			connects := func(newer uint32) {
				require.Eventually(t, func() bool {
					progress()
					a, b := w.engines[0].Link(1), w.engines[1].Link(0)
					return a.Conn != nil && b.Conn != nil && a.Generation > newer && b.Generation > newer
				}, 20*time.Second, time.Millisecond)
			}
			held := func() int64 { return w.engines[1].Held(0).Unexpected }
			sends(1)
			connects(0)
			sends(many)
			require.Less(t, held(), int64(2*bound))
			before := w.engines[0].Link(1).Generation
			require.True(t, w.network.Cut(func(int) int { return 0 }))
			for drained && held() > 0 { // what is here is received without a look at the connection
				receive()
			}
			connects(before)
			if drained {
				require.True(t, sends(1).Finished(), "it waits for its receive")
			} else {
				sends(many)
				require.Less(t, held(), int64(2*bound))
			}
			for received < sent {
				receive()
			}
		})
	}
}
