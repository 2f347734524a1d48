package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/replica"
)

// An office is a deputy's part in who leads the job, where the job outlives its head: it
// takes part in elections, becomes the head when it is elected, and finds the head when
// another is.
type office struct {
	d    *deputy
	ctx  context.Context // ends with the job
	stop context.CancelFunc
	wg   sync.WaitGroup

	line atomic.Pointer[line] // to the head; nil: there is none

	goesOn atomic.Bool // the job does, or may, without this agent

	mu      sync.Mutex // guards what follows
	voters  []control.Voter
	hosts   map[int]string   // by process
	replica *replica.Replica // nil: this agent does not vote
	agent   *Agent           // nil: the head is not here
	sits    chan struct{}    // closed when the head is here, or another one
	draft   *ledger.State    // that of the first head, if that led no more before others had it; nil: there is none
	closed  bool

	term    uint64 // of the last head; owned by the deputy's serve
	elected *line  // to the next, if it was found already; owned by the deputy's serve
}

func (s *office) init(d *deputy) {
	s.d = d
	s.voters = d.boot.Voters
	s.sits = make(chan struct{})
	s.ctx, s.stop = context.WithCancel(context.Background())
}

// vote is told who votes. It tells whether this agent does so from now on.
func (s *office) vote(v control.Voters) (begins bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.voters = v.Voters
	switch {
	case s.closed:
	case s.replica != nil && v.Raft:
		s.replica.Revise(v.Voters)
	case s.replica != nil: // no more
		r := s.replica
		s.replica = nil
		s.wg.Go(r.Close)
	case v.Raft:
		r, err := replica.Join(s.part(v.Voters, false))
		if err != nil {
			return false // it does not vote, which the others can do without
		}
		s.replica = r
		s.wg.Go(func() { s.watch(r) })
		return true
	}
	return false
}

// part is this agent's in what voters agree on.
func (s *office) part(voters []control.Voter, first bool) replica.Config {
	return replica.Config{Agent: s.d.boot.Agent, Identity: s.d.identity, Port: s.d.copies, Ear: s.ear, Voters: voters, Silence: s.d.boot.Silence, First: first}
}

// found has the voters begin, of which this agent is one, and its Agent the head.
func (s *office) found(voters []control.Voter) (*replica.Replica, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("the job has ended")
	}
	s.voters = voters
	r, err := replica.Join(s.part(voters, true))
	if err != nil {
		return nil, err
	}
	s.replica = r
	s.wg.Go(func() { s.watch(r) })
	return r, nil
}

// sit is told that a is the head, in this process.
func (s *office) sit(a *Agent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agent = a
	close(s.sits)
	s.sits = make(chan struct{})
	s.wg.Go(func() {
		<-a.ended
		if a.deposed == nil {
			s.stop()
		}
	})
}

// watch becomes the head when r is elected, and is none when it is no more.
func (s *office) watch(r *replica.Replica) {
	for {
		var leads bool
		select {
		case leads = <-r.Leading():
		case <-r.Done():
			return
		case <-s.ctx.Done():
			return
		}
		a := s.head()
		switch {
		case !leads && a != nil:
			a.post(func() { a.depose(errors.New("the other agents do not answer, or have elected another")) })
		case leads && a != nil && !a.given(r.Term()):
			// the first head, which was so before it was elected
		case leads:
			if a != nil {
				<-a.ended
			}
			if r.Barrier() != nil {
				continue // it leads no more
			}
			next, err := succeed(s.d, r)
			switch {
			case err == nil:
				s.sit(next)
			case errors.Is(err, errEmpty):
				s.yield(r)
			default: // another may be able to
				r.HandOver()
			}
		}
	}
}

// keep keeps what the first head wrote for the case that nobody else has it.
func (s *office) keep(p *pen) {
	if p.known {
		return
	}
	draft := new(ledger.State)
	if err := draft.Restore(p.State.Snapshot()); err != nil {
		panic(fmt.Sprintf("agent: %v", err)) // it was made by the same
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draft = draft
}

// drafted is that; nil: there is none.
func (s *office) drafted() *ledger.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draft
}

// yield has the first head elected, whose ledger has not come here yet, if it is there.
func (s *office) yield(r *replica.Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.voters {
		if v.Agent == s.d.boot.Leads && v.Agent != s.d.boot.Agent {
			r.HandOverTo(v)
		}
	}
}

// given tells whether a was deposed, or is now: it was elected in another term, since when
// another may have led.
func (a *Agent) given(term uint64) bool {
	answer := make(chan bool, 1)
	a.post(func() {
		if a.pen.queue != nil && a.pen.term != term {
			a.depose(errors.New("there was another election"))
		}
		answer <- a.deposed != nil
	})
	select {
	case given := <-answer:
		return given
	case <-a.done:
		return true
	}
}

// end is told that the job has ended.
func (s *office) end() { s.stop() }

// without is told that this agent leaves the job.
func (s *office) without() {
	s.goesOn.Store(s.d.boot.Outlive)
	s.stop()
}

// close leaves the elections. It waits.
func (s *office) close() {
	s.stop()
	s.mu.Lock()
	s.closed = true
	r, a := s.replica, s.agent
	s.mu.Unlock()
	if a != nil {
		a.post(func() { a.resign(errors.New("its agent ends")) }) // nothing, if the job has ended
		<-a.ended
	}
	if r != nil {
		r.Close()
	}
	s.wg.Wait()
}

// headless is how long an agent looks for a head, after which there will be none: too many
// voters are lost.
func headless(silence time.Duration) time.Duration { return 10*silence + 5*time.Second }

// told is told what a process here is told: where others are.
func (s *office) told(m control.Message) {
	if !s.d.boot.Outlive || m.Start == nil && m.Meet == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts == nil {
		s.hosts = map[int]string{}
	}
	if m.Start != nil {
		for i, p := range m.Start.Processes {
			s.hosts[i] = p.Host
		}
	} else {
		s.hosts[m.Meet.Index] = m.Meet.Process.Host
	}
}

// heard is told by a process here of what has come to it from others: the head's host is there while
// something comes of its processes, though nothing may come of its agent where a link is full.
func (s *office) heard(m control.Paths) {
	l := s.line.Load()
	if l == nil || !s.d.boot.Outlive {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	head, ok := s.headLocked(l)
	if !ok {
		return
	}
	for _, i := range heardIn(m, s.d.boot.Silence) {
		if s.hosts[i] == head.Host {
			l.conn.Elsewhere.Set(time.Now().Add(-max(m.Over, 0)))
		}
	}
}

// headLocked is the head of l, if it is another agent and votes. s.mu is held.
func (s *office) headLocked(l *line) (head control.Voter, ok bool) {
	at := slices.IndexFunc(s.voters, func(v control.Voter) bool { return v.Agent == l.head })
	if at < 0 || l.head == s.d.boot.Agent {
		return head, false
	}
	return s.voters[at], true
}

// ear is the connection over which an agent is heard that is the head, or to which this one is; nil: there is none.
func (s *office) ear(agent int) *patient.Conn {
	if l := s.line.Load(); l != nil && l.head == agent {
		return l.conn
	}
	if a := s.head(); a != nil {
		return a.head.ear(agent)
	}
	return nil
}

// head is that of the job, or one that was, where it is here; else nil.
func (s *office) head() *Agent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agent
}

// ask asks the head of l, of which nothing was heard for a while, over another connection whether it is
// there and still leads, if this agent votes.
func (s *office) ask(l *line) {
	if l.conn.Heard() < s.d.boot.Silence/3 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	head, ok := s.headLocked(l)
	if !ok || s.replica == nil || s.closed {
		return
	}
	s.wg.Go(func() {
		ctx, stop := context.WithTimeout(s.ctx, s.d.boot.Silence)
		defer stop()
		if other, _ := s.try(ctx, control.ProtocolHead, head, l.term); other != nil {
			other.conn.Close()
			l.conn.Answered.Set(time.Now())
		}
	})
}

// ended is told that l has ended, which silence did not do: if the head's process has, who votes need not wait to elect another.
func (s *office) ended(l *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head, ok := s.headLocked(l)
	r := s.replica
	if !ok || r == nil || s.closed {
		return
	}
	s.wg.Go(func() {
		if s.isDead(head) {
			r.Dead(head.Agent)
		}
	})
}

// isDead tells whether nobody listens any more at any of the addresses of an agent, which it does until its process ends. That may
// be a moment after its connections have.
func (s *office) isDead(v control.Voter) bool {
	ctx, stop := context.WithTimeout(s.ctx, deadTime)
	defer stop()
	for _, addr := range v.Addrs {
		for {
			c, err := door.Dial(ctx, s.d.identity, control.ProtocolAlive, addr, v.Agent)
			if err == nil {
				c.Close()
				return false
			}
			if errors.Is(err, syscall.ECONNREFUSED) {
				break
			}
			select {
			case <-time.After(deadTime / 10):
			case <-ctx.Done():
				return false
			}
		}
	}
	return len(v.Addrs) > 0
}

// deadTime is how long that may take to be found out; afterwards the silence tells.
const deadTime = 250 * time.Millisecond

// bears tells whether to go on with the head of l, of which nothing was heard: it may be
// cut off for a short while, and no other could take its place, or none has been elected.
func (s *office) bears(l *line) bool {
	if !s.d.boot.Outlive {
		return true
	}
	s.elected = s.find(l.term+1, quick(s.d.boot.Silence))
	return s.elected == nil && l.conn.Heard() < s.d.boot.Silence+2*reachedAgain
}

// next finds the head, and tells it all. Nil: the job has ended, or goes on without this agent.
func (s *office) next() *line {
	if !s.d.boot.Outlive {
		return nil
	}
	shortest := quick(s.d.boot.Silence)
	patience := shortest
	for since := time.Now(); time.Since(since) < headless(s.d.boot.Silence); patience = min(2*patience, 3*shortest) {
		l := s.elected
		if s.elected = nil; l == nil {
			l = s.find(s.term, patience)
		}
		if l != nil {
			l.conn.SetWriteDeadline(time.Now().Add(rejoinTime)) // the host may be lost that it leads from
			if s.d.books.rejoin(l, s.d.joined(l), s.d.copies.Hearsay()) == nil {
				l.conn.SetWriteDeadline(time.Time{})
				s.term = l.term
				return l
			}
			l.conn.Close()
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
	s.without() // there are too few who decide, or it is this host that is cut off from them
	return nil
}

// rejoinTime is how long a head may take to read what it is told: it reads all of it when it has heard of all.
const rejoinTime = 2 * control.AlivePatient

// quick is for how long voters are asked at first who is the head. One that is lost does not
// answer, and another may be elected meanwhile; those that are slow are asked for longer later.
func quick(silence time.Duration) time.Duration { return max(silence/3, 100*time.Millisecond) }

// find asks all voters which of them is the head, of that term at least; nil: none, for now. Those that are
// not may yet become it: see await. If most of them refuse this agent, it was declared
// dead, and has nothing to look for.
func (s *office) find(term uint64, patience time.Duration) *line {
	s.mu.Lock()
	voters := slices.Clone(s.voters)
	s.mu.Unlock()
	ctx, stop := context.WithTimeout(s.ctx, patience)
	defer stop()
	type answer struct {
		line *line
		err  error
	}
	found := make(chan answer)
	for _, v := range voters {
		s.wg.Go(func() {
			l, err := s.try(ctx, control.ProtocolAwait, v, term)
			select {
			case found <- answer{l, err}:
			case <-ctx.Done():
				if l != nil {
					l.conn.Close()
				}
			}
		})
	}
	refused := 0
	for range voters {
		select {
		case a := <-found:
			if a.line != nil {
				return a.line
			}
			if errors.Is(a.err, errRefused) {
				refused++
			}
			if refused > len(voters)/2 {
				s.without()
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// await serves an agent that looks for the head: once that is here, or after a while not at all. When the head
// is lost, all agents ask all voters until another is elected. Were they told at once that it is not here, they
// would have to ask so often, to come soon, that the voters did nothing but shake hands.
func (s *office) await(c *tls.Conn, from identity.Name) {
	end := time.After(awaitTime)
	for {
		s.mu.Lock()
		a, sits := s.agent, s.sits
		s.mu.Unlock()
		if a != nil {
			select {
			case <-a.ended: // it was the head
			default:
				a.head.enter(c, from)
				return
			}
		}
		select {
		case <-sits:
		case <-end:
			return
		case <-s.ctx.Done():
			return
		}
	}
}

// awaitTime is how long an agent may wait for the head where it is not, before it asks all voters again: the
// head may be elsewhere, and not have been reached.
const awaitTime = time.Second

// errNoHead: a voter is not the head; errRefused: it does not take this agent for one of the job's.
var (
	errNoHead  = errors.New("it does not lead the job")
	errRefused = errors.New("it does not accept this agent")
)

// try connects to a voter, which is the head of that term, or a later one.
func (s *office) try(ctx context.Context, protocol string, v control.Voter, term uint64) (*line, error) {
	c, err := door.Reach(ctx, s.d.identity, protocol, v)
	if err != nil {
		return nil, err
	}
	l := newLine(c, v.Agent)
	err = l.admitted(ctx)
	var alert *net.OpError
	switch {
	case errors.As(err, &alert) && alert.Op == "remote error": // of TLS, whose other end knows our certificate only now
		err = errRefused
	case err == nil && l.term < term:
		err = errNoHead
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return l, nil
}
