package transporttest

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// What a message costs.

// keeper is a Receiver that allocates nothing.
type keeper struct {
	buf []byte
	n   int
}

func (k *keeper) Place(_ []byte, n int) []byte     { return k.buf[:n] }
func (k *keeper) Receive(header, body []byte) bool { return transport.Receive(k, header, body) }
func (k *keeper) Arrived(_, _ []byte)              { k.n++ }
func (k *keeper) Pulled(uint64, error)             {}

func testAllocs(t *testing.T, s *setup) {
	a, b := s.pair(t)
	if sealed, ok := a.(transport.Authenticated); ok && sealed.Certificate() != nil {
		t.Skip("what encrypts may allocate")
	}
	for _, size := range []int{8, 4096, 32 << 10} {
		in := &keeper{buf: make([]byte, a.MaxBody())}
		h, body := number(1, size)
		one := func() {
			want := in.n + 1
			for errors.Is(a.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
				b.Poll(in)
			}
			a.Flush()
			for in.n < want {
				b.Poll(in)
				a.Poll(in)
			}
		}
		for range 2000 {
			one() // to the steady state
		}
		require.Zero(t, testing.AllocsPerRun(500, one), "allocations per message of %d bytes", size)
	}
}

// Bench measures half the round trip of small and large messages between two
// connections of the network, both polled by the caller.
func Bench(b *testing.B, listen func(b *testing.B) transport.Endpoint) {
	for _, size := range []int{0, 8, 1 << 10, 4 << 10, 16 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			x, y := listen(b), listen(b)
			defer x.Close()
			defer y.Close()
			var far transport.Conn
			accepted := make(chan error, 1)
			go func() {
				var err error
				far, err = y.Accept(b.Context())
				accepted <- err
			}()
			near, err := x.Dial(b.Context(), y.Addr())
			require.NoError(b, err)
			require.NoError(b, <-accepted)
			var echo sync.WaitGroup
			stop := make(chan struct{})
			echo.Go(func() {
				in := &keeper{buf: make([]byte, far.MaxBody())}
				h, body := number(1, size)
				for sent := 0; ; {
					if _, err := far.Poll(in); err != nil {
						return
					}
					if in.n > sent {
						for errors.Is(far.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
						}
						far.Flush()
						sent++
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
			in := &keeper{buf: make([]byte, near.MaxBody())}
			h, body := number(1, size)
			b.ReportAllocs()
			b.SetBytes(int64(2 * size))
			for b.Loop() {
				want := in.n + 1
				for errors.Is(near.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
				}
				near.Flush()
				for in.n < want {
					if _, err := near.Poll(in); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half-rtt")
			close(stop)
			echo.Wait()
		})
	}
}
