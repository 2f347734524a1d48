package engine_test

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

// An alarmed connection tells when it was asked to wake somebody.
type alarmed struct {
	transport.Conn
	told func()
}

func (c alarmed) Arm(wake func()) {
	c.Conn.Arm(wake)
	c.told()
}

// alarmedWorld is two ranks that have talked; armed is how often the connection of the first was.
func alarmedWorld(t *testing.T) (w *world, armed *atomic.Int64) {
	armed = new(atomic.Int64)
	return alarmedWorldTelling(t, func() { armed.Add(1) }), armed
}

// alarmedWorldTelling is two ranks that have talked; told is called after each Arm of the first's connection.
func alarmedWorldTelling(t *testing.T, told func()) (w *world) {
	return wrappedWorld(t, func(conn transport.Conn) transport.Conn { return alarmed{conn, told} })
}

// wrappedWorld is two ranks that have talked, the first over what wrap makes of its connection.
func wrappedWorld(t *testing.T, wrap func(transport.Conn) transport.Conn) (w *world) {
	network := mem.NewNetwork(mem.Options{})
	w = newWorldOn(t, engine.Config{}, func(process int) transport.Endpoint {
		ep, err := network.Listen(strconv.Itoa(process))
		require.NoError(t, err)
		if process != 0 {
			return ep
		}
		return wrapped{ep, wrap}
	}, 1, 1)
	w.ring(t, 8, 0)
	return w
}

// While a goroutine sleeps, who stops polling has to have the connections wake somebody,
// which costs more than the message. For one that is patient they need not, nor where
// others come to poll all the time.
func TestSleepersAreNoBurden(t *testing.T) {
	patience := &engine.Call{Op: "Recv", Patient: true}
	const late, rounds = 9, 1000
	for _, c := range []struct {
		name  string
		call  *engine.Call
		pause time.Duration // between two messages
		armed bool          // for most of them
	}{{"patient", patience, 300 * time.Microsecond, false}, {"not patient", recv, 300 * time.Microsecond, true}, {"not patient, and others poll all the time", recv, 0, false}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // the clock is that of the pauses
				w, count := alarmedWorld(t)
				came := make(chan error)
				go func() {
					_, err := w.boxes[0].Recv(t.Context(), c.call, engine.Match{Peer: 1, Tag: late}, nil)
					came <- err
				}()
				synctest.Wait()
				before := count.Load()
				for range rounds { // nobody waits here: a look, and away
					time.Sleep(c.pause)
					w.lookUntilItCame(t)
				}
				armed := count.Load() - before
				require.Equal(t, c.armed, armed >= rounds/2, "armed %d times for %d messages", armed, rounds)
				require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: late}, nil, engine.Standard))
				require.NoError(t, <-came)
			})
		})
	}
}

// One who is patient is woken at once where nobody else polls, time and again.
func TestPatientCallsAreWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		patience := &engine.Call{Op: "Recv", Patient: true}
		w := newWorld(t, engine.Config{}, 1, 1)
		w.ring(t, 8, 0)
		came := make(chan time.Time)
		go func() {
			for range 5 {
				_, err := w.boxes[0].Recv(t.Context(), patience, engine.Match{Peer: 1}, nil)
				require.NoError(t, err)
				came <- time.Now()
			}
		}()
		time.Sleep(time.Second)
		for range 5 {
			require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, nil, engine.Standard)) // wakes it in vain
			time.Sleep(time.Millisecond)
			sent := time.Now()
			require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0}, nil, engine.Standard))
			require.Equal(t, sent, <-came)
		}
	})
}

// A stream of messages to a program that computes has it woken a few times only: nobody waits for it
// longer than some milliseconds. Once it has been quiet nobody waits at all.
func TestWhoComputesIsLeftInPeace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages, few, soon = 1000, 40, 5 * time.Millisecond
		w, armed := alarmedWorld(t)
		from, to := engine.Match{Peer: 1}, engine.Match{Peer: 0}
		go w.boxes[0].Recv(t.Context(), &engine.Call{Op: "Recv", Patient: true}, engine.Match{Peer: 1, Tag: 9}, nil)
		var asked []engine.Request
		for range messages + 1 {
			asked = append(asked, w.boxes[0].Irecv(from, nil))
		}
		time.Sleep(time.Second)
		before, slow := armed.Load(), 0
		for range messages {
			sent := time.Now()
			require.NoError(t, w.boxes[1].Send(t.Context(), send, to, nil, engine.Synchronous))
			took := time.Since(sent)
			require.LessOrEqual(t, took, soon)
			if took > 0 {
				slow++
			}
			time.Sleep(time.Millisecond)
		}
		require.LessOrEqual(t, armed.Load()-before, int64(few))
		require.NotZero(t, slow)
		time.Sleep(time.Second)
		sent := time.Now()
		require.NoError(t, w.boxes[1].Send(t.Context(), send, to, nil, engine.Synchronous))
		require.Equal(t, sent, time.Now())
		for _, r := range asked {
			_, err := r.Wait(t.Context(), recv)
			require.NoError(t, err)
		}
	})
}

// Who sleeps while others poll all the time is woken some milliseconds after they have
// stopped, and from then on at once.
func TestSleepersAreWokenWhenOthersStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late, rounds, soon = 9, 1000, 10 * time.Millisecond
		w := newWorld(t, engine.Config{}, 1, 1)
		w.ring(t, 8, 0)
		came := make(chan time.Time)
		go func() {
			for range 2 {
				_, err := w.boxes[0].Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: late}, nil)
				require.NoError(t, err)
				came <- time.Now()
			}
		}()
		synctest.Wait()
		for range rounds {
			w.lookUntilItCame(t)
		}
		sent := time.Now()
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: late}, nil, engine.Standard))
		require.LessOrEqual(t, (<-came).Sub(sent), soon)
		time.Sleep(time.Second)
		sent = time.Now()
		require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: late}, nil, engine.Standard))
		require.Equal(t, sent, <-came)
	})
}

// What comes while who falls asleep has the connections armed is found at once, though whom they woke
// could not look for it then: at the first time that it arms them, at the second, and where others have polled
// all the time.
func TestWhoFallsAsleepIsWokenByWhatComesMeanwhile(t *testing.T) {
	const late, other, last = 9, 8, 7
	for _, c := range []struct {
		name  string
		looks int
		tags  []int32 // of what comes when they are armed
	}{{"at first", 0, []int32{late}}, {"then", 0, []int32{other, late}}, {"others polled", 100, []int32{late}}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var w *world
				var tags []int32
				w = alarmedWorldTelling(t, func() {
					if len(tags) == 0 {
						return
					}
					tag := tags[0]
					tags = tags[1:]
					require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: tag}, nil, engine.Standard))
					synctest.Wait() // who was woken finds that somebody polls
				})
				came := make(chan error)
				go func() { // or nobody minds how often others poll
					_, err := w.boxes[0].Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: last}, nil)
					came <- err
				}()
				time.Sleep(time.Second)
				began := time.Now()
				for range c.looks {
					w.lookUntilItCame(t)
				}
				synctest.Wait()
				tags = c.tags
				_, err := w.boxes[0].Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: late}, nil)
				require.NoError(t, err)
				require.Empty(t, tags)
				passed(t, began, 0)
				require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: last}, nil, engine.Standard))
				require.NoError(t, <-came)
			})
		})
	}
}

// lookUntilItCame has rank 0 receive a message without waiting for it.
func (w *world) lookUntilItCame(t *testing.T) {
	t.Helper()
	r := w.boxes[0].Irecv(engine.Match{Peer: 1}, nil)
	require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0}, nil, engine.Standard))
	for done := false; !done; {
		var err error
		_, done, err = r.Test()
		require.NoError(t, err)
	}
}

// Who polls again and again looks at what asks for it now and then, and nobody does when nobody polls. After that, too,
// who sleeps is woken.
func TestWhoPollsLooks(t *testing.T) {
	const late = 9
	w := newWorld(t, engine.Config{}, 1, 1)
	var looks atomic.Int64
	w.engines[0].LookWhilePolling(func(time.Time) { looks.Add(1) })
	came := make(chan error)
	go func() {
		_, err := w.boxes[0].Recv(t.Context(), recv, engine.Match{Peer: 1, Tag: late}, nil)
		came <- err
	}()
	for began := time.Now(); looks.Load() < 3 || time.Since(began) < 100*time.Millisecond; {
		w.lookUntilItCame(t)
	}
	before := looks.Load()
	time.Sleep(50 * time.Millisecond)
	require.Equal(t, before, looks.Load())
	require.NoError(t, w.boxes[1].Send(t.Context(), send, engine.Match{Peer: 0, Tag: late}, nil, engine.Standard))
	require.NoError(t, <-came)
}
