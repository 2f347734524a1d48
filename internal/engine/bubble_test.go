package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// inBubbles runs f in bubbles, with three connected ranks in different places.
// Goroutines that are left over when the engines are closed fail the test.
func inBubbles(t *testing.T, f func(t *testing.T, w *world)) {
	for _, c := range []struct {
		name    string
		ranks   []int
		crowded bool
	}{
		{"in one process", []int{3}, false},
		{"in three processes", []int{1, 1, 1}, false},
		{"in two processes, crowded", []int{2, 1}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, engine.Config{Keep: true, Crowded: c.crowded}, c.ranks...)
				w.ring(t, 8, 0)
				f(t, w)
			})
		})
	}
}

// ring passes a message of n bytes around all ranks, from rank 0 to rank 0.
// Each keeps it for a while.
func (w *world) ring(t *testing.T, n int, while time.Duration) {
	size := topology.Rank(len(w.boxes))
	w.run(t, func(b *engine.Box) error {
		left, right := (b.Rank()+size-1)%size, (b.Rank()+1)%size
		into := make([]byte, n)
		get := func() error {
			if _, err := b.Recv(t.Context(), recv, engine.Match{Peer: left}, into); err != nil {
				return err
			}
			if !bytes.Equal(into, pattern(n, n)) {
				return errors.New("other bytes came")
			}
			return nil
		}
		pass := func(data []byte) error {
			time.Sleep(while)
			return b.Send(t.Context(), send, engine.Match{Peer: right}, data, engine.Standard)
		}
		if b.Rank() == 0 {
			if err := pass(pattern(n, n)); err != nil {
				return err
			}
			return get()
		}
		if err := get(); err != nil {
			return err
		}
		return pass(into)
	})
}

// passed requires that time want has gone by since began, and no more: a wake-up
// that is missed costs until the next look, 5 ms.
func passed(t *testing.T, began time.Time, want time.Duration) {
	t.Helper()
	require.Equal(t, want, time.Since(began), "of virtual time")
}

func TestBubbleTimePassesWhileRanksWaitForMessages(t *testing.T) {
	inBubbles(t, func(t *testing.T, w *world) {
		for _, n := range []int{0, 100, 300_000} {
			began := time.Now()
			w.ring(t, n, 10*time.Second)
			passed(t, began, 30*time.Second)
		}
	})
}

func TestBubbleLongDeadline(t *testing.T) {
	inBubbles(t, func(t *testing.T, w *world) {
		patience := time.Hour
		if len(w.engines) > 1 { // they look at their connections every 5 ms
			patience /= 12
		}
		began := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		_, err := w.boxes[0].Recv(ctx, recv, engine.Match{Peer: 2}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, fmt.Sprintf("waited %v", patience))
		passed(t, began, patience)
	})
}

// All ranks wait in vain until one is told to give up, which then sends.
func TestBubbleOneRankGivesUp(t *testing.T) {
	inBubbles(t, func(t *testing.T, w *world) {
		began := time.Now()
		enough := errors.New("enough")
		ctx, giveUp := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { giveUp(enough) })
		w.run(t, func(b *engine.Box) error {
			if b.Rank() != 0 {
				_, err := b.Recv(t.Context(), recv, engine.Match{Peer: 0}, make([]byte, 1))
				return err
			}
			if _, err := b.Recv(ctx, recv, engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}, nil); !errors.Is(err, enough) {
				return fmt.Errorf("Recv after its context has ended = %v, want %v", err, enough)
			}
			for _, peer := range []topology.Rank{1, 2} {
				if err := b.Send(t.Context(), send, engine.Match{Peer: peer}, []byte{1}, engine.Synchronous); err != nil {
					return err
				}
			}
			return nil
		})
		passed(t, began, time.Minute)
	})
}
