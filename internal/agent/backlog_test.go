package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Who takes gets all there is, once, and ends when there will be nothing.
func TestBacklog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, done := newBacklog[int](), make(chan struct{})
		q.add(1)
		q.add(2, 3)
		require.Equal(t, []int{1, 2, 3}, q.take(done))
		time.AfterFunc(time.Second, func() { q.add(4) })
		require.Equal(t, []int{4}, q.take(done), "there was a word of what had been taken")
		time.AfterFunc(time.Second, func() { close(done) })
		require.Nil(t, q.take(done))
	})
}
