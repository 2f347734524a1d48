package engine_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/shm"
	"github.com/mpiv/mpiv/transport/tcp"
)

// networks are those that messages are timed over. Nil: the mem network.
var networks = map[string]func(b testing.TB, process int) transport.Endpoint{
	"mem": func(b testing.TB, process int) transport.Endpoint { return nil },
	"shm": func(b testing.TB, process int) transport.Endpoint {
		dir := b.TempDir()
		require.NoError(b, os.Chmod(dir, 0o700))
		d, err := shm.Listen(filepath.Join(dir, fmt.Sprint(process)), shm.Options{})
		require.NoError(b, err)
		return rdma.New(d)
	},
	"tcp": func(b testing.TB, process int) transport.Endpoint {
		e, err := tcp.Listen(b.Context(), tcp.Options{})
		require.NoError(b, err)
		return e
	},
}

// messages returns what sends size bytes from one box to another, and does the work of both.
func (w *world) messages(b *testing.B, size int) func(from, to int) {
	ctx, out, in := b.Context(), make([]byte, size), make([]byte, size)
	return func(from, to int) {
		if err := w.boxes[from].Send(ctx, send, engine.Match{Peer: w.boxes[to].Rank(), Tag: 1}, out, engine.Standard); err != nil {
			b.Fatal(err)
		}
		if _, err := w.boxes[to].Recv(ctx, recv, engine.Match{Peer: w.boxes[from].Rank(), Tag: 1}, in); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCost is what the processor does for one message, from Send to the
// end of Recv, when one goroutine does the work of both processes: no waiting,
// no other core.
func BenchmarkCost(b *testing.B) {
	for name, listen := range networks {
		for _, size := range []int{8, 1 << 10, 4 << 10} {
			b.Run(fmt.Sprintf("%s/%dB", name, size), func(b *testing.B) {
				w := newWorldOn(b, engine.Config{Keep: true}, func(p int) transport.Endpoint { return listen(b, p) }, 1, 1)
				message := w.messages(b, size)
				for range 100 {
					message(0, 1)
					message(1, 0)
				}
				b.ReportAllocs()
				b.SetBytes(int64(size))
				for b.Loop() {
					message(0, 1)
					message(1, 0)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/message")
			})
		}
	}
}

// BenchmarkRate is the cost of each of a window of non-blocking messages.
func BenchmarkRate(b *testing.B) {
	const window = 64
	for name, listen := range networks {
		b.Run(name+"/8B", func(b *testing.B) {
			w := newWorldOn(b, engine.Config{Keep: true}, func(p int) transport.Endpoint { return listen(b, p) }, 1, 1)
			out, in := make([]byte, 8), make([]byte, 8)
			var rs, ss [window]engine.Request
			round := func() {
				for i := range rs {
					rs[i] = w.boxes[1].Irecv(engine.Match{Peer: 0, Tag: 1}, in)
				}
				for i := range ss {
					ss[i] = w.boxes[0].Isend(engine.Match{Peer: 1, Tag: 1}, out, engine.Standard)
				}
				for _, s := range ss {
					s.Wait(b.Context(), send)
				}
				w.engines[0].Progress()
				for _, r := range rs {
					if _, err := r.Wait(b.Context(), recv); err != nil {
						b.Fatal(err)
					}
				}
			}
			round()
			b.ReportAllocs()
			for b.Loop() {
				round()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(window*b.N), "ns/message")
		})
	}
}

// BenchmarkBesideSleeper is a round trip between two processes, alone, and while another
// goroutine of each waits for a message that does not come.
func BenchmarkBesideSleeper(b *testing.B) {
	const never = 9
	for _, network := range []string{"shm", "tcp"} {
		for _, sleepers := range []int{0, 1} {
			b.Run(fmt.Sprintf("%s/8B/%d", network, sleepers), func(b *testing.B) {
				w := newWorldOn(b, engine.Config{Keep: true}, func(p int) transport.Endpoint { return networks[network](b, p) }, 1, 1)
				var asleep sync.WaitGroup
				defer asleep.Wait()
				ctx, stop := context.WithCancel(b.Context())
				defer stop()
				for i, box := range w.boxes {
					for range sleepers {
						asleep.Go(func() { box.Recv(ctx, recv, engine.Match{Peer: topology.Rank(1 - i), Tag: never}, nil) })
						require.Eventually(b, func() bool { return len(box.Waits()) == 1 }, 20*time.Second, time.Millisecond)
					}
				}
				message := w.messages(b, 8)
				for b.Loop() {
					message(0, 1)
					message(1, 0)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/message")
			})
		}
	}
}
