package mpiv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agree"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// A mortal world is processes joined by a mem network, which may be killed.
type mortals struct {
	engines []*engine.Engine
	fabrics []*fabric.Fabric
	of      []int // by rank: its process

	mu   sync.Mutex // guards what follows
	dead map[int]bool
	told sync.WaitGroup
}

var errKilled = errors.New("the process was killed")

// runMortals runs f as every rank of processes that hold so many each, and checks the
// errors of those that were not killed.
func runMortals(t testing.TB, ranks []int, f func(ctx context.Context, c *Comm, w *mortals) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	network := mem.NewNetwork(mem.Options{})
	w := &mortals{dead: map[int]bool{}}
	var cfg engine.Config
	for i, n := range ranks {
		var of []topology.Rank
		for range n {
			of = append(of, topology.Rank(len(w.of)))
			w.of = append(w.of, i)
		}
		cfg.Processes = append(cfg.Processes, of)
	}
	var addrs [][]fabric.Addr
	for i := range ranks {
		ep, err := network.Listen(fmt.Sprint(i))
		require.NoError(t, err)
		fb := fabric.New(len(ranks), fabric.Options{Process: i, Networks: []fabric.Network{{Endpoint: ep}}, Log: slog.New(slog.DiscardHandler)})
		cfg.Process, cfg.Keep, cfg.Crowded, cfg.Connect = i, true, true, fb.Connect
		cfg.Lost = func(int, error) {} // it will be declared
		w.engines, w.fabrics, addrs = append(w.engines, engine.New(cfg)), append(w.fabrics, fb), append(addrs, fb.Addrs())
	}
	for i, fb := range w.fabrics {
		fb.Start(w.engines[i], addrs)
	}
	defer func() {
		w.told.Wait()
		for i, e := range w.engines {
			e.Close()
			w.fabrics[i].Close()
		}
	}()
	errs := make([]error, len(w.of))
	var all sync.WaitGroup
	for _, e := range w.engines {
		for life := range livesOf(e) {
			all.Go(func() {
				errs[life.Rank] = runRank(ctx, worldOf(life.Box, Options{}, nil), func(ctx context.Context, c *Comm) error { return f(ctx, c, w) })
			})
		}
	}
	all.Wait()
	for r, err := range errs {
		w.mu.Lock()
		killed := w.dead[w.of[r]]
		w.mu.Unlock()
		if err != nil && !killed {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// kill kills the processes of ranks of the world at once. The others are told in no order, each after a while.
func (w *mortals) kill(ranks ...int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var dead []int
	for _, r := range ranks {
		if i := w.of[r]; !w.dead[i] {
			w.dead[i] = true
			dead = append(dead, i)
			w.engines[i].Fail(errKilled)
		}
	}
	for _, i := range dead {
		w.told.Go(w.fabrics[i].Close)
		for k, e := range w.engines {
			if !w.dead[k] {
				w.told.Go(func() {
					time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
					e.DeclareFailed(i)
					w.fabrics[k].Fence(i)
				})
			}
		}
	}
}

// die kills the process of the calling rank.
func (w *mortals) die(c *Comm) error {
	w.kill(int(c.box.Rank()))
	return errKilled
}

// failedWith checks that err is of that class, about that peer.
func failedWith(err error, class error, peer int) error {
	re, ok := errors.AsType[*RankError](err)
	switch {
	case !errors.Is(err, class):
		return fmt.Errorf("error %v, want %v", err, class)
	case !ok || re.Peer != peer:
		return fmt.Errorf("error %v, want a RankError with peer %d", err, peer)
	case re.Where == "":
		return fmt.Errorf("error %v does not say where", err)
	}
	return nil
}

// knows waits until the rank has been told of so many failures.
func knows(c *Comm, n int) error {
	for range 5000 {
		if c.Failed().Size() >= n {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return fmt.Errorf("%d failures are known, want %d", c.Failed().Size(), n)
}

// Receives from a rank that dies end, whether they began before or after; what it had
// sent can be received.
func TestReceivesFromTheDead(t *testing.T) {
	runMortals(t, []int{1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		into := []int{0}
		if c.Rank() == 1 {
			for tag := range 2 {
				if err := Send(ctx, c, []int{40 + tag}, 0, tag); err != nil {
					return err
				}
			}
			if _, err := Recv(ctx, c, into, 0, 9); err != nil {
				return err
			}
			return w.die(c)
		}
		if _, err := Recv(ctx, c, into, 1, 0); err != nil || into[0] != 40 {
			return fmt.Errorf("%d, %v", into[0], err)
		}
		if _, err := Probe(ctx, c, 1, 1); err != nil {
			return err
		}
		r := Irecv(c, make([]int, 1), 1, 5)
		if err := Send(ctx, c, []int{0}, 1, 9); err != nil {
			return err
		}
		for i, call := range []func() error{
			func() error { _, err := Recv(ctx, c, make([]int, 1), 1, 6); return err },
			func() error { _, err := r.Wait(ctx); return err },
			func() error { _, err := Recv(ctx, c, make([]int, 1), 1, 6); return err },
			func() error { _, err := Probe(ctx, c, 1, 6); return err },
			func() error { _, _, err := Mprobe(ctx, c, 1, 6); return err },
			func() error { _, _, err := Iprobe(c, 1, 6); return err },
			func() error { _, _, err := Improbe(c, 1, 6); return err },
			func() error { _, _, err := RecvAlloc[int](ctx, c, 1, 6); return err },
		} {
			if err := failedWith(call(), ErrProcFailed, 1); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		if r != (Request{}) {
			return errors.New("the request is not zero after it has failed")
		}
		if _, err := Recv(ctx, c, into, 1, 1); err != nil || into[0] != 41 {
			return fmt.Errorf("what was sent before: %d, %v", into[0], err)
		}
		return nil
	})
}

// Sends to a rank that dies end.
func TestSendsToTheDead(t *testing.T) {
	runMortals(t, []int{1, 2}, func(ctx context.Context, c *Comm, w *mortals) error {
		big := make([]byte, 1<<20)
		switch c.Rank() {
		case 1:
			time.Sleep(5 * time.Millisecond)
			return w.die(c)
		case 2: // a goroutine of the same process
			_, err := Recv(ctx, c, big, 0, 99)
			return err
		}
		under := []Request{Isend(c, big, 1, 0), Issend(c, []int{1}, 1, 1), Isend(c, make([]byte, 64<<10), 2, 0)}
		for i := range under {
			peer := []int{1, 1, 2}[i]
			if _, err := under[i].Wait(ctx); i < 2 || err != nil { // what needs no receiver may have been sent
				if err := failedWith(err, ErrProcFailed, peer); err != nil {
					return fmt.Errorf("request %d: %w", i, err)
				}
			}
		}
		for i, call := range []func() error{
			func() error { return Send(ctx, c, big, 1, 0) },
			func() error { return Send(ctx, c, []int{1}, 2, 0) },
			func() error { return Ssend(ctx, c, []int{1}, 2, 0) },
			func() error { r := Isend(c, big, 1, 0); _, err := r.Wait(ctx); return err },
			func() error {
				_, err := Sendrecv(ctx, c, big, 1, 0, []byte{0}, 1, 0)
				return err.(interface{ Unwrap() []error }).Unwrap()[0]
			},
		} {
			if err := failedWith(call(), ErrProcFailed, []int{1, 2, 2, 1, 1}[i]); err != nil {
				return fmt.Errorf("call %d: %w", i, err)
			}
		}
		if got := c.Failed().Size(); got != 2 {
			return fmt.Errorf("%d ranks have failed, want both of the process", got)
		}
		return nil
	})
}

// Some goroutines of a rank acknowledge failures while others look for messages, and more ranks die.
func TestAcknowledgedWhileOthersLook(t *testing.T) {
	ranks := slices.Repeat([]int{1}, 24)
	runMortals(t, ranks, func(ctx context.Context, c *Comm, w *mortals) error {
		if c.Rank() > 0 {
			time.Sleep(time.Duration(c.Rank()) * 200 * time.Microsecond)
			return w.die(c)
		}
		var all sync.WaitGroup
		defer all.Wait()
		done := make(chan struct{})
		defer close(done)
		for range 2 {
			all.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
						c.AckFailed()
						runtime.Gosched()
					}
				}
			})
		}
		for c.Failed().Size() < len(ranks)-1 {
			if _, _, err := Iprobe(c, AnySource, 1); err != nil && !errors.Is(err, ErrProcFailedPending) && !errors.Is(err, ErrProcFailed) {
				return err
			}
		}
		if n := c.AckFailed().Size(); n != len(ranks)-1 {
			return fmt.Errorf("%d failures are acknowledged", n)
		}
		if c.state.witness.Unacknowledged(c.context) {
			return errors.New("an acknowledged failure is one no more")
		}
		return nil
	})
}

// A receive from any source fails until the failure is acknowledged; a request of one
// goes on meanwhile. A Comm without the dead rank is not concerned.
func TestAnySourceUntilAcknowledged(t *testing.T) {
	runMortals(t, []int{1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		color := 0
		if c.Rank() == 2 {
			color = 1
		}
		pair, err := Split(ctx, c, color, 0)
		if err != nil {
			return err
		}
		switch c.Rank() {
		case 2:
			for range 2 { // what it has sent them for Split is there
				if _, err := Recv(ctx, c, []int{0}, AnySource, 6); err != nil {
					return err
				}
			}
			time.Sleep(2 * time.Millisecond)
			return w.die(c)
		case 1:
			if err := Send(ctx, c, []int{0}, 2, 6); err != nil {
				return err
			}
			if _, err := Recv(ctx, c, []int{0}, 0, 7); err != nil {
				return err
			}
			if err := Send(ctx, pair, []int{5}, 0, 3); err != nil {
				return err
			}
			return Send(ctx, c, []int{6}, 0, 3)
		}
		if err := Send(ctx, c, []int{0}, 2, 6); err != nil {
			return err
		}
		into := []int{0}
		r := Irecv(c, into, AnySource, 3)
		rs := []Request{Irecv(c, []int{0}, 1, 8), r}
		for i, call := range []func() error{
			func() error { _, err := r.Wait(ctx); return err },
			func() error { _, _, err := r.Test(); return err },
			func() error { _, _, err := Waitany(ctx, rs); return err },
			func() error { return Waitall(ctx, rs[1:], nil) },
			func() error { _, err := Testall(rs[1:], nil); return err },
			func() error { _, _, _, err := Testany(rs); return err },
			func() error { _, err := Testsome(rs, nil); return err },
			func() error { _, err := Recv(ctx, c, []int{0}, AnySource, 4); return err },
			func() error { _, err := Probe(ctx, c, AnySource, AnyTag); return err },
			func() error { _, _, err := Iprobe(c, AnySource, AnyTag); return err },
			func() error {
				p := RecvInit(c, []int{0}, AnySource, 4)
				p.Start()
				_, err := p.Wait(ctx)
				p.Cancel()
				return err
			},
			func() error { _, err := Sendrecv(ctx, c, []int{1}, 0, 9, []int{0}, AnySource, 4); return err },
			func() error {
				some, err := Waitsome(ctx, rs, nil)
				if len(some) > 0 {
					return fmt.Errorf("Waitsome has ended %v of requests that go on", some)
				}
				return err
			},
		} {
			err := call()
			if !errors.Is(err, ErrProcFailedPending) {
				return fmt.Errorf("call %d: error %v, want ErrProcFailedPending", i, err)
			}
			if ended := i == 7 || i == 8 || i == 9 || i == 11; errors.Is(err, ErrProcFailed) != ended {
				return fmt.Errorf("call %d: error %v is ErrProcFailed too: %v, want %v", i, err, !ended, ended)
			}
		}
		if err := Send(ctx, c, []int{0}, 1, 7); err != nil {
			return err
		}
		if _, err := Recv(ctx, pair, into[:0:0], AnySource, AnyTag); !errors.Is(err, ErrTruncate) {
			return fmt.Errorf("on a Comm without the dead rank: %v", err)
		}
		if g := c.AckFailed(); g.Size() != 1 || g.at(0) != 2 {
			return fmt.Errorf("acknowledged %v", g)
		}
		if s, err := r.Wait(ctx); err != nil || s.Source != 1 || into[0] != 6 {
			return fmt.Errorf("the request that went on: %v, %v", s, err)
		}
		short, stop := context.WithTimeout(ctx, 5*time.Millisecond)
		defer stop()
		if _, err := Recv(short, c, []int{0}, AnySource, 4); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("after it was acknowledged: %v", err)
		}
		rs[0].Cancel()
		rs[0].Wait(ctx)
		return nil
	})
}

// A request that is done is found behind one that a failure has interrupted.
func TestTestanyFindsTheDone(t *testing.T) {
	runMortals(t, []int{1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		if c.Rank() == 2 {
			return w.die(c)
		}
		if err := knows(c, 1); err != nil || c.Rank() == 1 {
			return errors.Join(err, Send(ctx, c, []int{1}, 0, 7))
		}
		rs := []Request{Irecv(c, []int{0}, AnySource, 6), Irecv(c, []int{0}, 1, 7)}
		for !rs[1].r.Finished() {
			c.box.Engine().Progress()
		}
		if i, _, done, err := Testany(rs); i != 1 || !done || err != nil {
			return fmt.Errorf("Testany gave %d, %v, %w", i, done, err)
		}
		if i, _, done, err := Testany(rs); i != 0 || done || !errors.Is(err, ErrProcFailedPending) {
			return fmt.Errorf("Testany of the other gave %d, %v, %w", i, done, err)
		}
		return nil
	})
}

// A receive from any source is interrupted, too, where its Comm was freed meanwhile.
func TestAnySourceOnAFreedComm(t *testing.T) {
	runMortals(t, []int{1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		d, err := Dup(ctx, c)
		if err != nil {
			return err
		}
		switch c.Rank() {
		case 1:
			if err := Send(ctx, c, []int{0}, 2, 1); err != nil {
				return err
			}
			_, err = c.Shrink(ctx)
			return err
		case 2:
			for r := range 2 {
				if _, err := Recv(ctx, c, []int{0}, r, 1); err != nil {
					return err
				}
			}
			return w.die(c)
		}
		r := Irecv(d, []int{0}, AnySource, 6)
		if err := errors.Join(d.Free(), Send(ctx, c, []int{0}, 2, 1)); err != nil {
			return err
		}
		if _, err := r.Wait(ctx); !errors.Is(err, ErrProcFailedPending) {
			return fmt.Errorf("error %w, want ErrProcFailedPending", err)
		}
		r.Cancel()
		if _, err := r.Wait(ctx); !errors.Is(err, ErrCancelled) {
			return fmt.Errorf("error %w, want ErrCancelled", err)
		}
		if d, err = c.Shrink(ctx); err == nil {
			err = d.Free()
		}
		if n := len(c.state.witness.comms); n != 1 {
			return fmt.Errorf("%d Comms are kept, want the world alone", n)
		}
		return err
	})
}

// So is a probe.
func TestAProbeOnAFreedComm(t *testing.T) {
	runMortals(t, []int{1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		d, err := Dup(ctx, c)
		if err != nil {
			return err
		}
		if c.Rank() == 1 {
			if _, err := Recv(ctx, c, []int{0}, 0, 1); err != nil {
				return err
			}
			return w.die(c)
		}
		probed := make(chan error, 1)
		go func() { _, err := Probe(ctx, d, AnySource, 6); probed <- err }()
		for len(c.box.Waits()) == 0 {
			time.Sleep(time.Millisecond)
		}
		if err := errors.Join(d.Free(), Send(ctx, c, []int{0}, 1, 1)); err != nil {
			return err
		}
		if err := <-probed; !errors.Is(err, ErrProcFailedPending) {
			return fmt.Errorf("error %w, want ErrProcFailedPending", err)
		}
		return nil
	})
}

var collectivesOfMortals = map[string]func(ctx context.Context, c *Comm) error{
	"Barrier":   Barrier,
	"Allreduce": func(ctx context.Context, c *Comm) error { v := []int{1}; return Allreduce(ctx, c, v, v, Sum) },
	"long Allreduce": func(ctx context.Context, c *Comm) error {
		v := make([]int, 1<<17)
		return Allreduce(ctx, c, v, v, Sum)
	},
	"Bcast":      func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, []int{1}, 0) },
	"long Bcast": func(ctx context.Context, c *Comm) error { return Bcast(ctx, c, make([]byte, 1<<20), c.Size()-1) },
	"Gather":     func(ctx context.Context, c *Comm) error { return Gather(ctx, c, []int{1}, make([]int, c.Size()), 1) },
	"Alltoall": func(ctx context.Context, c *Comm) error {
		return Alltoall(ctx, c, make([]byte, c.Size()<<16), make([]byte, c.Size()<<16))
	},
	"Scan": func(ctx context.Context, c *Comm) error { v := []int{1}; return Scan(ctx, c, v, v, Sum) },
	"Dup":  func(ctx context.Context, c *Comm) error { _, err := Dup(ctx, c); return err },
	"Iallreduce": func(ctx context.Context, c *Comm) error {
		v := []int{1}
		r := Iallreduce(ctx, c, v, v, Sum)
		_, err := r.Wait(ctx)
		return err
	},
}

// A collective in which a rank dies ends on all, though not with the same result.
func TestCollectivesEndWhenOneDies(t *testing.T) {
	for name, call := range collectivesOfMortals {
		t.Run(name, func(t *testing.T) {
			for dies := range 5 {
				runMortals(t, []int{1, 1, 2, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
					if err := Barrier(ctx, c); err != nil && !errors.Is(err, ErrProcFailed) { // what the dead had sent may not have left
						return err
					}
					if c.Rank() == dies {
						return w.die(c)
					}
					err := call(ctx, c)
					if w.of[c.Rank()] == w.of[dies] {
						return nil
					}
					if err != nil && !errors.Is(err, ErrProcFailed) {
						return fmt.Errorf("error %v, want ErrProcFailed", err)
					}
					if err := knows(c, 1); err != nil {
						return err
					}
					// What needs all fails on all, from now on.
					if v := []int{1}; !errors.Is(Allreduce(ctx, c, v, v, Sum), ErrProcFailed) {
						return errors.New("an Allreduce with a dead rank has a result")
					}
					return nil
				})
			}
		})
	}
}

// Whatever waits on a Comm when it is revoked ends, on all ranks; what comes later
// fails at once; other Comms are as before; Agree and Shrink work.
func TestRevoke(t *testing.T) {
	waits := []func(ctx context.Context, c *Comm) error{
		func(ctx context.Context, c *Comm) error { _, err := Recv(ctx, c, []int{0}, 0, 1); return err },
		func(ctx context.Context, c *Comm) error { _, err := Recv(ctx, c, []int{0}, AnySource, 1); return err },
		func(ctx context.Context, c *Comm) error { return Ssend(ctx, c, []int{0}, 0, 2) },
		func(ctx context.Context, c *Comm) error { return Send(ctx, c, make([]byte, 1<<20), 0, 2) },
		func(ctx context.Context, c *Comm) error { return Ssend(ctx, c, []int{0}, (c.Rank()+1)%c.Size(), 3) },
		func(ctx context.Context, c *Comm) error { _, err := Probe(ctx, c, 0, 1); return err },
		func(ctx context.Context, c *Comm) error { v := []int{0}; return Allreduce(ctx, c, v, v, Sum) },
		func(ctx context.Context, c *Comm) error {
			r := Irecv(c, []int{0}, 0, 1)
			_, err := r.Wait(ctx)
			return err
		},
		func(ctx context.Context, c *Comm) error {
			_, err := CreateGroup(ctx, c, c.Group(), 1)
			return err
		},
		func(ctx context.Context, c *Comm) error {
			v := []int{0}
			r := Iallreduce(ctx, c, v, v, Sum)
			_, err := r.Wait(ctx)
			return err
		},
	}
	for i, wait := range waits {
		for _, layout := range [][]int{{1, 1, 1}, {3}, {2, 2}} {
			t.Run(fmt.Sprint(i, layout), func(t *testing.T) {
				runMortals(t, layout, func(ctx context.Context, world *Comm, w *mortals) error {
					c, err := Dup(ctx, world)
					if err != nil {
						return err
					}
					if c.Rank() == 0 {
						time.Sleep(5 * time.Millisecond)
						if err := c.Revoke(ctx); err != nil {
							return err
						}
					} else if err := wait(ctx, c); !errors.Is(err, ErrRevoked) {
						return fmt.Errorf("error %v, want ErrRevoked", err)
					}
					if !c.Revoked() || world.Revoked() {
						return fmt.Errorf("revoked: %v, the world %v", c.Revoked(), world.Revoked())
					}
					for k, again := range waits {
						if err := again(ctx, c); !errors.Is(err, ErrRevoked) {
							return fmt.Errorf("later, call %d: error %v, want ErrRevoked", k, err)
						}
					}
					if err := Send(ctx, c, []int{1}, 0, 0); !errors.Is(err, ErrRevoked) {
						return fmt.Errorf("a short Send: error %v, want ErrRevoked", err)
					}
					if flag, err := c.Agree(ctx, ^uint64(1<<c.Rank())); err != nil || flag != ^uint64(0)<<c.Size() {
						return fmt.Errorf("Agree gave %x, %v", flag, err)
					}
					d, err := c.Shrink(ctx)
					if err != nil {
						return err
					}
					if d.Compare(world) != Congruent {
						return fmt.Errorf("the new Comm has %d ranks", d.Size())
					}
					if err := next(ctx, d); err != nil {
						return err
					}
					return next(ctx, world)
				})
			})
		}
	}
}

// A probe has taken a message whose body is with its sender, and nobody will receive it, as the Comm is revoked: the
// sender does not wait for that.
func TestRevokeOfWhatAProbeHasTaken(t *testing.T) {
	for _, layout := range [][]int{{1, 1, 1}, {3}, {2, 1}, {1, 2}} {
		for by := range 3 {
			for _, n := range []int{1, 1 << 20} {
				t.Run(fmt.Sprintf("%v, %d bytes, by %d", layout, n, by), func(t *testing.T) {
					runMortals(t, layout, func(ctx context.Context, world *Comm, w *mortals) error {
						c, err := Dup(ctx, world)
						if err != nil {
							return err
						}
						var m *Message
						var r Request
						switch c.Rank() {
						case 0:
							r = Isend(c, make([]byte, n), 1, 3)
						case 1:
							if m, _, err = Mprobe(ctx, c, 0, 3); err != nil {
								return err
							}
						}
						if err := Barrier(ctx, world); err != nil {
							return err
						}
						if c.Rank() == by {
							if err := c.Revoke(ctx); err != nil {
								return err
							}
						}
						if _, err := r.Wait(ctx); err != nil && !errors.Is(err, ErrRevoked) {
							return err
						}
						if _, err := c.Shrink(ctx); err != nil || m == nil {
							return err
						}
						for !c.Revoked() {
							c.box.Engine().Progress()
						}
						_, err = Mrecv(ctx, m, make([]byte, n))
						return failedWith(err, ErrRevoked, 0)
					})
				})
			}
		}
	}
}

// Who gives up a collective dies before it has told all. Those who have heard tell the others, which wait for them.
func TestGivenUpByOneThatDies(t *testing.T) {
	runMortals(t, []int{1, 1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		switch c.Rank() {
		case 0: // as far as it comes: rank 2 hears nothing
			s := c.begin(ctx, opBcast, 1)
			c.box.Abandon(s.m, "enough", slices.Values([]topology.Rank{1, 3}))
			if _, err := Recv(ctx, c, []int{0}, 1, 8); err != nil {
				return err
			}
			return w.die(c)
		case 1:
			for s := c.begin(ctx, opBcast, 1); c.box.Abandoned(s.m.Context, s.m.Tag) == nil; {
				c.box.Engine().Progress()
			}
			if err := Send(ctx, c, []int{0}, 0, 8); err != nil {
				return err
			}
			return knows(c, 1)
		}
		err := Bcast(ctx, c, make([]int, 1000), 1)
		if !errors.Is(err, ErrAbandoned) || !strings.Contains(err.Error(), "enough") {
			return fmt.Errorf("Bcast = %w", err)
		}
		return nil
	})
}

// A CreateGroup that was given up by one that dies ends on all of its group, and on nobody else: others may use its tag.
func TestGivenUpInAGroup(t *testing.T) {
	runMortals(t, []int{1, 1, 1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		g, err := c.Group().Incl([][]int{{0, 1, 2}, {3, 4}}[c.Rank()/3]...)
		if err != nil {
			return err
		}
		switch c.Rank() {
		case 0: // as far as it comes: rank 2 hears nothing
			m := engine.Match{Context: c.context + groups, Tag: 7, Check: opCreateGroup.check(-1)}
			c.box.Abandon(m, "enough", slices.Values([]topology.Rank{1}))
			if _, err := Recv(ctx, c, []int{0}, 1, 1); err != nil {
				return err
			}
			return w.die(c)
		case 1:
			for c.box.Abandoned(c.context+groups, 7) == nil {
				c.box.Engine().Progress()
			}
			if _, err := CreateGroup(ctx, c, g, 7); !errors.Is(err, ErrAbandoned) {
				return fmt.Errorf("error %w, want ErrAbandoned", err)
			}
			if err := Send(ctx, c, []int{0}, 0, 1); err != nil {
				return err
			}
			if err := knows(c, 1); err != nil {
				return err
			}
			return Send(ctx, c, []int{0}, 3, 1)
		case 2:
			if _, err := CreateGroup(ctx, c, g, 7); !errors.Is(err, ErrAbandoned) && !errors.Is(err, ErrProcFailed) {
				return fmt.Errorf("error %w, want ErrAbandoned or ErrProcFailed", err)
			}
			return nil
		case 3: // after what rank 1 tells when rank 0 has failed
			if _, err := Recv(ctx, c, []int{0}, 1, 1); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond)
		}
		_, err = CreateGroup(ctx, c, g, 7)
		return err
	})
}

// A call is given up by one that dies, before one that has heard has the Comm.
func TestGivenUpBeforeTheComm(t *testing.T) {
	runMortals(t, []int{1, 1, 1, 1}, func(ctx context.Context, world *Comm, w *mortals) error {
		id := uint32(firstContext + contextStep)
		var c *Comm
		if world.Rank() != 2 {
			c = world.derive("new", id, world.group)
		}
		if world.Rank() == 0 {
			s := c.begin(ctx, opBcast, 2)
			c.box.Abandon(s.m, "enough", slices.Values([]topology.Rank{2}))
			if _, err := Recv(ctx, world, []int{0}, 2, 1); err != nil {
				return err
			}
			return w.die(c)
		}
		if world.Rank() == 2 {
			for world.box.Abandoned(id+collectives, 1) == nil {
				world.box.Engine().Progress()
			}
			if err := Send(ctx, world, []int{0}, 0, 1); err != nil {
				return err
			}
			if err := knows(world, 1); err != nil {
				return err
			}
			time.Sleep(5 * time.Millisecond) // until the witness has heard, too
			c = world.derive("new", id, world.group)
		}
		if err := Bcast(ctx, c, make([]int, 100), 2); !errors.Is(err, ErrAbandoned) {
			return fmt.Errorf("error %w, want ErrAbandoned", err)
		}
		_, err := world.Shrink(ctx)
		return err
	})
}

// All hear of a revocation, though who began it dies when it has told one.
func TestRevokeOutlivesItsRank(t *testing.T) {
	runMortals(t, []int{1, 1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		if c.Rank() == 0 {
			c.box.Revoke(c.context, slices.Values([]topology.Rank{2}))
			if err := c.box.Engine().Drain(ctx); err != nil {
				return err
			}
			return w.die(c)
		}
		if _, err := Recv(ctx, c, []int{0}, (c.Rank()%3)+1, 1); !errors.Is(err, ErrRevoked) {
			return fmt.Errorf("error %v, want ErrRevoked", err)
		}
		return nil
	})
}

// toldOne is four ranks of which 0 revokes a Comm, or gives up a collective on it, which it tells rank 2 alone; when all have said a word to it
// in the world it dies. Ranks 1 and 3 wait for rank 2, and hear why in vain. early and late are what rank 2 does, before rank 0 has
// done so and after it.
func toldOne(t *testing.T, early, late func(ctx context.Context, c *Comm, s *series, want error) error) {
	for _, want := range []error{ErrRevoked, ErrAbandoned} {
		t.Run(want.Error(), func(t *testing.T) {
			runMortals(t, []int{1, 1, 1, 1}, func(ctx context.Context, world *Comm, w *mortals) error {
				c, err := Dup(ctx, world)
				if err != nil {
					return err
				}
				s := c.begin(ctx, opBcast, 2)
				if c.Rank() == 2 {
					err = early(ctx, c, &s, want)
				}
				if err := errors.Join(err, Barrier(ctx, world)); err != nil {
					return err
				}
				heard := slices.Values([]topology.Rank{2})
				switch {
				case c.Rank() == 0 && want == ErrRevoked:
					c.box.Revoke(c.context, heard)
				case c.Rank() == 0:
					c.box.Abandon(s.m, "enough", heard)
				case c.Rank() == 2:
					if err := errors.Join(late(ctx, c, &s, want), Send(ctx, world, []int{0}, 0, 1)); err != nil {
						return err
					}
				default:
					if err := Send(ctx, world, []int{0}, 0, 1); err != nil {
						return err
					}
					if err := s.recv(make([]byte, 4), 2); !errors.Is(err, want) {
						return fmt.Errorf("error %w, want %w", err, want)
					}
				}
				if c.Rank() == 0 {
					for r := 1; r < 4; r++ {
						if _, err := Recv(ctx, world, []int{0}, r, 1); err != nil {
							return err
						}
					}
					return w.die(c)
				}
				_, err = world.Shrink(ctx)
				return err
			})
		})
	}
}

// The others hear, too, where the one that was told frees the Comm before it knows that the other has died.
func TestFreedByWhoHasHeard(t *testing.T) {
	toldOne(t, func(context.Context, *Comm, *series, error) error { return nil }, func(_ context.Context, c *Comm, s *series, _ error) error {
		for !c.Revoked() && c.box.Abandoned(s.m.Context, s.m.Tag) == nil {
			c.box.Engine().Progress()
		}
		return c.Free()
	})
}

// So they do where it has freed the Comm before it is told, and its part of the collective is under way yet.
func TestFreedByWhoHearsLater(t *testing.T) {
	var r Request // of rank 2
	toldOne(t, func(_ context.Context, c *Comm, s *series, _ error) error {
		r = s.later(func(s *series) error { return s.recv(make([]byte, 4), 0) })
		return c.Free()
	}, func(ctx context.Context, _ *Comm, _ *series, want error) error {
		if _, err := r.Wait(ctx); !errors.Is(err, want) {
			return fmt.Errorf("error %w, want %w", err, want)
		}
		return nil
	})
}

// An agreement tells all the same: the flag, and whether somebody did not know of a
// failure.
func TestAgree(t *testing.T) {
	runMortals(t, []int{1, 1, 1, 2}, func(ctx context.Context, c *Comm, w *mortals) error {
		for round := range 3 {
			if flag, err := c.Agree(ctx, uint64(7|8<<c.Rank())); err != nil || flag != 7 {
				return fmt.Errorf("round %d: %x, %v", round, flag, err)
			}
		}
		if c.Rank() == 1 {
			return w.die(c)
		}
		if err := knows(c, 1); err != nil {
			return err
		}
		if c.Rank() != 2 { // one has not acknowledged
			c.AckFailed()
		}
		if flag, err := c.Agree(ctx, ^uint64(2)); flag != ^uint64(2) {
			return fmt.Errorf("%x, %v", flag, err)
		} else if err := failedWith(err, ErrProcFailed, 1); err != nil {
			return err
		}
		c.AckFailed()
		if flag, err := c.Agree(ctx, 1); flag != 1 || err != nil {
			return fmt.Errorf("when all have acknowledged: %x, %v", flag, err)
		}
		return nil
	})
}

// A message of an agreement that is offered, as its receiver takes no more without a receive, may end with its
// sender before its body has come. That is a failure like any other.
func TestAgreeOffered(t *testing.T) {
	runMortals(t, []int{1, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		switch c.Rank() {
		case 0:
			for len(c.box.Unreceived()) == 0 {
				time.Sleep(time.Millisecond)
			}
			w.fabrics[0].Fence(1) // the body does not come
			w.told.Go(func() {
				time.Sleep(20 * time.Millisecond)
				w.kill(1)
			})
		case 1:
			v := agree.Value{Flag: 3, Failed: agree.NewSet(3), Acked: agree.NewSet(3), Quit: agree.NewSet(3)}
			m := engine.Match{Context: c.context + survivors, Peer: 0, Check: survivorsCheck}
			c.box.Isend(m, agree.Message{Kind: agree.Contribute, Accepted: -1, Value: v}.Append(nil, stepsMost), engine.Synchronous)
			_, err := Recv(ctx, c, []int{0}, 0, 1)
			return err
		}
		if flag, err := c.Agree(ctx, 3); flag != 3 || !errors.Is(err, ErrProcFailed) {
			return fmt.Errorf("Agree gave %x, %w", flag, err)
		}
		return nil
	})
}

// One whose context ends is done without; the others are told, all the same.
func TestAgreeGivenUp(t *testing.T) {
	given := make(chan struct{})
	runMortals(t, []int{1, 1, 2}, func(ctx context.Context, c *Comm, w *mortals) error {
		switch c.Rank() {
		case 0:
			mine, stop := context.WithTimeout(ctx, time.Millisecond)
			defer stop()
			if _, err := c.Agree(mine, 1); !errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("error %v, want that of the context", err)
			}
			close(given)
		case 1:
			select {
			case <-given:
			case <-ctx.Done():
				return ctx.Err()
			}
			fallthrough
		default:
			flag, err := c.Agree(ctx, 3)
			if flag != 3 && flag != 1 {
				return fmt.Errorf("%x", flag)
			}
			if err := failedWith(err, ErrAbandoned, 0); err != nil {
				return err
			}
		}
		if flag, err := c.Agree(ctx, 5); flag != 5 || err != nil {
			return fmt.Errorf("the next: %x, %v", flag, err)
		}
		return nil
	})
}

// Who gives up a Shrink, with its word at the leader already or not, keeps nobody waiting; and what all call next
// is the next for all.
func TestShrinkGivenUp(t *testing.T) {
	for quitter := range 4 {
		given := make(chan struct{})
		runMortals(t, []int{1, 1, 2}, func(ctx context.Context, c *Comm, w *mortals) error {
			if c.Rank() == quitter {
				mine, stop := context.WithTimeout(ctx, time.Millisecond)
				defer stop()
				if _, err := c.Shrink(mine); !errors.Is(err, context.DeadlineExceeded) {
					return fmt.Errorf("error %v, want that of the context", err)
				}
				close(given)
			} else {
				select {
				case <-given:
				case <-ctx.Done():
					return ctx.Err()
				}
				if _, err := c.Shrink(ctx); failedWith(err, ErrAbandoned, quitter) != nil {
					return failedWith(err, ErrAbandoned, quitter)
				}
			}
			if flag, err := c.Agree(ctx, 5); flag != 5 || err != nil {
				return fmt.Errorf("the next: %x, %v", flag, err)
			}
			d, err := c.Shrink(ctx)
			if err != nil || d.Size() != c.Size() {
				return fmt.Errorf("the next to shrink: %v, %v", d, err)
			}
			return next(ctx, d)
		})
	}
}

// The survivors keep their order, and can go on.
func TestShrink(t *testing.T) {
	runMortals(t, []int{1, 2, 1, 1}, func(ctx context.Context, c *Comm, w *mortals) error {
		if w.of[c.Rank()] == 1 {
			return w.die(c)
		}
		d, err := c.Shrink(ctx)
		if err != nil {
			return err
		}
		want := []int{0, -1, -1, 1, 2}[c.Rank()]
		if d.Size() != 3 && d.Size() != 4 && d.Size() != 5 { // it may have been faster than the news
			return fmt.Errorf("%d ranks", d.Size())
		}
		if d.Size() > 3 {
			if err := knows(c, 2); err != nil {
				return err
			}
			if d, err = d.Shrink(ctx); err != nil {
				return err
			}
		}
		if d.Rank() != want || d.Size() != 3 {
			return fmt.Errorf("rank %d of %d, want %d of 3", d.Rank(), d.Size(), want)
		}
		if d.Failed().Size() != 0 {
			return errors.New("there are failed ranks in what was shrunk")
		}
		return next(ctx, d)
	})
}

// Ranks die at any moment of a program that goes on without them: what is left of it
// comes to one result.
func TestSurvivorsGoOn(t *testing.T) {
	const ranks, deaths, turns = 7, 3, 40
	for round := range 40 {
		var mu sync.Mutex
		results := map[string]int{}
		shrunk := 0
		runMortals(t, []int{1, 1, 1, 1, 1, 1, 1}, func(ctx context.Context, world *Comm, w *mortals) error {
			rng := rand.New(rand.NewPCG(uint64(round), uint64(world.Rank())))
			doomed := world.Rank() >= 1 && world.Rank() <= deaths
			if round%2 == 1 {
				doomed = world.Rank() < deaths // the leaders
			}
			if doomed {
				w.told.Go(func() {
					time.Sleep(time.Duration(rng.IntN(4000)) * time.Microsecond)
					w.kill(world.Rank())
				})
			}
			c := world
			for turn := 0; turn < turns || doomed; {
				sum := []int{1}
				err := Allreduce(ctx, c, sum, sum, Sum)
				if err != nil && !errors.Is(err, ErrProcFailed) && !errors.Is(err, ErrRevoked) {
					return err
				}
				if err != nil {
					if err := c.Revoke(ctx); err != nil {
						return err
					}
				}
				ok := uint64(1)
				if err != nil {
					ok = 0
				}
				flag, err := c.Agree(ctx, ok)
				if err != nil && !errors.Is(err, ErrProcFailed) {
					return err
				}
				if flag == 1 && err == nil {
					turn++
					continue
				}
				if c, err = c.Shrink(ctx); err != nil {
					return err
				}
				turns := []int{turn}
				if err := Allreduce(ctx, c, turns, turns, Max); err == nil && turns[0] != turn {
					return fmt.Errorf("turn %d here, and %d elsewhere", turn, turns[0])
				}
				mu.Lock()
				shrunk++
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			results[fmt.Sprint(c.context, c.Size(), c.Group().ranks)]++
			return nil
		})
		require.Len(t, results, 1, "round %d: survivors are in different communicators: %v", round, results)
		require.Positive(t, shrunk)
	}
}
