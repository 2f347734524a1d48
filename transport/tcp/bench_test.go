//go:build linux

package tcp_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
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

func (c *counter) Place(_ []byte, n int) []byte     { return c.buf[:n] }
func (c *counter) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *counter) Arrived(_, _ []byte)              { c.n++ }
func (c *counter) Pulled(uint64, error)             {}

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
	for _, size := range []int{64 << 10, 256 << 10, 512 << 10} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) { stream(b, true, size, 1) })
	}
}

// BenchmarkMiB is half the round trip of 1 MiB, sent as bulk.
func BenchmarkMiB(b *testing.B) {
	near, far := pair(b, tcp.Options{}, tcp.Options{})
	body := make([]byte, near.MaxBody())
	parts := 1 << 20 / len(body)
	turns := b.N
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: body, Bulk: true}
	give := func(c transport.Conn, in *counter) {
		for range parts {
			for c.Send(m) != nil {
				c.Poll(in)
			}
		}
	}
	take := func(c transport.Conn, in *counter, n int) {
		for in.n < n {
			if _, err := c.Poll(in); err != nil {
				panic(err)
			}
		}
	}
	var echo sync.WaitGroup
	echo.Go(func() {
		in := &counter{buf: make([]byte, len(body))}
		for i := range turns {
			take(far, in, (i+1)*parts)
			give(far, in)
		}
	})
	in := &counter{buf: make([]byte, len(body))}
	b.SetBytes(2 << 20)
	b.ResetTimer()
	for i := range turns {
		give(near, in)
		take(near, in, (i+1)*parts)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half-rtt")
	echo.Wait()
}

// BenchmarkRate is messages of 8 bytes, of which 64 leave together.
func BenchmarkRate(b *testing.B) {
	stream(b, false, 8, 64)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mmsg/s")
}
