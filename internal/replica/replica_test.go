package replica

import (
	"crypto/tls"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
)

// A port is one that takes agents at an address.
type port struct {
	net.Listener
	own *identity.Identity
	wg  *sync.WaitGroup
	not *refused
}

// refused is whom a port does not listen to from now on.
type refused struct {
	mu    sync.Mutex
	agent int
	conns map[*tls.Conn]int // from whom
}

// refuse ends what there is of an agent, too.
func (r *refused) refuse(agent int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.agent = agent
	for c, from := range r.conns {
		if from == agent {
			c.NetConn().Close()
		}
	}
}

func (r *refused) admits(c *tls.Conn, from int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent == from {
		return false
	}
	r.conns[c] = from
	return true
}

func (p port) Handle(protocol string, f func(c *tls.Conn, from identity.Name)) {
	config := p.own.TLS()
	config.NextProtos = []string{protocol}
	p.wg.Go(func() { // until the listener is closed
		for {
			raw, err := p.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { // until the other end goes, or the replica
				defer raw.Close()
				c := tls.Server(raw, config)
				if c.Handshake() != nil {
					return
				}
				if name, err := p.own.Verify(c.ConnectionState().PeerCertificates[0]); err == nil && p.not.admits(c, name.Index) {
					f(c, name)
				}
			})
		}
	})
}

const silence = 500 * time.Millisecond

// voters is replicas of agents 1 to n, of which the first has begun.
func voters(t *testing.T, n int) []*Replica {
	rs, _ := votersAt(t, n)
	return rs
}

func votersAt(t *testing.T, n int) (rs []*Replica, ports []port) {
	authority, err := identity.NewAuthority("job")
	require.NoError(t, err)
	var all []control.Voter
	for i := range n {
		own, err := authority.Issue(identity.Agent, i+1)
		require.NoError(t, err)
		id, err := own.Open()
		require.NoError(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		p := port{l, id, new(sync.WaitGroup), &refused{conns: map[*tls.Conn]int{}}}
		t.Cleanup(func() { // when no replica is left
			l.Close()
			p.wg.Wait()
		})
		ports = append(ports, p)
		all = append(all, control.Voter{Agent: i + 1, Addrs: []string{l.Addr().String()}})
	}
	for i, p := range ports {
		r, err := Join(Config{Agent: i + 1, Identity: p.own, Port: p, Ear: func(int) *patient.Conn { return nil }, Voters: all, Silence: silence, First: i == 0})
		require.NoError(t, err)
		t.Cleanup(r.Close)
		rs = append(rs, r)
	}
	return rs, ports
}

// leader is the one of rs that leads, as soon as there is one.
func leader(t *testing.T, rs []*Replica) (l *Replica) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, r := range rs {
			if r.Leads() {
				l = r
			}
		}
		return l != nil
	}, 20*time.Second, time.Millisecond)
	return l
}

func without(rs []*Replica, one *Replica) []*Replica {
	return slices.DeleteFunc(slices.Clone(rs), func(r *Replica) bool { return r == one })
}

func haveJob(t *testing.T, rs ...*Replica) {
	t.Helper()
	for _, r := range rs {
		require.Eventually(t, func() bool { return r.Ledger().Job != nil }, 20*time.Second, time.Millisecond)
		require.Equal(t, "halo", r.Ledger().Job.Name)
	}
}

var (
	job     = ledger.Entry{Job: &ledger.Job{Name: "halo", Hosts: []string{"x"}}}
	started = ledger.Entry{Started: &ledger.Started{}}
)

// agreed has rs agree on e, and returns who leads then. On a machine that starves them there may be elections
// in between: who wrote e then does not know whether it was agreed on, and who leads next looks.
func agreed(t *testing.T, rs []*Replica, e ledger.Entry, there func(*ledger.State) bool) *Replica {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		l := leader(t, rs)
		if l.Barrier() == nil && (there(l.Ledger()) || l.Commit(Batch{Entries: []ledger.Entry{e}}) == nil) {
			return l
		}
		if time.Now().After(end) {
			t.Fatalf("agent %d leads, and nothing is agreed on", l.agent)
		}
	}
}

func hasJob(s *ledger.State) bool { return s.Job != nil }

// What one writes all have, and when it is gone another leads that has it, too.
func TestVotersHaveOneLedger(t *testing.T) {
	rs := voters(t, 3)
	first := agreed(t, rs, job, hasJob)
	haveJob(t, rs...)
	others := without(rs, first)
	term := first.Term()
	first.Close()
	next := agreed(t, others, started, func(s *ledger.State) bool { return s.Started })
	require.Greater(t, next.Term(), term)
	time.Sleep(silence / 2)
	lost, dead := next.Lost()
	require.NotEqual(t, next.agent, lost)
	require.False(t, dead)
	if next.Term() == term+1 {
		require.Equal(t, first.agent, lost, "it knows who was lost, however late it is asked")
	}
	for _, r := range others {
		require.Eventually(t, func() bool { return r.Ledger().Started }, 20*time.Second, time.Millisecond)
	}
}

// The voter whose turn to look is last has not been told what was agreed on last: another is elected, and has it.
func TestWhoLooksLastLacksAnEntry(t *testing.T) {
	rs, ports := votersAt(t, 3)
	first := agreed(t, rs, job, hasJob)
	haveJob(t, rs...)
	others := without(rs, first)
	ports[others[1].agent-1].not.refuse(first.agent)
	require.NoError(t, first.Commit(Batch{Entries: []ledger.Entry{started}}))
	lost := time.Now()
	first.Close()
	next := leader(t, others)
	t.Logf("the next leads after %.2f silences", time.Since(lost).Seconds()/silence.Seconds())
	require.Equal(t, others[0].agent, next.agent)
	require.NoError(t, next.Barrier())
	require.True(t, next.Ledger().Started)
}

// An entry that cannot follow is an error of who writes it, and changes no ledger.
func TestWhatCannotFollow(t *testing.T) {
	rs := voters(t, 1)
	r := leader(t, rs)
	require.ErrorContains(t, r.Commit(Batch{Entries: []ledger.Entry{started}}), "no job yet")
	require.Nil(t, r.Ledger().Job)
	whole := new(ledger.State)
	require.NoError(t, whole.Apply(job))
	require.NoError(t, r.Commit(Batch{Whole: whole.Snapshot(), Entries: []ledger.Entry{started}}))
	haveJob(t, r)
	require.True(t, r.Ledger().Started)
}

// Who does not lead writes nothing.
func TestWhoDoesNotLead(t *testing.T) {
	rs := voters(t, 3)
	first := agreed(t, rs, job, hasJob)
	term, other := first.Term(), rs[first.agent%len(rs)]
	if err := other.Commit(Batch{Entries: []ledger.Entry{started}}); first.Term() == term {
		require.Error(t, err)
		require.False(t, first.Ledger().Started)
	}
}

func lostTo(r *Replica) int {
	agent, _ := r.Lost()
	return agent
}

// Who hands over is not taken to be lost.
func TestHandOver(t *testing.T) {
	rs := voters(t, 3)
	var to *Replica
	require.Eventually(t, func() bool {
		first := leader(t, rs)
		to = rs[first.agent%len(rs)]
		heard := func() bool { return to.follows() == first.agent && lostTo(to) < 0 }
		for end := time.Now().Add(silence); !heard() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		return heard() && first.HandOverTo(control.Voter{Agent: to.agent, Addrs: to.voters[to.agent-1].Addrs})() == nil && to.Leads()
	}, 20*time.Second, time.Millisecond)
	require.Equal(t, -1, lostTo(to))
	agreed(t, rs, job, hasJob)
	haveJob(t, rs...)
}

// Who votes may change; who does no more is told nothing, and has nobody elected.
func TestVotersChange(t *testing.T) {
	rs := voters(t, 3)
	gone, rest := rs[2], rs[:2]
	require.Eventually(t, func() bool {
		l := leader(t, rs)
		if l == gone {
			l.HandOverTo(l.voters[0])()
			return false
		}
		return l.Remove(gone.agent) == nil
	}, 20*time.Second, time.Millisecond)
	for _, r := range rs {
		r.Revise(r.voters[:2])
	}
	agreed(t, rest, job, hasJob)
	haveJob(t, rest...)
	time.Sleep(3 * silence)
	require.True(t, rest[0].Leads() || rest[1].Leads())
	require.Nil(t, gone.Ledger().Job)
}

// follows is the agent that r takes to lead; 0: none.
func (r *Replica) follows() int {
	_, id := r.raft.LeaderWithID()
	agent, _ := strconv.Atoi(string(id))
	return agent
}

// A head whose process has ended is followed at once by the voter whose turn it is first, and by no other.
func TestWhoIsKnownToBeDead(t *testing.T) {
	rs := voters(t, 3)
	first := agreed(t, rs, job, hasJob)
	haveJob(t, rs...)
	others := without(rs, first)
	for _, r := range others {
		require.Eventually(t, func() bool { r.turn(); return r.follows() == first.agent }, 20*time.Second, time.Millisecond)
	}
	others[0].Dead(others[1].agent) // it does not lead
	term := first.Term()
	lost := time.Now()
	first.Close()
	others[1].Dead(first.agent)
	others[0].Dead(first.agent)
	next := leader(t, others)
	t.Logf("the next leads after %.2f silences", time.Since(lost).Seconds()/silence.Seconds())
	if next.Term() == term+1 {
		require.Equal(t, others[0].agent, next.agent)
		gone, dead := next.Lost()
		require.Equal(t, first.agent, gone)
		require.True(t, dead)
	}
	require.NoError(t, next.Barrier())
	require.NotNil(t, next.Ledger().Job)
}
