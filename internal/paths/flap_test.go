package paths

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
	"github.com/mpiv/mpiv/topology"
)

// newFlapping is two ends with two paths over each of two networks, and nothing
// that fails by itself.
func newFlapping(seed uint64) *faulty {
	w := &faulty{rng: rand.New(rand.NewPCG(seed, 2)), start: time.Unix(1_700_000_000, 0)}
	w.now, w.lastFault = w.start, w.start
	var all []Path
	for i, class := range []topology.Class{topology.SAN, topology.LAN} {
		for _, name := range []string{"tcp", "quic"} {
			all = append(all, Path{Name: fmt.Sprint(class, " ", name), Class: class, Network: fmt.Sprint(i)})
			w.nets = append(w.nets, net{carrier: i, up: w.start, rate: 100})
		}
	}
	for i := range w.ends {
		w.ends[i] = &end{pair: New(Config{Paths: all, Plans: i == 0, Seed: seed + uint64(i)}), using: -1, attempt: make([]int, len(all))}
	}
	return w
}

// joins counts how often an end comes back to the first network from the other.
type joins struct{ last, count int }

func (j *joins) see(using int) {
	if using < 0 || using == j.last {
		return
	}
	if using < 2 && j.last >= 2 {
		j.count++
	}
	j.last = using
}

// TestANetworkThatFlapsIsLeftAlone: whichever of its paths answers in the moments in
// which it works, and whichever end notices first that it does not, the pair goes
// back to it as rarely as the pauses of one path allow: after 1, 2, 4, 8, 16, 32 s.
func TestANetworkThatFlapsIsLeftAlone(t *testing.T) {
	most := 0
	seeds.Each(t, usual, func(seed uint64) {
		w := newFlapping(seed)
		seen := joins{last: -1}
		next, silent := w.start.Add(time.Second), false
		require.NoError(t, w.runFor(time.Minute, func() {
			seen.see(w.ends[0].using)
			if w.now.Before(next) {
				return
			}
			silent = !silent
			w.silence(0, silent)
			next = w.now.Add(time.Duration(150+w.rng.IntN(600)) * time.Millisecond)
		}))
		most = max(most, seen.count)
		if seen.count < 3 || seen.count > 7 {
			t.Errorf("it went back to the network that flaps %d times in a minute, want 3 to 7\n%s",
				seen.count, seeds.Replay("./internal/paths", t.Name(), seed))
		}
	})
	t.Logf("at most %d times", most)
}

// TestAPathThatBreaksByItselfLeavesTheOthers: where only TCP over the best network
// breaks, again and again, the pair stays on that network.
func TestAPathThatBreaksByItselfLeavesTheOthers(t *testing.T) {
	seeds.Each(t, usual, func(seed uint64) {
		w := newFlapping(seed)
		breaks, away := 0, 0
		next := w.start.Add(time.Second)
		require.NoError(t, w.runFor(time.Minute, func() {
			if w.ends[0].using >= 2 {
				away++
			}
			if w.now.Before(next) || w.ends[0].using != 0 || w.ends[1].using != 0 {
				return
			}
			breaks++
			next = w.now.Add(time.Duration(100+w.rng.IntN(400)) * time.Millisecond)
			for _, e := range w.ends {
				e.using = -1
				w.must(w.step(e, Want{errors.New("reset")}))
			}
		}))
		if away > 0 || breaks < 3 || breaks > 8 {
			t.Errorf("%d ms on the other network, %d breaks: want none, and 3 to 8\n%s",
				away, breaks, seeds.Replay("./internal/paths", t.Name(), seed))
		}
	})
}

func TestWhatAnErrorSaysOfTheNetwork(t *testing.T) {
	broken := func(err error) error { return fmt.Errorf("send to san: %w: %w", errors.New("broken"), err) }
	for err, want := range map[error]bool{
		syscall.ETIMEDOUT:        true,
		syscall.EHOSTUNREACH:     true,
		os.ErrDeadlineExceeded:   true,
		syscall.ECONNRESET:       false,
		syscall.EPIPE:            false,
		errors.New("bad record"): false,
	} {
		require.Equal(t, want, silenced(broken(err)), "silenced(%v)", err)
	}
	require.False(t, silenced(nil))
}
