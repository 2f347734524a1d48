package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

var recv, send = &engine.Call{Op: "Recv"}, &engine.Call{Op: "Send"}

// layouts are the ways two ranks can be apart.
var layouts = map[string][]int{
	"in one process":   {2},
	"in two processes": {1, 1},
}

func eachLayout(t *testing.T, f func(t *testing.T, w *world, a, b *engine.Box)) {
	for name, ranks := range layouts {
		for _, keep := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, log %v", name, keep), func(t *testing.T) {
				w := newWorld(t, engine.Config{Keep: keep}, ranks...)
				f(t, w, w.boxes[0], w.boxes[1])
			})
		}
	}
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + seed + i>>8)
	}
	return b
}

func TestMessagesOfAllSizesArrive(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx := t.Context()
		sizes := []int{0, 1, 128, 129, 4096, 4097, 65536, 65537, 300_000, 3 << 20}
		w.run(t, func(box *engine.Box) error {
			for i, n := range sizes {
				for _, mode := range []engine.Mode{engine.Standard, engine.Synchronous} {
					if box == a {
						if err := a.Send(ctx, send, engine.Match{Peer: 1, Tag: int32(i)}, pattern(n, i), mode); err != nil {
							return err
						}
						continue
					}
					into := make([]byte, n+1)
					s, err := b.Recv(ctx, recv, engine.Match{Peer: 0, Tag: int32(i)}, into)
					if err != nil {
						return err
					}
					if s != (engine.Status{Source: 0, Tag: int32(i), Bytes: n}) || !bytes.Equal(into[:n], pattern(n, i)) || into[n] != 0 {
						return fmt.Errorf("message %d of %d bytes: status %+v, or other bytes", i, n, s)
					}
				}
			}
			return nil
		})
	})
}

func TestReceivesMatchInTheOrderTheyWerePosted(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx := t.Context()
		var bufs [4][1]byte
		rs := []engine.Request{
			b.Irecv(engine.Match{Peer: 0, Tag: 7}, bufs[0][:]),
			b.Irecv(engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}, bufs[1][:]),
			b.Irecv(engine.Match{Peer: 0, Tag: engine.AnyTag}, bufs[2][:]),
			b.Irecv(engine.Match{Peer: engine.AnySource, Tag: 7}, bufs[3][:]),
		}
		for i, tag := range []int32{9, 7, 7, 8} {
			require.NoError(t, a.Send(ctx, send, engine.Match{Peer: 1, Tag: tag}, []byte{byte(i + 1)}, engine.Standard))
		}
		want := []byte{2, 1, 3}
		for i, v := range want {
			_, err := rs[i].Wait(ctx, recv)
			require.NoError(t, err)
			require.Equal(t, v, bufs[i][0], "receive %d", i)
		}
		require.False(t, rs[3].Finished(), "tag 8 matched a receive of tag 7")
		rs[3].Cancel()
		_, err := rs[3].Wait(ctx, recv)
		require.ErrorIs(t, err, engine.ErrCancelled)
		var last [1]byte
		_, err = b.Recv(ctx, recv, engine.Match{Peer: 0, Tag: 8}, last[:])
		require.NoError(t, err)
		require.Equal(t, byte(4), last[0])
	})
}

func TestContextsAreApart(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx := t.Context()
		for c := range uint32(3) {
			require.NoError(t, a.Send(ctx, send, engine.Match{Context: c, Peer: 1}, []byte{byte(c)}, engine.Standard))
		}
		for _, c := range []uint32{2, 0, 1} {
			var v [1]byte
			_, err := b.Recv(ctx, recv, engine.Match{Context: c, Peer: engine.AnySource, Tag: engine.AnyTag}, v[:])
			require.NoError(t, err)
			require.Equal(t, byte(c), v[0])
		}
	})
}

func TestTruncationIsAnErrorAndSparesWhatFollows(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		for _, n := range []int{10, 5000, 200_000} {
			w.run(t, func(box *engine.Box) error {
				if box == a {
					return a.Send(t.Context(), send, engine.Match{Peer: 1}, pattern(n, 1), engine.Standard)
				}
				buf := make([]byte, n)
				s, err := b.Recv(t.Context(), recv, engine.Match{Peer: 0}, buf[:n/2])
				if !errors.Is(err, engine.ErrTruncate) || s.Bytes != n {
					return fmt.Errorf("Recv = %+v, %v, want ErrTruncate and the length sent", s, err)
				}
				if !bytes.Equal(buf[:n/2], pattern(n, 1)[:n/2]) || buf[n/2] != 0 {
					return errors.New("the buffer is not the start of the message")
				}
				return nil
			})
		}
	})
}

func TestSynchronousSendWaitsForItsReceive(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		r := a.Isend(engine.Match{Peer: 1}, []byte{1}, engine.Synchronous)
		time.Sleep(5 * time.Millisecond)
		b.Iprobe(engine.Match{Peer: 0})
		_, done, err := r.Test()
		require.NoError(t, err)
		require.False(t, done)
		var v [1]byte
		_, err = b.Recv(t.Context(), recv, engine.Match{Peer: 0}, v[:])
		require.NoError(t, err)
		_, err = r.Wait(t.Context(), send)
		require.NoError(t, err)
	})
}

func TestACancelledWaitLeavesNoTrace(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer stop()
		var v [1]byte
		_, err := b.Recv(ctx, recv, engine.Match{Peer: 0}, v[:])
		require.ErrorIs(t, err, context.DeadlineExceeded)
		err = a.Send(ctx, send, engine.Match{Peer: 1, Tag: 1}, []byte{1}, engine.Synchronous)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		big := pattern(1<<20, 3)
		err = a.Send(ctx, send, engine.Match{Peer: 1, Tag: 1}, big, engine.Standard)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = b.Probe(ctx, recv, engine.Match{Peer: 0, Tag: engine.AnyTag})
		require.ErrorIs(t, err, context.DeadlineExceeded)

		require.NoError(t, a.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, []byte{9}, engine.Standard))
		s, err := b.Recv(t.Context(), recv, engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}, v[:])
		require.NoError(t, err)
		require.Equal(t, byte(9), v[0])
		require.Equal(t, 1, s.Bytes)
	})
}

func TestProbes(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		ctx := t.Context()
		_, ok := b.Iprobe(engine.Match{Peer: 0, Tag: engine.AnyTag})
		require.False(t, ok)
		w.run(t, func(box *engine.Box) error {
			if box == a {
				var rs []engine.Request
				for i := range 3 {
					rs = append(rs, a.Isend(engine.Match{Peer: 1, Tag: int32(i)}, pattern(i*100_000, i), engine.Standard))
				}
				for _, r := range rs {
					if _, err := r.Wait(ctx, send); err != nil {
						return err
					}
				}
				return nil
			}
			s, err := b.Probe(ctx, recv, engine.Match{Peer: engine.AnySource, Tag: 1})
			if err != nil || s.Bytes != 100_000 {
				return fmt.Errorf("Probe = %+v, %v", s, err)
			}
			msg, s, err := b.Mprobe(ctx, recv, engine.Match{Peer: 0, Tag: engine.AnyTag})
			if err != nil || s.Tag != 0 {
				return fmt.Errorf("Mprobe = %+v, %v, want the first message", s, err)
			}
			two, _, err := b.Mprobe(ctx, recv, engine.Match{Peer: 0, Tag: 2})
			if err != nil {
				return err
			}
			for _, m := range []struct {
				msg *engine.Message
				i   int
			}{{two, 2}, {msg, 0}} {
				buf := make([]byte, m.i*100_000)
				r, ok := m.msg.Irecv(buf)
				if _, err := r.Wait(ctx, recv); !ok || err != nil || !bytes.Equal(buf, pattern(m.i*100_000, m.i)) {
					return fmt.Errorf("message %d: %v, or other bytes", m.i, err)
				}
			}
			if _, ok := msg.Irecv(nil); ok {
				return errors.New("a message was received twice")
			}
			_, err = b.Recv(ctx, recv, engine.Match{Peer: 0, Tag: 1}, make([]byte, 100_000))
			return err
		})
	})
}

func TestWaitAnyAndStaleRequests(t *testing.T) {
	eachLayout(t, func(t *testing.T, w *world, a, b *engine.Box) {
		var bufs [3][1]byte
		var rs []engine.Request
		for i := range bufs {
			rs = append(rs, b.Irecv(engine.Match{Peer: 0, Tag: int32(i)}, bufs[i][:]))
		}
		time.AfterFunc(2*time.Millisecond, func() { a.Send(context.Background(), send, engine.Match{Peer: 1, Tag: 2}, []byte{5}, engine.Standard) })
		i, err := engine.WaitAny(t.Context(), recv, rs)
		require.NoError(t, err)
		require.Equal(t, 2, i)
		_, err = rs[2].Wait(t.Context(), recv)
		require.NoError(t, err)
		_, err = rs[2].Wait(t.Context(), recv)
		require.ErrorIs(t, err, engine.ErrStale)
	})
}

func TestManyRanksInOneProcessTalkToOthers(t *testing.T) {
	w := newWorld(t, engine.Config{Keep: true}, 3, 1, 4)
	n := topology.Rank(len(w.boxes))
	w.run(t, func(b *engine.Box) error {
		for round := range 50 {
			size := round * round * 40
			var rs []engine.Request
			bufs := make([][]byte, n)
			for p := range n {
				bufs[p] = make([]byte, size)
				rs = append(rs, b.Irecv(engine.Match{Peer: p, Tag: int32(round)}, bufs[p]))
				rs = append(rs, b.Isend(engine.Match{Peer: p, Tag: int32(round)}, pattern(size, int(b.Rank())*100+int(p)), engine.Standard))
			}
			for _, r := range rs {
				if _, err := r.Wait(t.Context(), recv); err != nil {
					return err
				}
			}
			for p := range n {
				if !bytes.Equal(bufs[p], pattern(size, int(p)*100+int(b.Rank()))) {
					return fmt.Errorf("round %d: other bytes from rank %d", round, p)
				}
			}
		}
		return nil
	})
}

// A message that was started leaves soon, also if its sender computes from then
// on, and its receiver sleeps; and if both had nothing to do before, so that nobody
// looked at the connection any more.
func TestAStartedMessageLeavesWhileItsSenderComputes(t *testing.T) {
	for name, listen := range networks {
		t.Run(name, func(t *testing.T) {
			w := newWorldOn(t, engine.Config{Keep: true}, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1)
			for round := range 6 {
				got := make(chan error, 1)
				go func() {
					_, err := w.boxes[1].Recv(t.Context(), recv, engine.Match{Peer: 0}, make([]byte, 8))
					got <- err
				}()
				time.Sleep(20 * time.Millisecond) // it sleeps
				if round%2 == 1 {
					for p, e := range w.engines {
						require.Eventually(t, e.Dozing, 20*time.Second, time.Millisecond, "process %d has nothing to do, and yet looks", p)
					}
				}
				w.boxes[0].Isend(engine.Match{Peer: 1}, make([]byte, 8), engine.Standard)
				select {
				case err := <-got:
					require.NoError(t, err)
				case <-time.After(10 * time.Second):
					t.Fatalf("round %d: the message did not arrive while its sender made no call", round)
				}
			}
		})
	}
}

// Two processes that need each other at the same moment both dial. One of the
// connections is used, and nothing is lost, also where nothing is kept.
func TestBothDialAtOnce(t *testing.T) {
	for name, listen := range networks {
		t.Run(name, func(t *testing.T) {
			for range 30 {
				w := newWorldOn(t, engine.Config{}, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1)
				w.run(t, func(b *engine.Box) error {
					peer := 1 - b.Rank()
					for range 3 {
						if err := b.Send(t.Context(), send, engine.Match{Peer: peer}, []byte{1}, engine.Standard); err != nil {
							return err
						}
						if _, err := b.Recv(t.Context(), recv, engine.Match{Peer: peer}, make([]byte, 1)); err != nil {
							return err
						}
					}
					return nil
				})
			}
		})
	}
}
