package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/waits"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// look explains what the ranks of w are doing, as if all that sleep had no other goroutine.
func (w *world) look() waits.Explanation {
	var all []control.Report
	for _, b := range w.boxes {
		sent, got, offered := b.Counts()
		r := control.RankReport{Rank: int(b.Rank()), State: "running"}
		for _, c := range sent {
			r.Sent = append(r.Sent, control.Count{Peer: int(c.Peer), N: c.N})
		}
		for _, c := range got {
			r.Received = append(r.Received, control.Count{Peer: int(c.Peer), N: c.N})
		}
		for _, o := range offered {
			r.Offered = append(r.Offered, control.Numbers{Peer: int(o.Peer), First: o.First, Last: o.Last})
		}
		for _, sleeps := range b.Waits() {
			wait := control.Wait{ID: sleeps.ID, Op: sleeps.Op, Any: sleeps.Any}
			for _, n := range sleeps.Needs {
				need := control.Need{Peer: int(n.Peer), What: control.NeedMessage, Tag: int(n.Tag), Number: n.Number}
				switch {
				case n.Receive && n.OnItsWay:
					need.What = control.NeedDelivery
				case n.Receive:
					need.What = control.NeedReceive
				case n.OnItsWay:
					need.What = control.NeedArrival
				}
				wait.Needs = append(wait.Needs, need)
			}
			r.State = "waiting"
			r.Waits = append(r.Waits, wait)
		}
		all = append(all, control.Report{Process: slices.Index(w.engines, b.Engine()), Ranks: []control.RankReport{r}})
	}
	return waits.Explain(time.Now(), all)
}

// proven is what two looks prove, when all ranks of w have slept for a while.
func (w *world) proven(t *testing.T) (now waits.Explanation, proven bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		return !slices.ContainsFunc(w.boxes, func(b *engine.Box) bool { return len(b.Waits()) == 0 })
	}, 20*time.Second, time.Millisecond)
	time.Sleep(20 * time.Millisecond) // what is on its way comes, if nothing holds it up
	before := w.look()
	time.Sleep(20 * time.Millisecond)
	now = w.look()
	return now, now.Confirms(before)
}

// deadlock is that of w, which is proven sooner or later.
func (w *world) deadlock(t *testing.T) waits.Explanation {
	t.Helper()
	for range 200 {
		if e, proven := w.proven(t); proven {
			return e
		}
	}
	t.Fatalf("no deadlock is proven:\n%s", w.look())
	return waits.Explanation{}
}

// has tells whether a message of rank 0 to rank 1 with that tag has come.
func (w *world) has(tag int32) bool {
	_, here := w.boxes[1].Iprobe(from(0, tag))
	return here
}

// do begins calls, of one rank each. The function that it returns waits for their ends.
func (w *world) do(t *testing.T, calls ...func(b *engine.Box) error) (end func()) {
	errs := make(chan error, len(calls))
	for i, call := range calls {
		b := w.boxes[i]
		go func() { errs <- call(b) }()
	}
	return func() {
		t.Helper()
		for range calls {
			require.NoError(t, <-errs)
		}
	}
}

// lengths are of messages that wait for a receive.
var lengths = map[string]struct {
	size int
	mode engine.Mode
}{
	"long":                  {600 << 10, engine.Standard},
	"synchronous":           {8, engine.Synchronous},
	"synchronous and empty": {0, engine.Synchronous},
}

// A rank that has received a message waits for its sender's next, and the sender does not know yet
// that it has, for the witness does not know which it was.
func TestADoneThatWaitsForTheWitnessIsNoDeadlock(t *testing.T) {
	for network, listen := range networks {
		for length, l := range lengths {
			t.Run(network+", "+length, func(t *testing.T) {
				n := new(notary)
				w := newWorldOn(t, engine.Config{Keep: true, Replay: true, Witness: n}, func(p int) transport.Endpoint { return listen(t, p) }, 1, 1)
				w.engines[1].SetFar(0)
				n.recorded.Store(1) // which message the receive got
				end := w.do(t, sendsTwo(t, l.size, l.mode), receivesTwo(t, l.size))
				e, proven := w.proven(t)
				n.witnessed.Store(1)
				end()
				require.False(t, proven, "%s", e)
			})
		}
	}
}

// sendsTwo sends a message to rank 1, and then an empty one.
func sendsTwo(t *testing.T, size int, mode engine.Mode) func(b *engine.Box) error {
	return func(b *engine.Box) error {
		if err := b.Send(t.Context(), send, from(1, 1), make([]byte, size), mode); err != nil {
			return err
		}
		return b.Send(t.Context(), send, from(1, 2), nil, engine.Standard)
	}
}

func receivesTwo(t *testing.T, size int) func(b *engine.Box) error {
	return func(b *engine.Box) error {
		if _, err := b.Recv(t.Context(), recv, from(0, 1), make([]byte, size)); err != nil {
			return err
		}
		_, err := b.Recv(t.Context(), recv, from(0, 2), nil)
		return err
	}
}

// The same where what tells the sender is lost with its connection.
func TestADoneThatIsLostIsNoDeadlock(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay %v", replay), func(t *testing.T) {
			var deaf atomic.Bool
			network := mem.NewNetwork(mem.Options{})
			w := newWorldOn(t, engine.Config{Keep: true, Replay: replay}, func(p int) transport.Endpoint {
				ep, err := network.Listen(fmt.Sprint(p))
				require.NoError(t, err)
				if p == 0 {
					return slow(ep, &deaf)
				}
				return ep
			}, 1, 1)
			for _, b := range w.boxes { // connects them
				b.Isend(from(1-b.Rank(), 0), nil, engine.Standard)
				_, err := w.boxes[1-b.Rank()].Recv(t.Context(), recv, from(b.Rank(), 0), nil)
				require.NoError(t, err)
			}
			deaf.Store(true)
			end := w.do(t, sendsTwo(t, 0, engine.Synchronous), receivesTwo(t, 0))
			e, proven := w.proven(t)
			require.False(t, proven, "%s", e)
			require.True(t, network.Cut(func(int) int { return 0 }))
			e, proven = w.proven(t)
			require.False(t, proven, "%s", e)
			deaf.Store(false)
			end()
		})
	}
}

// A message is held up for which a receive is there, and nobody waits for that receive yet.
func TestAnOfferThatWaitsForTheWitnessIsNoDeadlock(t *testing.T) {
	for length, l := range lengths {
		t.Run(length, func(t *testing.T) {
			n := new(notary)
			w := newWorld(t, engine.Config{Keep: true, Replay: true, Witness: n}, 1, 1, 1)
			w.engines[0].SetFar(1)
			n.recorded.Store(1)
			r := w.boxes[1].Irecv(from(0, 1), make([]byte, l.size))
			end := w.do(t, func(b *engine.Box) error {
				if err := b.Send(t.Context(), send, from(1, 1), make([]byte, l.size), l.mode); err != nil {
					return err
				}
				return b.Send(t.Context(), send, from(2, 1), nil, engine.Standard)
			}, func(b *engine.Box) error {
				if _, err := b.Recv(t.Context(), recv, from(2, 1), nil); err != nil {
					return err
				}
				_, err := r.Wait(t.Context(), recv)
				return err
			}, func(b *engine.Box) error {
				if _, err := b.Recv(t.Context(), recv, from(0, 1), nil); err != nil {
					return err
				}
				return b.Send(t.Context(), send, from(1, 1), nil, engine.Standard)
			})
			e, proven := w.proven(t)
			n.witnessed.Store(1)
			end()
			require.False(t, proven, "%s", e)
		})
	}
}

// A send is taken back, and its receiver, which waits for the next, has not heard of that.
func TestASendThatIsTakenBackIsNoDeadlock(t *testing.T) {
	w, deaf := newDeafWorld(t, 1, 1)
	deaf.Store(false)
	r := w.boxes[0].Isend(from(1, 1), make([]byte, 8), engine.Synchronous)
	require.Eventually(t, func() bool { return w.has(1) }, 20*time.Second, time.Millisecond)
	deaf.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	end := w.do(t, func(b *engine.Box) error {
		if _, err := r.Wait(ctx, send); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("it was not taken back: %w", err)
		}
		return b.Send(t.Context(), send, from(1, 2), nil, engine.Standard)
	}, func(b *engine.Box) error {
		_, err := b.Recv(t.Context(), recv, from(0, 2), nil)
		return err
	})
	e, proven := w.proven(t)
	deaf.Store(false)
	end()
	require.False(t, proven, "%s", e)
}

// Two ranks send to each other what waits for a receive, and each would receive when it has sent.
func TestSendsThatNobodyReceivesAreADeadlock(t *testing.T) {
	const says = "each waits for the next: rank 0 → rank 1 → rank 0"
	for network, listen := range networks {
		for length, l := range lengths {
			for name, ranks := range layouts {
				for _, replay := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, %s, %s, replay %v", network, length, name, replay), func(t *testing.T) {
						w := newWorldOn(t, engine.Config{Keep: true, Replay: replay}, func(p int) transport.Endpoint { return listen(t, p) }, ranks...)
						ctx, cancel := context.WithCancel(t.Context())
						sends := func(b *engine.Box) error {
							err := b.Send(ctx, send, from(1-b.Rank(), 1), make([]byte, l.size), l.mode)
							if !errors.Is(err, context.Canceled) {
								return fmt.Errorf("it was received: %w", err)
							}
							return nil
						}
						end := w.do(t, sends, sends)
						e := w.deadlock(t)
						cancel()
						end()
						require.Equal(t, []string{says}, e.Deadlock.Causes)
						require.Contains(t, e.String(), "in Send for rank 0 to receive its message, tag 1")
					})
				}
			}
		}
	}
}

// A rank waits for a message, and who is to send it for the receive of another. That is so, too, when
// the rank is elsewhere now, or has taken the message to receive it later.
func TestASendThatIsNotReceivedIsADeadlock(t *testing.T) {
	for _, c := range []struct {
		name         string
		replay, move bool
	}{
		{"where it was", false, false},
		{"where it was, replay", true, false},
		{"elsewhere", false, true},
		{"elsewhere, replay", true, true},
	} {
		for length, l := range lengths {
			t.Run(c.name+", "+length, func(t *testing.T) {
				w := newWorld(t, engine.Config{Keep: true, Replay: c.replay}, 1, 1, 0)
				ctx, cancel := context.WithCancel(t.Context())
				r := w.boxes[0].Isend(from(1, 1), make([]byte, l.size), l.mode)
				require.Eventually(t, func() bool { return w.has(1) }, 20*time.Second, time.Millisecond)
				receive := w.takesLater
				if c.move {
					receive = w.moves
				}
				received := receive(t, l.size)
				end := w.do(t, func(*engine.Box) error {
					_, err := r.Wait(t.Context(), send)
					return err
				}, func(b *engine.Box) error {
					if _, err := b.Recv(ctx, recv, from(0, 2), nil); !errors.Is(err, context.Canceled) {
						return fmt.Errorf("a message has come: %w", err)
					}
					_, err := received().Wait(t.Context(), recv)
					return err
				})
				e := w.deadlock(t)
				cancel()
				end()
				require.Equal(t, []int{0, 1}, e.Deadlock.Cycle)
			})
		}
	}
}

// takesLater has rank 1 take the message with tag 1, and returns what receives it.
func (w *world) takesLater(t *testing.T, size int) (receive func() engine.Request) {
	m, _, taken := w.boxes[1].Improbe(from(0, 1))
	require.True(t, taken)
	return func() engine.Request {
		r, _ := m.Irecv(make([]byte, size))
		return r
	}
}

// moves has rank 1 go on in process 2, and returns what receives the message with tag 1 there.
func (w *world) moves(t *testing.T, size int) (receive func() engine.Request) {
	capsule, err := w.boxes[1].Depart(t.Context(), 2, 2)
	require.NoError(t, err)
	parsed, err := engine.ParseCapsule(capsule)
	require.NoError(t, err)
	w.boxes[1], err = w.engines[2].Adopt(parsed, 2, nil)
	require.NoError(t, err)
	moved := engine.Placement{Rank: 1, Process: 2}
	w.engines[0].Place(2, moved)
	w.engines[1].Place(2, moved)
	return func() engine.Request { return w.boxes[1].Irecv(from(0, 1), make([]byte, size)) }
}
