package fabric_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
)

func TestStartsOnTheBestClass(t *testing.T) {
	nets := newMems(topology.WAN, topology.SAN, topology.LAN)
	w := newWorld(t, 2, func(p int) site { return nets.site(t, p, plain) })
	require.Empty(t, w.fabrics[0].Links(), "nothing was sent yet")
	w.say(0, 1)
	w.eventually(0, 1, topology.SAN)
	l := w.link(0, 1)
	require.Equal(t, "best class both offer", l.Why)
	require.Equal(t, 3, len(l.Candidates))
	require.Equal(t, engine.Traffic{Messages: 1, Bytes: 8}, l.Sent)
	require.Equal(t, engine.Traffic{Messages: 1, Bytes: 8}, w.link(1, 0).Received)
	require.Equal(t, transport.Addr("mem:san0"), l.Candidates[0].Local)
	require.Equal(t, transport.Addr("mem:san1"), l.Candidates[0].Remote)
}

// A path that does not answer is not waited for, and taken when it does.
func TestStartsOnWhatAnswers(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN)
	nets[topology.SAN].Pull()
	w := newWorld(t, 2, func(p int) site { return nets.site(t, p, plain) })
	began := time.Now()
	w.say(1, 0)
	require.Less(t, time.Since(began), 20*time.Second)
	w.eventually(0, 1, topology.LAN)
	nets[topology.SAN].Plug()
	w.eventually(0, 1, topology.SAN)
	w.say(1, 0)
}

func TestFailsWithEveryPath(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN)
	for _, n := range nets {
		n.Pull()
	}
	w := newWorld(t, 2, func(p int) site {
		s := nets.site(t, p, plain)
		s.patience = 300 * time.Millisecond
		return s
	})
	r := w.box(0).Isend(engine.Match{Peer: 1, Tag: 1}, make([]byte, 100_000), engine.Synchronous)
	require.Empty(t, w.fabrics[0].Missed(time.Hour))
	require.Eventually(t, func() bool {
		all := w.fabrics[0].Missed(50 * time.Millisecond)
		return len(all) == 1 && all[0].Process == 1 && strings.Contains(all[0].Why, "san mem:san1: ")
	}, 20*time.Second, time.Millisecond)
	_, err := r.Wait(t.Context(), send)
	require.ErrorContains(t, err, "process 1 cannot be reached: no path works, tried for 300ms: san mem:san1: no answer in time; lan mem:lan1: no answer in time")
}

func TestFailsWithoutANetworkInCommon(t *testing.T) {
	nets := [2]mems{newMems(topology.SAN), newMems(topology.LAN)}
	w := newWorld(t, 2, func(p int) site { return nets[p].site(t, p, plain) })
	err := w.box(0).Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, make([]byte, 100_000), engine.Synchronous)
	require.ErrorContains(t, err, "no network in common: it has [{lan mem:lan1}], this process [{san mem:san0}]")
}

// A process that was started later can be a rank's before it is known where it is.
func TestWaitsForWhereAProcessIs(t *testing.T) {
	nets := newMems(topology.LAN)
	w := newWorld(t, 2, func(p int) site {
		s := nets.site(t, p, plain)
		s.unmet = []int{1 - p}
		return s
	})
	r := w.box(1).Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 8))
	s := w.box(0).Isend(engine.Match{Peer: 1, Tag: 1}, make([]byte, 8), engine.Standard)
	time.Sleep(50 * time.Millisecond)
	w.fabrics[0].Meet(1, w.fabrics[1].Addrs())
	for _, request := range []engine.Request{s, r} {
		_, err := request.Wait(t.Context(), recv)
		require.NoError(t, err)
	}
	w.say(1, 0)
}

// While no path works nothing is left for another: all of them are silent because
// the other process is, for all that can be known.
func TestNothingIsLeftWhileNothingAnswers(t *testing.T) {
	for name, wrap := range map[string]func(transport.Endpoint) transport.Endpoint{"measured": plain, "unmeasured": unmeasured} {
		t.Run(name, func(t *testing.T) {
			nets := newMems(topology.SAN, topology.LAN)
			w := newWorld(t, 2, func(p int) site { return nets.site(t, p, wrap) })
			w.say(0, 1)
			w.eventually(0, 1, topology.SAN)
			nets[topology.SAN].Pull()
			nets[topology.LAN].Pull()
			r := w.box(1).Irecv(engine.Match{Peer: 0, Tag: 1}, make([]byte, 8))
			require.NoError(t, w.box(0).Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, make([]byte, 8), engine.Standard))
			time.Sleep(time.Second)
			require.Eventually(t, func() bool { return strings.HasPrefix(w.link(0, 1).Candidates[0].State, "in use, stalled for") }, 20*time.Second, time.Millisecond)
			require.Equal(t, 0, w.link(0, 1).Switches)
			nets[topology.SAN].Plug()
			_, err := r.Wait(t.Context(), recv)
			require.NoError(t, err)
			require.Equal(t, 0, w.link(0, 1).Switches)
		})
	}
}

// Of two ends that both leave a silent path at once exactly one is heard.
func TestBothEndsLeaveAtOnce(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN, topology.WAN)
	w := newWorld(t, 2, func(p int) site { return nets.site(t, p, plain) })
	for range 2 {
		w.say(0, 1)
		w.eventually(0, 1, topology.SAN)
		nets[topology.SAN].Pull()
		var both sync.WaitGroup
		both.Go(func() { w.say(0, 1) })
		both.Go(func() { w.say(1, 0) })
		both.Wait()
		w.eventually(0, 1, topology.LAN)
		require.Contains(t, w.link(0, 1).Candidates[0].State+w.link(1, 0).Candidates[0].State, "stalled for")
		nets[topology.SAN].Plug()
	}
}

// A network that is to be avoided is left though it works, and gone back to when it no longer is.
func TestAvoidedNetworkIsLeft(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN)
	w := newWorld(t, 2, func(p int) site { return nets.site(t, p, plain) })
	avoid := func(d time.Duration) {
		for p, f := range w.fabrics {
			f.Avoid([]int{1 - p}, topology.SAN, d, "the leader's order")
		}
	}
	w.say(0, 1)
	w.eventually(0, 1, topology.SAN)
	avoid(time.Minute)
	w.eventually(0, 1, topology.LAN)
	w.say(0, 1)
	w.say(1, 0)
	require.Equal(t, "san mem:san1 is to be avoided: the leader's order", w.link(0, 1).Why)
	require.Regexp(t, "^idle, next probe in (5[0-9]|1m0s)", w.link(0, 1).Candidates[0].State)

	nets[topology.LAN].Pull() // it is used where no other works
	w.say(1, 0)
	w.eventually(0, 1, topology.SAN)
	nets[topology.LAN].Plug()
	w.eventually(0, 1, topology.LAN)

	avoid(0)
	w.eventually(0, 1, topology.SAN)
	w.say(0, 1)
}

func TestFencedProcessIsRefused(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN)
	w := newWorld(t, 3, func(p int) site {
		s := nets.site(t, p, plain)
		s.patience = 200 * time.Millisecond
		return s
	})
	w.say(0, 1)
	w.say(0, 2)
	w.fabrics[0].Fence(1)
	require.Eventually(t, func() bool { return w.engines[1].Link(0).Conn == nil }, 20*time.Second, time.Millisecond)
	require.ErrorContains(t, w.box(1).Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, nil, engine.Synchronous), "process 0 cannot be reached")
	require.Nil(t, w.engines[0].Link(1).Conn)
	w.say(2, 0) // others are not concerned
}

// A misplaced endpoint says that it is where another is.
type misplaced struct {
	transport.Endpoint
	addr transport.Addr
}

func (e *misplaced) Addr() transport.Addr { return e.addr }

func TestAnotherThanWhoWasDialedIsRefused(t *testing.T) {
	nets := newMems(topology.LAN)
	w := newWorld(t, 3, func(p int) site {
		s := nets.site(t, p, func(e transport.Endpoint) transport.Endpoint {
			if p == 1 {
				return &misplaced{e, "mem:lan2"}
			}
			return e
		})
		s.patience = 200 * time.Millisecond
		return s
	})
	err := w.box(0).Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, nil, engine.Synchronous)
	require.ErrorContains(t, err, "process 1 cannot be reached")
	// Who was dialed so may see it first, and hang up; what is told is how the last try ended.
	require.Regexp(t, "process 2 answers where process 1 was dialed|connection is broken", err)
}

// A pair that has one path, or memory that both map, is not looked at.
func TestOnePathCostsNothing(t *testing.T) {
	nets := newMems(topology.SAN)
	var reads reads
	w := newWorld(t, 2, func(p int) site { return nets.site(t, p, reads.count) })
	w.say(0, 1)
	w.say(1, 0)
	time.Sleep(100 * time.Millisecond)
	require.Zero(t, reads.load())

	nets = newMems(topology.SAN, topology.LAN)
	w = newWorld(t, 2, func(p int) site { return nets.site(t, p, reads.count) })
	w.box(0).Isend(engine.Match{Peer: 1, Tag: 1}, make([]byte, 100_000), engine.Standard) // nobody receives it
	require.Eventually(t, func() bool { return reads.load() > 0 }, 20*time.Second, time.Millisecond, "with two paths it is")
}

// reads counts the readings of connections.
type reads struct {
	mu sync.Mutex
	n  int
}

func (r *reads) load() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

func (r *reads) count(ep transport.Endpoint) transport.Endpoint {
	return &wrapped{ep, func(c transport.Conn) transport.Conn { return &counted{c, r} }}
}

type counted struct {
	transport.Conn
	reads *reads
}

func (c *counted) Path() transport.PathInfo {
	c.reads.mu.Lock()
	c.reads.n++
	c.reads.mu.Unlock()
	return c.Conn.(*mem.Conn).Path()
}

// A certified connection's other end has a certificate.
type certified struct {
	transport.Conn
	cert *x509.Certificate
}

func (c *certified) Certificate() *x509.Certificate { return c.cert }

// certify gives connections the certificates of who is on their other end, but as
// swap says.
func certify(swap map[int]int) func(ep transport.Endpoint) transport.Endpoint {
	return func(ep transport.Endpoint) transport.Endpoint {
		return &wrapped{ep, func(c transport.Conn) transport.Conn {
			peer := int(c.Peer()[len(c.Peer())-1] - '0')
			if as, ok := swap[peer]; ok {
				peer = as
			}
			if peer < 0 {
				return &certified{c, nil}
			}
			return &certified{c, &x509.Certificate{Raw: []byte{byte(peer)}}}
		}}
	}
}

func authenticate(cert *x509.Certificate) (int, error) {
	if cert.Raw[0] == 9 {
		return 0, errors.New("it was declared dead")
	}
	return int(cert.Raw[0]), nil
}

func TestWhoIsNotWhoItSaysIsRefused(t *testing.T) {
	tests := []struct {
		name    string
		class   topology.Class
		swap    map[int]int // what process 0 is shown of the others
		refused string
	}{
		{"everybody is who it is", topology.LAN, nil, ""},
		{"process 1 has the certificate of 2", topology.LAN, map[int]int{1: 2},
			`connection from mem:lan1 says it is process 1 but has the certificate of process 2: refused`},
		{"a certificate that is accepted no more", topology.LAN, map[int]int{1: 9}, `its certificate: it was declared dead: no process of this job`},
		{"no certificate between hosts", topology.LAN, map[int]int{1: -1}, `over lan has no certificate: no process of this job`},
		{"no certificate on one host", topology.SameHost, map[int]int{1: -1}, ""},
		{"another's certificate on one host", topology.SameHost, map[int]int{1: 2}, `has the certificate of process 2: refused`},
	}
	for _, tt := range tests {
		for _, dials := range []int{0, 1} {
			t.Run(tt.name, func(t *testing.T) {
				var log bytes.Buffer
				nets := newMems(tt.class)
				w := newWorld(t, 3, func(p int) site {
					swap := tt.swap
					if p != 0 {
						swap = nil
					}
					s := nets.site(t, p, certify(swap))
					s.authenticate, s.patience = authenticate, 200*time.Millisecond
					if p == 0 {
						s.log = slog.NewTextHandler(&log, nil)
					}
					return s
				})
				if tt.refused == "" {
					w.say(dials, 1-dials)
					require.Zero(t, w.fabrics[0].Refused())
					return
				}
				w.say(0, 2)
				err := w.box(dials).Send(t.Context(), send, engine.Match{Peer: topology.Rank(1 - dials), Tag: 1}, nil, engine.Synchronous)
				require.ErrorContains(t, err, "cannot be reached")
				require.Greater(t, w.fabrics[0].Refused(), uint64(1), "it tries again")
				for i := range w.engines {
					w.engines[i].Close()
					w.fabrics[i].Close()
				}
				require.Equal(t, 1, strings.Count(log.String(), "connection refused"), "%s", &log)
				require.Contains(t, log.String(), tt.refused)
			})
		}
	}
}
