//go:build linux

package tcp_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
)

// An echo is a pair of connections of which the far one answers each message
// with one of the same size, while it is on.
type echo struct {
	near, far transport.Conn
	in        *counter
	m         transport.Message
}

func newEcho(b *testing.B, size int, x, y tcp.Options) *echo {
	near, far := pair(b, x, y)
	return &echo{near, far, &counter{buf: make([]byte, near.MaxBody())},
		transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, size)}}
}

// turns makes n round trips and appends the half of each.
func (e *echo) turns(n int, halves []time.Duration) []time.Duration {
	var other sync.WaitGroup
	other.Go(func() {
		in := &counter{buf: make([]byte, e.far.MaxBody())}
		for sent := 0; sent < n; sent++ {
			for in.n == sent {
				must(e.far.Poll(in))
			}
			give(e.far, e.m, in)
		}
	})
	for range n {
		start := time.Now()
		want := e.in.n + 1
		give(e.near, e.m, e.in)
		for e.in.n < want {
			must(e.near.Poll(e.in))
		}
		halves = append(halves, time.Since(start)/2)
	}
	other.Wait()
	return halves
}

func give(c transport.Conn, m transport.Message, in transport.Receiver) {
	for c.Send(m) != nil {
		must(c.Poll(in))
	}
	if err := c.Flush(); err != nil {
		panic(err)
	}
}

func must(_ bool, err error) {
	if err != nil {
		panic(err)
	}
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds())
}

// BenchmarkTLSLatency is half a round trip in clear and within TLS, by turns: the
// medians, and their difference.
func BenchmarkTLSLatency(b *testing.B) {
	for _, size := range []int{8, 1 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			member := members(b)
			clear := newEcho(b, size, tcp.Options{}, tcp.Options{})
			sealed := newEcho(b, size, tcp.Options{TLS: member()}, tcp.Options{TLS: member()})
			var inClear, inTLS []time.Duration
			for b.Loop() {
				inClear = clear.turns(100, inClear)
				inTLS = sealed.turns(100, inTLS)
			}
			c, s := median(inClear), median(inTLS)
			b.ReportMetric(c, "clear-ns")
			b.ReportMetric(s, "tls-ns")
			b.ReportMetric(s-c, "more-ns")
		})
	}
}

// BenchmarkTLSWork is one message's way with one thread at both ends, in clear and
// within TLS, by turns: what TLS adds to it, whatever else the machine does.
func BenchmarkTLSWork(b *testing.B) {
	for _, size := range []int{8, 1 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			member := members(b)
			clear := newEcho(b, size, tcp.Options{}, tcp.Options{})
			sealed := newEcho(b, size, tcp.Options{TLS: member()}, tcp.Options{TLS: member()})
			var ways [2][]time.Duration
			for b.Loop() {
				for i, e := range []*echo{clear, sealed} {
					for range 50 {
						start := time.Now()
						e.way()
						ways[i] = append(ways[i], time.Since(start))
					}
				}
			}
			c, s := median(ways[0]), median(ways[1])
			b.ReportMetric(c, "clear-ns")
			b.ReportMetric(s, "tls-ns")
			b.ReportMetric(s-c, "more-ns")
		})
	}
	b.Run("1MiB", func(b *testing.B) {
		const parts = 16
		member := members(b)
		e := newEcho(b, 1<<20/2, tcp.Options{TLS: member()}, tcp.Options{TLS: member()})
		e.m.Bulk = true
		w, r := bare(b, member(), member())
		body := make([]byte, 1<<20/parts)
		into := make([]byte, len(body))
		var ours, theirs []time.Duration
		for b.Loop() {
			start := time.Now()
			e.way()
			e.way()
			ours = append(ours, time.Since(start))
			start = time.Now()
			for range parts { // as much as the socket takes without a reader
				write(w, body)
				read(r, into)
			}
			theirs = append(theirs, time.Since(start))
		}
		o, t := median(ours), median(theirs)
		b.ReportMetric(1<<20/o, "GB/s")
		b.ReportMetric(1<<20/t, "bare-GB/s")
		b.ReportMetric(t/o, "of-bare")
	})
}

// way sends one message and takes it at the other end.
func (e *echo) way() {
	want := e.in.n + 1
	for e.near.Send(e.m) != nil {
		must(e.far.Poll(e.in))
	}
	if err := e.near.Flush(); err != nil {
		panic(err)
	}
	for e.in.n < want {
		must(e.near.Poll(e.in))
		must(e.far.Poll(e.in))
	}
}

// BenchmarkTLSBandwidth is 1 MiB messages within TLS, and as much through a bare
// tls.Conn on which one goroutine writes and another reads, by turns. Both keep
// two threads busy.
func BenchmarkTLSBandwidth(b *testing.B) {
	const size, rounds = 1 << 20, 64
	member := members(b)
	near, far := pair(b, tcp.Options{TLS: member()}, tcp.Options{TLS: member()})
	w, r := bare(b, member(), member())
	body := make([]byte, size)
	var ours, theirs []time.Duration
	b.SetBytes(2 * size * rounds)
	for b.Loop() {
		ours = append(ours, timed(func() {
			m := transport.Message{Header: make([]byte, transport.HeaderLen), Bulk: true}
			in := new(counter)
			for range rounds {
				for rest := body; len(rest) > 0; rest = rest[len(m.Body):] {
					m.Body = rest[:min(len(rest), near.MaxBody())]
					for near.Send(m) != nil {
						must(near.Poll(in))
					}
				}
			}
			for in.n < 1 { // the answer
				must(near.Poll(in))
			}
		}, func() {
			in := &counter{buf: make([]byte, far.MaxBody())}
			for in.n < rounds*size/far.MaxBody() {
				must(far.Poll(in))
			}
			give(far, transport.Message{Header: make([]byte, transport.HeaderLen)}, in)
		}))
		theirs = append(theirs, timed(func() {
			for range rounds {
				write(w, body)
			}
			read(w, body[:1])
		}, func() {
			into := make([]byte, size)
			for range rounds {
				read(r, into)
			}
			write(r, into[:1])
		}))
	}
	o, t := median(ours), median(theirs)
	b.ReportMetric(size*rounds/o, "GB/s")
	b.ReportMetric(size*rounds/t, "bare-GB/s")
	b.ReportMetric(t/o, "of-bare")
}

// timed is how long a and b take together.
func timed(a, b func()) time.Duration {
	start := time.Now()
	var other sync.WaitGroup
	other.Go(b)
	a()
	other.Wait()
	return time.Since(start)
}

// bare is a connection as crypto/tls and net make it.
func bare(b *testing.B, x, y *tls.Config) (w, r net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(b, err)
	far, err := ln.Accept()
	require.NoError(b, err)
	w, r = tls.Client(near, x), tls.Server(far, y)
	b.Cleanup(func() { near.Close(); far.Close() })
	var other sync.WaitGroup
	other.Go(func() { write(r, []byte{1}) })
	read(w, make([]byte, 1))
	other.Wait()
	return w, r
}

func write(c net.Conn, b []byte) {
	if _, err := c.Write(b); err != nil {
		panic(err)
	}
}

func read(c net.Conn, b []byte) {
	if _, err := io.ReadFull(c, b); err != nil {
		panic(err)
	}
}
