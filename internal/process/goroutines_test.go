package process

import (
	"context"
	"io"
	"iter"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// started is goroutines of ranks.
type started struct{ sync.WaitGroup }

// as runs f in a goroutine of a rank.
func (s *started) as(rank int, f func()) {
	s.Go(func() {
		pprof.Do(context.Background(), pprof.Labels(Label, strconv.Itoa(rank)), func(context.Context) { f() })
	})
}

func TestWhatGoroutinesDo(t *testing.T) {
	var (
		all  started
		wg   sync.WaitGroup
		mu   sync.Mutex
		ch   = make(chan int)
		over = make(chan struct{})

		ended    atomic.Bool
		notified atomic.Bool
		steps    atomic.Int64
	)
	wg.Add(1)
	mu.Lock()
	e := engine.New(engine.Config{Processes: [][]topology.Rank{{0}}})
	timer := time.NewTimer(time.Hour)
	cond := sync.NewCond(new(sync.Mutex))
	all.as(0, wg.Wait)
	all.as(1, func() { mu.Lock(); defer mu.Unlock() })
	all.as(2, func() { cond.L.Lock(); cond.Wait(); cond.L.Unlock() })
	all.as(3, func() { ch <- 1 })
	all.as(4, func() {
		select {
		case <-make(chan int):
		case <-over:
		}
	})
	all.as(5, func() { <-over })
	all.as(6, func() {
		for !ended.Load() {
			select {
			case <-over:
				return
			default:
				steps.Add(1)
			}
		}
	})
	all.as(7, func() {
		for !ended.Load() {
			time.Sleep(50 * time.Millisecond)
		}
	})
	all.as(8, func() { e.Box(0).Recv(context.Background(), &engine.Call{Op: "Recv"}, engine.Match{}, nil) })
	all.as(9, func() { <-timer.C })
	all.as(10, func() {
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGUSR2) // for which Go starts a goroutine
		defer signal.Stop(told)
		notified.Store(true) // within Notify it is parked, too
		<-over
	})
	defer func() {
		ended.Store(true)
		wg.Done()
		mu.Unlock()
		close(over)
		e.Close()
		cond.Broadcast()
		timer.Reset(0)
		all.Wait()
	}()
	var does map[int]*activity
	ready := func() bool {
		if !notified.Load() {
			return false
		}
		does, _ = goroutines()
		if len(does) < 11 || does[8].calls == 0 {
			return false
		}
		for _, rank := range []int{0, 1, 2, 3, 4, 5, 9, 10} {
			if len(does[rank].parked) == 0 {
				return false
			}
		}
		return does[6].busy == 1 && does[7].busy == 1
	}
	require.Eventually(t, ready, 20*time.Second, 10*time.Millisecond)
	<-ch
	for rank, want := range map[int][2]string{
		0: {"WaitGroup.Wait", control.NeedGoroutine},
		1: {"Mutex.Lock", control.NeedGoroutine},
		2: {"Cond.Wait", control.NeedGoroutine},
		3: {"a channel send", control.NeedEvent},
		4: {"select", control.NeedEvent},
		5: {"a channel receive", control.NeedEvent},
		9: {"a channel receive", control.NeedEvent},

		10: {"a channel receive", control.NeedEvent},
	} {
		require.Zero(t, does[rank].busy+does[rank].calls, "rank %d", rank)
		require.Len(t, does[rank].parked, 1, "rank %d", rank)
		w := does[rank].parked[0]
		require.Equal(t, want, [2]string{w.Op, w.Needs[0].What}, "rank %d", rank)
		require.Regexp(t, `^goroutines_test\.go:\d+$`, w.Where)
	}
	for _, rank := range []int{6, 7} {
		require.Equal(t, activity{busy: 1}, *does[rank], "rank %d", rank)
	}
	require.Equal(t, activity{calls: 1}, *does[8])
}

// The ids of what waits are the same as long as it waits.
func TestParkedGoroutinesAreKnownAgain(t *testing.T) {
	var all started
	over := make(chan struct{})
	defer all.Wait()
	defer close(over)
	all.as(1, func() { <-over })
	all.as(2, func() { <-over })
	var does map[int]*activity
	look := func() bool {
		does, _ = goroutines()
		return does[1] != nil && does[2] != nil && len(does[1].parked) == 1 && len(does[2].parked) == 1
	}
	require.Eventually(t, look, 20*time.Second, time.Millisecond)
	first := does[1].parked[0].ID
	require.True(t, look())
	require.Equal(t, first, does[1].parked[0].ID)
}

// Goroutines of no rank may free what ranks wait for, whatever they wait for themselves.
func TestStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var all sync.WaitGroup
	defer all.Wait()
	over := make(chan struct{})
	defer close(over)
	defer l.Close()
	all.Go(func() { <-over })
	all.Go(func() { l.Accept() })
	all.Go(func() {
		for {
			select {
			case <-over:
				return
			default:
				time.Sleep(100 * time.Millisecond)
			}
		}
	})
	var ops []string
	ready := func() bool {
		_, strangers := goroutines()
		ops = nil
		for _, w := range strangers.parked {
			require.Equal(t, control.NeedEvent, w.Needs[0].What)
			if strings.HasPrefix(w.Where, "goroutines_test.go") {
				ops = append(ops, w.Op)
			}
		}
		return len(ops) == 3 && strangers.busy == 2 // the one below, and this test
	}
	all.Go(func() {
		for open := true; open; {
			select {
			case <-over:
				open = false
			default:
			}
		}
	})
	require.Eventually(t, ready, 20*time.Second, 10*time.Millisecond)
	require.ElementsMatch(t, []string{"a channel receive", "a system call or a sleep", "a server"}, ops)
}

// What a goroutine does that is there for others is theirs: it says nothing of a rank.
func TestGoroutinesThatServeOthers(t *testing.T) {
	var all started
	over := make(chan struct{})
	defer all.Wait()
	defer close(over)
	all.as(1, func() {
		if trace.Start(io.Discard) == nil { // else the tests are traced
			defer trace.Stop()
		}
		next, stop := iter.Pull(func(yield func(int) bool) { yield(1) })
		defer stop()
		next()
		<-over
	})
	all.as(2, func() {
		next, stop := iter.Pull(func(yield func(int) bool) { <-over })
		defer stop()
		next()
	})
	all.as(3, func() { // a function of the program, that something of Go's runs
		ended := make(chan struct{})
		go trace.WithRegion(context.Background(), "it waits", func() { <-over; close(ended) })
		<-ended
	})
	require.Eventually(t, func() bool {
		does, _ := goroutines()
		return does[3] != nil && len(does[3].parked) == 2 && does[1] != nil && len(does[1].parked) == 1 && does[1].busy == 0 &&
			does[2] != nil && len(does[2].parked) == 1 && does[2].busy == 0
	}, 20*time.Second, 10*time.Millisecond)
}
