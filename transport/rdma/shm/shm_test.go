//go:build linux

package shm_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/release"
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

func shortly() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), 20*time.Second)
}

// Whoever falls asleep just as a message comes is woken, be there a barrier when it falls asleep
// or a fence when the message is sent.
func TestNoWakeUpIsLost(t *testing.T) {
	const messages = 50_000
	a, b := pair(t)
	var polled atomic.Int64
	var sender sync.WaitGroup
	sender.Go(func() {
		random := rand.New(rand.NewPCG(5, 6))
		header := make([]byte, transport.HeaderLen)
		for sent := int64(0); sent < messages; {
			for n := 0; polled.Load() < sent; n++ {
				if n > 10_000 {
					runtime.Gosched()
				}
				if n%11_000 == 10_999 {
					time.Sleep(time.Microsecond) // only who sleeps has a program of one thread look at its sockets at once
				}
			}
			for range random.IntN(30) {
				release.Pause()
			}
			burst := 1
			if random.IntN(100) == 0 { // in which the receiver comes to be awake
				burst = 100
			}
			for range burst {
				if a.Send(transport.Message{Header: header}) != nil {
					return // nobody receives
				}
				sent++
			}
		}
	})
	defer sender.Wait()
	defer polled.Store(messages)
	in := &counted{}
	woken := make(chan struct{}, 1)
	for in.n < messages {
		moved, err := b.Poll(in)
		require.NoError(t, err)
		polled.Store(int64(in.n))
		if moved {
			continue
		}
		b.Arm(func() { woken <- struct{}{} })
		select {
		case <-woken:
		case <-time.After(10 * time.Second):
			require.FailNow(t, "nobody woke the receiver", "after %d messages", in.n)
		}
	}
}

// counted counts messages.
type counted struct{ n int }

func (c *counted) Place([]byte, int) []byte         { return nil }
func (c *counted) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *counted) Arrived(_, _ []byte)              { c.n++ }
func (c *counted) Pulled(uint64, error)             {}
