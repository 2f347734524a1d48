//go:build linux

package shm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/shm"
	"github.com/mpiv/mpiv/transport/transporttest"
)

var names atomic.Int64

// private is a new directory that is closed to others.
func private(t testing.TB) string {
	dir := filepath.Join(t.TempDir(), "s")
	require.NoError(t, os.Mkdir(dir, 0o700))
	return dir
}

func listen(t testing.TB, dir string, o shm.Options) *rdma.Endpoint {
	d, err := shm.Listen(filepath.Join(dir, fmt.Sprint(names.Add(1))), o)
	require.NoError(t, err)
	return rdma.New(d)
}

func TestContract(t *testing.T) {
	for _, mode := range []struct {
		name string
		opt  shm.Options
	}{{"reads", shm.Options{}}, {"no reads", shm.Options{NoReads: true}}, {"no barriers", shm.Options{NoBarriers: true}}} {
		t.Run(mode.name, func(t *testing.T) {
			dir := private(t)
			transporttest.Run(t, func(t *testing.T) transport.Endpoint {
				e := listen(t, dir, mode.opt)
				t.Cleanup(func() { e.Close() }) // Run does not when it skips
				return e
			})
		})
	}
}

func BenchmarkConn(b *testing.B) {
	dir := private(b)
	transporttest.Bench(b, func(b *testing.B) transport.Endpoint { return listen(b, dir, shm.Options{}) })
}

func context5() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 5*time.Second)
}
