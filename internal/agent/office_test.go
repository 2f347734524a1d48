package agent

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/rundir"
)

// Who asks for the head where it is not is served when it is, and not by one that was; in the end he is
// sent away, to ask elsewhere.
func TestWhoLooksForTheHeadWaitsAWhile(t *testing.T) {
	nobody := identity.Name{Role: identity.Agent} // the head sends him away at once
	begun := func() *office {
		s := new(office)
		s.init(&deputy{boot: control.Boot{Outlive: true}})
		return s
	}
	waited := func(s *office) time.Duration {
		since := time.Now()
		s.await(nil, nobody)
		return time.Since(since)
	}
	former := &Agent{head: new(head), ended: make(chan struct{}), deposed: errNoHead}
	close(former.ended)
	for name, c := range map[string]struct {
		do   func(s *office)
		want time.Duration
	}{
		"it is elsewhere": {func(*office) {}, awaitTime},
		"it is here":      {func(s *office) { s.sit(&Agent{head: new(head), ended: make(chan struct{})}) }, 0},
		"it was here":     {func(s *office) { s.sit(former) }, awaitTime},
		"it comes": {func(s *office) {
			time.AfterFunc(awaitTime/2, func() { s.sit(&Agent{head: new(head), ended: make(chan struct{})}) })
		}, awaitTime / 2},
		"one that was comes": {func(s *office) { time.AfterFunc(awaitTime/2, func() { s.sit(former) }) }, awaitTime},
		"the job ends":       {func(s *office) { time.AfterFunc(awaitTime/2, s.stop) }, awaitTime / 2},
		"it comes back": {func(s *office) {
			s.sit(former)
			time.AfterFunc(awaitTime/2, func() { s.sit(&Agent{head: new(head), ended: make(chan struct{})}) })
		}, awaitTime / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := begun()
				c.do(s)
				require.Equal(t, c.want, waited(s))
				s.mu.Lock()
				a := s.agent
				s.mu.Unlock()
				if a != nil && a != former {
					close(a.ended)
				}
				s.wg.Wait()
			})
		})
	}
}

// Who asks while no agent leads hears so.
func TestNobodyLeads(t *testing.T) {
	t.Parallel()
	d := &deputy{answers: map[uint64]chan<- []byte{}, over: make(chan struct{})}
	dir := t.TempDir()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: rundir.AskSocket(dir), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	var own sync.WaitGroup
	defer own.Wait()
	own.Go(func() {
		if c, err := l.AcceptUnix(); err == nil {
			d.question(c)
			c.Close()
		}
	})
	_, err = Ask(dir, Question{Op: "explain"})
	require.ErrorIs(t, err, ErrNoHead)
}
