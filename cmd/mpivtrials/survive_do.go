//go:build linux

package main

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
)

// do does one thing, and tells whom it killed. Before, it waits until the job has the
// spare processes that this takes: it survives as many deaths at once as it has
// spares. others is what goes on in the background. errOver: the job is ending.
func (w *disturber) do(ctx context.Context, s *survivor, a act, others *sync.WaitGroup) (kills []kill, err error) {
	needs := 1
	if slices.Contains([]deed{deedSeveral, deedAgain, deedMoving, deedTarget, deedSpare}, a.deed) {
		needs = surviveSpares
	}
	err = s.await(ctx, patience, func() bool {
		return !s.runningLocked() || len(s.sparesLocked()) >= needs && s.ofLocked(a.ranks[0]) >= 0 && s.ofLocked(a.ranks[1]) >= 0
	})
	shoot := func(ranks ...int) {
		var ks []kill
		if ks, err = s.shoot(a.deed, ranks...); err == nil {
			kills = append(kills, ks...)
		}
	}
	wait := func() {
		if err == nil {
			err = s.pause(ctx, a.delay)
		}
	}
	if err != nil {
		return nil, err
	}
	w.done[a.deed]++
	if !slices.Contains(hostDeeds, a.deed) {
		w.noted(a.deed, "ranks %v, delay %v, lasts %v", a.ranks, a.delay, a.lasts)
	}
	switch a.deed {
	case deedDrain:
		err = w.drain(ctx, a, others)
	case deedAdd:
		w.add(others)
	case deedHost, deedAgent, deedCutOff, deedBlink, deedApart, deedPause, deedFreeze, deedLeader:
		err = w.toHost(ctx, a, others)
	case deedKill:
		shoot(a.ranks[0])
	case deedSeveral:
		shoot(a.ranks[:]...)
	case deedAgain:
		if shoot(a.ranks[0]); err == nil {
			err = s.await(ctx, patience, func() bool { return !s.runningLocked() || s.ofLocked(a.ranks[0]) >= 0 })
		}
		if wait(); err == nil {
			shoot(a.ranks[0])
		}
	case deedMove:
		others.Go(func() { w.move(s, a.ranks[0]) })
	case deedMoving:
		others.Go(func() { w.move(s, a.ranks[0]) })
		if wait(); err == nil {
			shoot(a.ranks[int(a.delay/time.Millisecond)%2])
		}
	case deedTarget:
		others.Go(func() { w.move(s, a.ranks[0]) })
		wait()
		fallthrough
	case deedSpare:
		if err == nil && s.shootSpare() {
			w.spare++
		}
	case deedStop, deedStopped:
		others.Go(func() { s.stop(ctx, a.ranks[0], a.lasts) })
		if a.deed == deedStopped {
			if wait(); err == nil {
				shoot(a.ranks[0])
			}
		}
	}
	return kills, err
}

// shoot kills the processes that have ranks, at once. errOver: no rank should be lost
// any more.
func (s *survivor) shoot(d deed, ranks ...int) (kills []kill, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return nil, errOver
	}
	for _, r := range ranks {
		k := kill{deed: d, process: s.ofLocked(r), at: time.Now()}
		if k.process >= 0 && s.signalLocked(k.process, syscall.SIGKILL) == nil {
			kills = append(kills, k)
		}
	}
	return kills, nil
}

// shootSpare kills the spare process that is the next to be used.
func (s *survivor) shootSpare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.sparesLocked()
	return len(free) > 0 && s.signalLocked(free[0], syscall.SIGKILL) == nil
}

// stop stops the process of a rank for a while.
func (s *survivor) stop(ctx context.Context, rank int, lasts time.Duration) {
	s.mu.Lock()
	p := s.ofLocked(rank)
	ok := p >= 0 && s.runningLocked() && s.signalLocked(p, syscall.SIGSTOP) == nil
	s.mu.Unlock()
	if !ok {
		return
	}
	_ = s.pause(ctx, lasts) // whatever the reason, that is the end of it
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.signalLocked(p, syscall.SIGCONT) // it may be dead
}

var numbers = regexp.MustCompile(`[0-9]+`)

// move moves a rank.
func (w *disturber) move(s *survivor, rank int) {
	w.order(s, agent.Question{Op: "move", Rank: rank})
}

// order gives an order, and notes what came of it.
func (w *disturber) order(s *survivor, q agent.Question) error {
	_, err := s.ask(q)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.obeyed[q.Op]++
		return nil
	}
	w.refused[q.Op+": "+numbers.ReplaceAllString(err.Error(), "N")]++
	return err
}

// over tells whether err says no more than that a job is at its end.
func over(err error) bool { return errors.Is(err, errOver) }
