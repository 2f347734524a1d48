package replica

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A mind is what a voter thinks of its head.
type mind struct {
	mu    sync.Mutex
	head  raft.ServerID
	heard time.Time
}

func (m *mind) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return "", m.head
}

func (m *mind) LastContact() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard
}

func (m *mind) hears(head raft.ServerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.head, m.heard = head, time.Now()
}

func (m *mind) looks() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.head = ""
}

// voting is a ballot of a voter that has just heard its head, and whose log ends at 7, 40: what it thinks, what it is
// asked, and what comes of that to raft.
func voting() (m *mind, in chan<- raft.RPC, out <-chan raft.RPC, end func()) {
	m = &mind{}
	m.hears("1")
	asked, passed, over := make(chan raft.RPC), make(chan raft.RPC), make(chan struct{})
	b := &ballot{in: asked, out: passed, raft: m, last: func() position { return position{7, 40} }, silence: time.Second, over: over}
	var own sync.WaitGroup
	own.Go(b.run)
	return m, asked, passed, func() {
		close(over)
		own.Wait()
	}
}

// Who asks for a vote, and when its request comes to raft; the voter's own log ends at 7, 40.
func TestARequestWaitsWhereItWouldBeInVain(t *testing.T) {
	const quiet, short, turn = 950 * time.Millisecond, 10 * time.Millisecond, 200 * time.Millisecond
	asks := func(term, index uint64) any {
		return &raft.RequestPreVoteRequest{Term: term + 1, LastLogTerm: term, LastLogIndex: index}
	}
	for name, c := range map[string]struct {
		command any
		then    func(*mind) // after a turn
		after   time.Duration
	}{
		"has as much":                  {asks(7, 40), (*mind).looks, 0},
		"has less":                     {asks(7, 39), (*mind).looks, 0},
		"has more of an older term":    {asks(6, 50), (*mind).looks, 0},
		"has more":                     {asks(7, 41), (*mind).looks, turn},
		"has a newer term":             {asks(8, 3), (*mind).looks, turn},
		"has more, but the head lives": {asks(7, 41), func(m *mind) { m.hears("1") }, turn},
		"has more, and nothing comes":  {asks(7, 41), func(*mind) {}, 800 * time.Millisecond},
		"asks for something else":      {&raft.RequestVoteRequest{Term: 9}, (*mind).looks, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, in, out, end := voting()
				defer end()
				time.Sleep(quiet)
				begun := time.Now()
				timer := time.AfterFunc(turn, func() { c.then(m) })
				defer timer.Stop()
				in <- raft.RPC{Command: c.command}
				require.Equal(t, c.command, (<-out).Command)
				require.InDelta(t, c.after, time.Since(begun), float64(2*short))
			})
		})
	}
}

// Of two that wait the one that has more does: two that are granted at the same time would both ask for the vote.
func TestOneRequestWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, in, out, end := voting()
		defer end()
		time.Sleep(time.Second)
		has := func(rpc raft.RPC) uint64 { return rpc.Command.(*raft.RequestPreVoteRequest).LastLogIndex }
		for i, index := range []uint64{42, 42, 43, 41} {
			in <- raft.RPC{Command: &raft.RequestPreVoteRequest{LastLogTerm: 7, LastLogIndex: index}}
			if i > 0 {
				require.EqualValues(t, []int{0, 42, 42, 41}[i], has(<-out))
			}
		}
		m.looks()
		require.EqualValues(t, 43, has(<-out))
	})
}
