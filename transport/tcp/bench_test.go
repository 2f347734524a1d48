//go:build linux

package tcp_test

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func BenchmarkTCP(b *testing.B) {
	transporttest.Bench(b, func(b *testing.B) transport.Endpoint { return listen(b, tcp.Options{}) })
}

// counter counts what arrives, in one place.
type counter struct {
	buf []byte
	n   int
}

func (c *counter) Place(_ []byte, n int) []byte { return c.buf[:n] }
func (c *counter) Arrived(_, _ []byte)          { c.n++ }
func (c *counter) Pulled(uint64, error)         {}

// stream sends b.N messages and waits until the other end has them all.
func stream(b *testing.B, bulk bool, size, flushEvery int) {
	near, far := pair(b, tcp.Options{}, tcp.Options{})
	arrived := make(chan error, 1)
	n := b.N
	go func() {
		in := &counter{buf: make([]byte, far.MaxBody())}
		for in.n < n {
			if _, err := far.Poll(in); err != nil {
				arrived <- err
				return
			}
		}
		arrived <- nil
	}()
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size), Bulk: bulk}
	none := new(counter)
	b.SetBytes(int64(size))
	b.ResetTimer()
	for i := range n {
		for {
			err := near.Send(m)
			if err == nil {
				break
			}
			if !errors.Is(err, transport.ErrFull) {
				b.Fatal(err)
			}
			near.Poll(none)
		}
		if i%flushEvery == flushEvery-1 {
			near.Flush()
		}
	}
	for near.Flush() == nil && len(arrived) == 0 {
		runtime.Gosched()
	}
	require.NoError(b, <-arrived)
}

// BenchmarkStream is bulk in one direction, as fast as it goes.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{32 << 10, 64 << 10, 128 << 10, 256 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) { stream(b, true, size, 1) })
	}
}

// BenchmarkRate is messages of 8 bytes, of which 64 leave together.
func BenchmarkRate(b *testing.B) {
	stream(b, false, 8, 64)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}
