package agent

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/internal/witness"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/topology"
)

// A notebook is a host's place that notes what it is told, by process.
type notebook struct {
	sent    map[int][]control.Message
	killed  []int
	spawned int
	orders  int // to send
	later   int // to send later
}

func (n *notebook) kill(process int, _ syscall.Signal) { n.killed = append(n.killed, process) }
func (n *notebook) hurry()                             { n.later = 0 }
func (n *notebook) spawn(*process) error               { n.spawned++; return nil }
func (n *notebook) sendLater(control.Message, ...int)  { n.later++ }
func (n *notebook) send(m control.Message, to ...int) bool {
	n.orders++
	for _, p := range to {
		n.sent[p] = append(n.sent[p], m)
	}
	return true
}

// surviving is an agent whose processes have so many ranks each, on hosts of their own.
func surviving(ranks ...int) (*Agent, *notebook) {
	a, n := still(len(ranks)), &notebook{sent: map[int][]control.Message{}}
	a.job.Quiet, a.job.Options.Survive = true, "crashes"
	a.job.Stdout, a.job.Stderr, a.screens = io.Discard, io.Discard, [2]*screen{new(screen), new(screen)}
	a.news.refusals = map[string]*refusals{}
	next := 0
	for i, p := range a.processes {
		p.host = &host{name: string(rune('a' + i)), index: i, place: n, processes: []int{i}}
		p.hello, p.ranks, p.finished = &control.Hello{}, nil, map[int]control.RankReport{}
		for range ranks[i] {
			p.ranks = append(p.ranks, next)
			next++
		}
		a.hosts = append(a.hosts, p.host)
	}
	a.first = len(ranks)
	a.emitJob()
	return a, n
}

// keepers are those of as many agents, and the directories of the job on their hosts.
func keepers(t *testing.T, n int) (all []*buddy.Keeper, dirs []string) {
	authority, err := identity.NewAuthority("job")
	require.NoError(t, err)
	for i := range n {
		issued, err := authority.Issue(identity.Agent, i)
		require.NoError(t, err)
		own, err := issued.Open()
		require.NoError(t, err)
		k, err := buddy.Listen(own, func(control.FromAgent) {})
		require.NoError(t, err)
		t.Cleanup(k.Close)
		dir := t.TempDir()
		require.NoError(t, k.Home(dir))
		all, dirs = append(all, k), append(dirs, dir)
	}
	return all, dirs
}

// keeper is one that no other knows.
func keeper(t *testing.T) *buddy.Keeper {
	all, _ := keepers(t, 1)
	return all[0]
}

// adopted is what p was told to go on with, once.
func (n *notebook) adopted(t *testing.T, p *process) control.Adopt {
	t.Helper()
	var all []control.Adopt
	for _, m := range n.sent[p.index] {
		if m.Adopt != nil {
			all = append(all, *m.Adopt)
		}
	}
	require.Len(t, all, 1)
	return all[0]
}

// Of the ranks of a process one has finished, and the others can be moved.
func TestARankThatHasFinishedKeepsNoOther(t *testing.T) {
	a, n := surviving(2, 0)
	a.said(a.processes[0], &control.Message{Finished: &control.Finished{Ranks: []int{0}}})
	require.EqualError(t, a.movable(0), "rank 0 has finished")
	a.move(1, "", func(err error) { require.NoError(t, err) })
	require.Equal(t, 1, n.sent[0][len(n.sent[0])-1].Depart.Rank)
	a.arrived(a.processes[1], control.Arrived{Rank: 1, Epoch: 2})
	require.False(t, a.allFinished(), "rank 1 goes on")
	a.said(a.processes[1], &control.Message{Finished: &control.Finished{Ranks: []int{1}}})
	require.True(t, a.allFinished())
}

// The only spare process is to take another rank. It does not come, so that the spare can
// take the one that is lost.
func TestASpareThatIsPromisedIsWaitedFor(t *testing.T) {
	a, n := surviving(1, 1, 0)
	a.job.Spares = 1
	p := a.processes
	a.moveTo(0, p[0], p[2], func(error) {})
	p[1].exited, p[1].judged = true, true
	a.recover(p[1])
	require.False(t, a.ending || a.mourning)
	require.Len(t, a.survival.stranded, 1)
	require.Empty(t, p[2].ranks)

	a.stayed(p[0], control.Stayed{Rank: 0, Epoch: 2, Reason: "no safe point"})
	require.Empty(t, a.survival.stranded)
	require.Equal(t, []int{1}, p[2].ranks)
	got := n.adopted(t, p[2])
	require.Equal(t, control.Place{Epoch: 3, Ranks: []control.Placement{{Rank: 1, Process: 2}}, Lost: []int{1}}, got.Place)
	require.Equal(t, 1, n.spawned, "a spare for the one that was used")
}

// Who asked for a move that came to nothing is told which rank stays, and what it may lack.
func TestWhyARankStays(t *testing.T) {
	for _, c := range []struct {
		late, saved bool
		want        string
	}{
		{false, false, "rank 0 stays where it is: no safe point"},
		{true, false, "rank 0 stays where it is: no safe point: does the program call State.Restore and SafePoint?"},
		{true, true, "rank 0 stays where it is: no safe point"},
	} {
		a, _ := surviving(1, 0)
		p := a.processes
		if c.saved {
			a.saved(p[0], control.Saved{Rank: 0, Bytes: 8})
		}
		var told error
		m := a.moveTo(0, p[0], p[1], func(err error) { told = err })
		a.stayed(p[0], control.Stayed{Rank: 0, Epoch: m.epoch, Reason: "no safe point", Unsafe: c.late})
		require.EqualError(t, told, c.want)
	}
}

// Who is killed when all ranks have finished is not needed any more. Nor can its rank begin
// again: those that it would have to hear from are gone.
func TestWhoIsKilledAfterAllHaveFinished(t *testing.T) {
	for _, all := range []bool{true, false} {
		a, n := surviving(1, 1, 0)
		a.job.Spares, a.toldStart = 1, true
		p := a.processes
		p[0].finished[0] = control.RankReport{Rank: 0}
		if all {
			p[1].finished[1] = control.RankReport{Rank: 1}
		}
		p[0].exited, p[0].status = true, syscall.WaitStatus(syscall.SIGKILL)
		a.judge(p[0])
		require.False(t, a.ending || a.mourning)
		if all {
			require.Empty(t, n.sent)
			require.Zero(t, n.spawned)
		} else {
			require.Equal(t, 0, n.adopted(t, p[2]).Rank, "the other may need what it has sent")
		}
	}
}

// Of a job that was interrupted the spare processes end, too, and no others come in their place.
func TestNoSparesAfterAnInterrupt(t *testing.T) {
	a, _ := surviving(1, 0)
	a.job.Spares, a.interrupts = 1, 1
	a.processes[1].exited = true
	a.refill()
	require.Len(t, a.processes, 2)
	a.interrupts = 0
	a.refill()
	require.Len(t, a.processes, 3)
}

// After an interrupt no rank goes on elsewhere, so nobody is to wait for one: not even for the
// rest of a message of which a part is there.
func TestWhoEndsAfterAnInterruptIsNotWaitedFor(t *testing.T) {
	for _, well := range []bool{true, false} {
		a, n := surviving(1, 1, 0)
		a.toldStart, a.interrupts, a.interrupt = true, 1, syscall.SIGINT
		p := a.processes
		p[0].exited, p[0].failed, p[0].status = true, !well, syscall.WaitStatus(1<<8)
		if well {
			p[0].status = 0
		}
		a.judge(p[0])
		require.Empty(t, a.survival.stranded)
		if well { // what it has sent may be on its way
			require.Empty(t, n.sent[1])
		} else {
			require.Contains(t, n.sent[1], control.Message{Dead: &control.Dead{Processes: []int{0}}})
		}
	}
}

func TestARankGoesWhereThePolicyWantsIt(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(a *Agent)
		to     int
	}{
		{"it can", func(*Agent) {}, 2},
		{"that process is lost meanwhile", func(a *Agent) { a.processes[2].exited = true }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, n := surviving(1, 0, 0)
			p := a.processes
			a.store(0, stored{version{1, 7}, p[0].host, "newest"})
			a.store(0, stored{version{1, 6}, p[1].host, "copy on b"})
			a.store(0, stored{version{1, 6}, p[2].host, "copy on c"})
			a.survival.covered[0] = version{1, 6}
			var ends []error
			a.rescue(p[0], 0, p[2], func(err error) { ends = append(ends, err) })
			require.True(t, p[0].judged, "it is out of the job")
			require.Equal(t, []int{0}, n.killed)
			c.before(a)
			a.strand(verdict{by: p[0], text: "it was decided"}, p[0])

			require.Equal(t, []int{0}, p[c.to].ranks)
			require.Equal(t, "copy on "+p[c.to].host.name, n.adopted(t, p[c.to]).Snapshot)
			require.Len(t, ends, 1)
			require.Equal(t, c.to == 2, ends[0] == nil, "%v", ends[0])
			require.Empty(t, a.survival.wanted)
		})
	}
}

// A rank is to begin again elsewhere, as its process is given up, and has come to another by then: it stays there, and
// the plan ends.
func TestARankThatIsGivenUpHasMoved(t *testing.T) {
	a, _ := surviving(1, 0, 0)
	p := a.processes
	var moved, ends []error
	mv := a.moveTo(0, p[0], p[1], func(err error) { moved = append(moved, err) })
	a.rescue(p[0], 0, p[2], func(err error) { ends = append(ends, err) })
	a.arrived(p[1], control.Arrived{Rank: 0, Epoch: mv.epoch})
	a.arrived(p[1], control.Arrived{Rank: 0, Epoch: mv.epoch, Whole: true})
	a.strand(verdict{by: p[0], text: "it was decided"}, p[0])
	require.Equal(t, []int{0}, p[1].ranks)
	require.Equal(t, []error{nil}, moved)
	require.Len(t, ends, 1)
	require.ErrorContains(t, ends[0], "it had been moved to process 1")
	require.Empty(t, a.survival.wanted)
}

// A rank is in its new process, though not all of its state, when the host that it has left is lost.
// It goes on from its snapshot, and the policy does not have it recovered from where it is no more.
func TestWhereAMoveWasToCountsWhenItsSourceIsLost(t *testing.T) {
	a, _ := surviving(1, 0, 1, 0)
	a.survival.copied, a.copies = true, true
	a.buddies = keeper(t)
	p := a.processes
	a.store(0, stored{version{1, 6}, p[2].host, "copy"})
	a.survival.covered[0] = version{1, 6}
	a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New([]topology.Place{p[0].place(), p[2].place()})),
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
	a.tellHosts()
	a.tellPolicy(leader.ProcessReady{Place: p[1].place()})
	a.tellPolicy(leader.Drain{Host: "a"})
	require.NotNil(t, a.survival.moving[0])
	a.arrived(p[1], control.Arrived{Rank: 0, Epoch: 2})
	require.Equal(t, []int{0}, p[1].ranks)

	p[0].host.lost = true
	a.goOnWithout(p[0].host, a.endAll(p[0].host), "host a: nothing was heard of its agent")
	at, known := a.policy.machine.Map().Place(0)
	require.True(t, known)
	require.Equal(t, p[1].place(), at)
	require.False(t, a.ending)
}

// The policy may think of a process as free that is not. A plan for it comes to nothing, and others are heard
// before it plans again.
func TestAPlanThatCannotBeginHoldsUpNobody(t *testing.T) {
	a, _ := surviving(1, 1, 0, 0)
	a.done = make(chan struct{}) // what timers post is taken below
	p := a.processes
	a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New([]topology.Place{p[0].place(), p[1].place()})),
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
	a.tellHosts()
	a.tellPolicy(leader.LeadingFrom{Host: "a"})
	for _, q := range p[2:] {
		a.tellPolicy(leader.ProcessReady{Place: q.place()})
		q.condemned = true
	}
	a.tellPolicy(leader.StateSize{Rank: 1, Bytes: 1, Copies: []string{"c", "d"}, Taken: time.Now()})
	a.tellPolicy(leader.Unreached{Pairs: [][2]string{{"a", "b"}}, For: 4 * time.Second})
	require.Empty(t, a.survival.wanted)
	require.Len(t, a.timers, 1, "its end")
	(<-a.events)()
	require.Empty(t, a.timers, "a second plan, at once")
	require.Len(t, a.policy.said, 1)
	for _, r := range a.policy.said {
		require.Len(t, r.Plans, 1)
		require.Equal(t, adapt.Undone, r.Plans[0].End)
	}
}

// An agent that is to end while its host is being drained stays until that is empty.
func TestEvictedWhileTheHostIsDrained(t *testing.T) {
	a, _ := surviving(1, 1, 0)
	a.done = make(chan struct{}) // what timers post is not taken
	p := a.processes
	a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New([]topology.Place{p[0].place(), p[1].place()})),
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
	a.tellHosts()
	a.tellPolicy(leader.LeadingFrom{Host: "a"})
	a.tellPolicy(leader.ProcessReady{Place: p[2].place()})
	a.tellPolicy(leader.Drain{Host: "b", Ref: "1"})
	require.True(t, a.policy.machine.Drains("b"))
	r := &remote{a: a, host: p[1].host, out: make(chan control.ToAgent, 1), over: make(chan struct{})}
	a.evictedAgent(r, "it got a signal")
	require.Empty(t, r.out, "its rank has not left")
	p[1].ranks, p[2].ranks = nil, []int{1}
	a.store(1, stored{version{1, 1}, p[1].host, "snapshot"})
	a.store(1, stored{version{1, 1}, p[2].host, "copy"})
	a.lookEvicted(r, nil)
	require.Empty(t, r.out, "its rank has gone to where the copy is, so there is no other")
	a.store(1, stored{version{1, 1}, p[0].host, "copy"})
	a.lookEvicted(r, nil)
	require.NotNil(t, (<-r.out).Leave)
}

// The agents of two hosts are to end: neither relies on what the other has.
func TestTwoAreEvictedWhoHaveTheCopies(t *testing.T) {
	a, _ := surviving(1, 0, 0, 0)
	a.done = make(chan struct{}) // what timers post is not taken
	h := a.hosts
	var all []*remote
	for _, g := range h[1:3] { // a rank of one has just gone to the first host, the other was its buddy
		g.evicted = true
		a.store(0, stored{version{1, 1}, g, "snapshot"})
		all = append(all, &remote{a: a, host: g, out: make(chan control.ToAgent, 1), over: make(chan struct{})})
	}
	for _, r := range all {
		a.lookEvicted(r, nil)
		require.Empty(t, r.out, "the other may leave first")
	}
	a.store(0, stored{version{1, 1}, h[3], "copy"})
	for _, r := range all {
		a.lookEvicted(r, nil)
		require.NotNil(t, (<-r.out).Leave)
	}
}

// A host has the ranks that are there, and those that come; and is vacated without any when it was told to end.
func TestWhatIsOnAHost(t *testing.T) {
	a, _ := surviving(2, 0)
	h := a.hosts
	m := &move{rank: 1, from: a.processes[0], to: a.processes[1]}
	a.survival.moving[1] = m
	require.Equal(t, []int{2, 1}, []int{a.ranksOn(h[0]), a.ranksOn(h[1])})
	h[1].evicted = true
	require.False(t, a.vacated(h[1]), "one comes")
	m.came, m.from.ranks, m.to.ranks = true, []int{0}, []int{1}
	require.Equal(t, 2, a.ranksOn(h[0]), "its state may still be there")
	delete(a.survival.moving, 1)
	h[0].evicted, m.from.ranks = true, nil
	require.True(t, a.vacated(h[0]))
	h[0].evicted = false
	require.False(t, a.vacated(h[0]))
}

// A head hears that an agent is to end, though the one before had heard it, or nobody.
func TestWhoIsToEndTellsTheNextHead(t *testing.T) {
	b := newBooks()
	b.say(control.FromAgent{Evicted: &control.Evicted{Reason: "it got a signal"}})
	here, there := net.Pipe()
	go func() {
		defer here.Close()
		_ = b.rejoin(&line{from: control.NewConn[control.FromAgent](here)}, control.Joined{}, nil)
	}()
	told := control.NewConn[control.FromAgent](there)
	m, err := told.Receive()
	require.NoError(t, err)
	require.NotNil(t, m.Rejoined)
	m, err = told.Receive()
	require.NoError(t, err)
	require.Equal(t, "it got a signal", m.Evicted.Reason)
}

// cordon has a policy begin, for which these hosts of a are cordoned.
func (a *Agent) cordon(hosts []string) {
	a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New([]topology.Place{a.processes[0].place()})),
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
	for _, h := range a.hosts {
		a.tellPolicy(leader.HostJoined{Host: h.name, Trusted: true})
	}
	for _, h := range hosts {
		a.tellPolicy(leader.Cordon{Host: h, Ref: "test"})
	}
}

// Who goes on is told whether others still keep what its snapshot has: one that a copy of an earlier
// one covers says nothing of it.
func TestWhoGoesOnKnowsWhetherItIsCovered(t *testing.T) {
	for saved, covered := range map[uint64]bool{7: true, 8: false} {
		a, n := surviving(1, 0)
		p := a.processes
		a.survival.covered[0] = version{1, 7}
		a.store(0, stored{version{1, saved}, p[1].host, "copy"})
		p[0].exited, p[0].judged = true, true
		a.recover(p[0])
		require.Equal(t, covered, n.adopted(t, p[1]).Covered, "snapshot %d", saved)
		c := &ledger.Recovered{Epoch: 2, Lost: []int{0}, Ranks: []ledger.Revived{{Rank: 0, Process: 1, From: ledger.Version{Epoch: 1, Number: saved}, File: "copy"}}}
		require.Equal(t, covered, a.recovery(p[1], c).Adopt.Covered, "under another head, snapshot %d", saved)
	}
}

// A job of several programs has spare processes for the ranks of each.
func TestSparesOfEachProgram(t *testing.T) {
	j := Job{Programs: []Program{{Ranks: 1, Path: "a"}, {Ranks: 1, Path: "b"}}, Spares: 2, Host: "x"}
	a := newAgent(j.withDefaults())
	a.job.Options.Survive = "crashes"
	var err error
	a.hosts, a.processes, err = layout(a.job)
	require.NoError(t, err)
	a.first = len(a.processes)
	for _, p := range a.processes {
		p.joined, p.started = true, true
	}
	for _, p := range a.processes[:2] {
		_, _, err := a.refuge(p, p.ranks[0], nil)
		require.NoError(t, err, p.prog.Path)
		require.Equal(t, p.prog, a.freeOn(p.host, p.prog).prog)
	}
}

// A rank that is lost goes to a host from which ranks are to be kept only if it must.
func TestALostRankKeepsOffACordonedHost(t *testing.T) {
	for _, c := range []struct {
		name     string
		cordoned []string
		to       int
	}{
		{"none", nil, 1},
		{"the nearest", []string{"b"}, 2},
		{"all", []string{"b", "c"}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, n := surviving(1, 0, 0)
			p := a.processes
			a.store(0, stored{version{1, 7}, p[1].host, "copy on b"})
			a.store(0, stored{version{1, 7}, p[2].host, "copy on c"})
			a.survival.covered[0] = version{1, 7}
			a.cordon(c.cordoned)
			p[0].exited, p[0].judged = true, true
			a.recover(p[0])
			require.Equal(t, []int{0}, p[c.to].ranks)
			require.Equal(t, "copy on "+p[c.to].host.name, n.adopted(t, p[c.to]).Snapshot)
		})
	}
}

// No spare process is started there, if it can be elsewhere.
func TestNoSpareIsStartedOnACordonedHost(t *testing.T) {
	for _, c := range []struct {
		cordoned []string
		on       string
	}{{nil, "a"}, {[]string{"a"}, "b"}, {[]string{"a", "b"}, "a"}} {
		a, n := surviving(1, 1)
		a.job.Spares, a.job.Programs = 1, []Program{{}}
		for _, p := range a.processes {
			p.prog = &a.job.Programs[0]
		}
		a.cordon(c.cordoned)
		a.refill()
		require.Equal(t, 1, n.spawned)
		require.Equal(t, c.on, a.processes[2].host.name, "cordoned: %v", c.cordoned)
	}
}

// Nor does one that the operator moves go there.
func TestAMovedRankKeepsOffACordonedHost(t *testing.T) {
	for _, c := range []struct {
		name, host string
		cordoned   []string
		to         int // -1: nowhere
	}{
		{"anywhere", "", nil, 1},
		{"anywhere but there", "", []string{"b"}, 2},
		{"nowhere", "", []string{"b", "c"}, -1},
		{"there, which is not to be", "b", []string{"b"}, -1},
		{"elsewhere", "c", []string{"b"}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := surviving(1, 0, 0)
			p := a.processes
			a.toldStart = true
			a.cordon(c.cordoned)
			var refused error
			a.move(0, c.host, func(err error) { refused = err })
			if c.to < 0 {
				require.EqualError(t, refused, "host b is to get no rank: it was cordoned, drained or left; mpivrun uncordon b ends that")
				require.Empty(t, a.survival.moving)
				return
			}
			require.NoError(t, refused)
			require.Equal(t, p[c.to], a.survival.moving[0].to)
		})
	}
}

// Between the only two hosts in question a copy could not be sent before. It is tried again for a while.
func TestCopiesAreSentAgainWhereTheyMust(t *testing.T) {
	a, _ := surviving(1, 1, 0)
	a.survival.copied, a.copies = true, true
	a.buddies = keeper(t)
	p := a.processes
	a.store(0, stored{version{1, 7}, p[1].host, "copy on b"})
	a.survival.covered[0] = version{1, 7}
	a.survival.apart[[2]*host{p[1].host, p[2].host}] = true
	p[0].exited, p[0].judged = true, true
	a.strand(verdict{code: 1, text: "host a is lost"}, p[0])
	require.Equal(t, p[2].host, a.survival.fetching[0])
	require.False(t, a.ending)
	failed := control.Uncopied{Rank: 0, Agent: a.agentOf(p[2].host), Reason: "a link that is full"}
	a.uncopied(p[1].host, failed)
	require.Equal(t, p[2].host, a.survival.fetching[0], "again")
	require.False(t, a.ending)
	a.survival.stranded[0].end = time.Now().Add(-control.AlivePatient)
	a.speaker = newSpeaker(&stream{screen: new(screen), w: io.Discard})
	a.uncopied(p[1].host, failed)
	require.True(t, a.ending)
}

// A host that has not got the newest snapshot may be about to be lost. If the rank went on there,
// nobody else would have what it goes on from.
func TestALostRankGoesOnFromTheNewestSnapshot(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes int64
		newer uint64
		from  string
	}{
		{"which is sent to another host", sentSoon, 8, "on a"},
		{"unless that takes long", sentSoon + 1, 8, "copy on b"},
		{"unless others have it", 1, 7, "copy on b"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _ := surviving(1, 0, 0)
			p := a.processes
			a.survival.sizes[0] = c.bytes
			a.store(0, stored{version{1, c.newer}, p[0].host, "on a"})
			a.store(0, stored{version{1, 7}, p[1].host, "copy on b"})
			a.survival.covered[0] = version{1, 7}
			to, from, err := a.refuge(p[0], 0, nil)
			require.NoError(t, err)
			require.Equal(t, p[1], to)
			require.Equal(t, c.from, from.file)
		})
	}
}

// What a rank saved before it moved is known by who took it, on the host where it is.
func TestWhatWasSavedBeforeAMove(t *testing.T) {
	a, _ := surviving(1, 0, 0)
	p := a.processes
	a.survival.homes[control.Life{Rank: 0, Epoch: 1}] = p[0].host
	a.moveTo(0, p[0], p[1], func(error) {})
	saved := control.Saved{Rank: 0, Epoch: 1, Number: 5, File: "of a"}
	a.arrived(p[1], control.Arrived{Rank: 0, Epoch: 2, Saved: &saved})
	a.arrived(p[1], control.Arrived{Rank: 0, Epoch: 2, Whole: true})
	a.moveTo(0, p[1], p[2], func(error) {})
	a.arrived(p[2], control.Arrived{Rank: 0, Epoch: 3, Saved: &saved})
	require.Equal(t, []stored{{version{1, 5}, p[0].host, "of a"}}, a.storedOf(0))
}

// A map goes to each host once, however many processes are there.
func TestAMapGoesToEachHostOnce(t *testing.T) {
	a, n := surviving(1, 1, 1, 1, 0)
	p := a.processes
	for i, on := range []int{0, 0, 1, 1, 2} {
		p[i].host.processes = nil
		p[i].host = a.hosts[on]
	}
	m := a.moveTo(0, p[0], p[4], func(error) {})
	n.orders = 0
	a.came(m)
	require.Equal(t, 3, n.orders)
	for i := range p {
		last := n.sent[i][len(n.sent[i])-1]
		require.Equal(t, &control.Place{Epoch: m.epoch, Ranks: []control.Placement{{Rank: 0, Process: 4}}}, last.Place, "process %d", i)
	}
}

// What a process is told when it begins may leave later, and is what was so then.
func TestWhatIsOnItsWayDoesNotChange(t *testing.T) {
	a, _ := surviving(1, 1, 0)
	p := a.processes
	start := a.startOf()
	a.came(a.moveTo(1, p[1], p[2], func(error) {}))
	require.Equal(t, []int{1}, start.Processes[1].Ranks)
	require.Empty(t, start.Processes[2].Ranks)
	require.Empty(t, p[1].ranks)
	require.Equal(t, []int{1}, p[2].ranks)
}

// How many processes the job began with that had ranks stays what it was when ranks have moved.
func TestRankedAreThoseThatHadRanks(t *testing.T) {
	a, _ := surviving(1, 1, 0, 0)
	a.job.Spares = 2
	p := a.processes
	require.Equal(t, 2, a.startOf().Ranked)
	a.came(a.moveTo(1, p[1], p[2], func(error) {}))
	require.Equal(t, 2, a.startOf().Ranked)
}

// A move is told at once to the hosts that it concerns, whatever others there are; to those
// later, or when one of their processes has to know.
func TestAMoveIsToldToWhomItConcerns(t *testing.T) {
	const each = 20
	for _, hosts := range []int{50, 500} {
		ranks := make([]int, hosts*each+1)
		for i := range len(ranks) - 1 {
			ranks[i] = 1
		}
		a, _ := surviving(ranks...)
		a.hosts = nil
		notes := make([]*notebook, hosts)
		for i := range notes {
			notes[i] = &notebook{sent: map[int][]control.Message{}}
			a.hosts = append(a.hosts, &host{name: fmt.Sprint("h", i), index: i, place: notes[i]})
		}
		var places []topology.Place
		for i, p := range a.processes {
			p.host = a.hosts[i/each%hosts]
			p.slot = len(p.host.processes)
			p.host.processes = append(p.host.processes, i)
			places = append(places, p.place())
		}
		spare := a.processes[len(ranks)-1]
		a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Moves}, topology.New(places[:len(ranks)-1])),
			hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
		const moved = 7*each + 3
		a.tellPolicy(leader.Traffic{Rank: moved, To: []leader.Flow{{To: moved + 1}, {To: moved + each}}})
		a.tellPolicy(leader.Traffic{Rank: 20 * each, To: []leader.Flow{{To: moved}}})
		m := a.moveTo(moved, a.processes[moved], spare, func(error) {})
		a.behind(control.Behind{Process: 30 * each})
		for _, n := range notes {
			n.orders = 0
		}
		a.came(m)

		var at, later []int
		for i, n := range notes {
			require.Equal(t, 1, n.orders+n.later, "host %d hears of it, once", i)
			if n.orders == 1 {
				at = append(at, i)
			} else {
				later = append(later, i)
			}
		}
		require.Equal(t, []int{0, 7, 8, 20, 30}, at, "where it goes, where it was, two neighbours, and who has asked")
		require.Len(t, later, hosts-len(at))
		a.behind(control.Behind{Process: 40 * each})
		require.Zero(t, notes[40].later)
		require.Equal(t, 1, notes[41].later)
		a.behind(control.Behind{Process: len(ranks)}) // there is none
	}
}

// A rank whose process may live for a while goes on when its witnesses hear no more of that, and
// what they know is there; where they do not know enough its end is waited for.
func TestTheBookOfWhoStarvesIsClosed(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(a *Agent)
		waits  bool
	}{
		{"a witness", func(*Agent) {}, false},
		{"none", func(a *Agent) { clear(a.survival.witnesses) }, true},
		{"one is lost", func(a *Agent) { a.hosts[2].lost = true }, true},
		{"a neighbour lives on", func(a *Agent) { a.hosts[0].processes = append(a.hosts[0].processes, 2) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, n := surviving(1, 0, 1)
			p := a.processes
			a.survival.copied = true
			keepers, dirs := keepers(t, 2)
			a.buddies = keepers[0]
			a.store(0, stored{version{1, 6}, p[1].host, "copy"})
			a.survival.covered[0] = version{1, 6}
			a.survival.homes[control.Life{Rank: 0, Epoch: 1}] = p[0].host
			a.witnessed(p[0].host, p[1].host)
			a.witnessed(p[0].host, p[2].host)
			c.before(a)
			ended := 0
			a.rescue(p[0], 0, p[1], func(error) { ended++ })
			a.strand(verdict{by: p[0], text: "it was decided"}, p[0])
			if c.waits {
				require.Empty(t, p[1].ranks)
				require.Empty(t, p[0].closed)
				a.exited(p[0], syscall.WaitStatus(syscall.SIGKILL))
				require.Equal(t, map[bring]bool{{0, p[0].host, p[1].host}: false}, a.survival.bringing, "its own host knows all")
				return
			}
			one := []control.Life{{Rank: 0, Epoch: 1}}
			require.Equal(t, map[*host][]control.Life{p[1].host: one, p[2].host: one}, p[0].closed)
			require.True(t, p[0].condemned)
			heard := choosesOn(t, keepers[1], dirs[1], a.buddies)
			require.Never(t, heard, 100*time.Millisecond, 10*time.Millisecond)
			require.Empty(t, p[1].ranks, "what the other witness knows is on its way")
			a.brought(p[1].host, control.Brought{Rank: 0, Agent: a.agentOf(p[2].host)})
			require.Equal(t, []int{0}, p[1].ranks)
			require.Equal(t, "copy", n.adopted(t, p[1]).Snapshot)
			require.Equal(t, 1, ended)
			a.exited(p[0], syscall.WaitStatus(syscall.SIGKILL))
			require.Eventually(t, heard, 20*time.Second, time.Millisecond, "it can be refused no more")
		})
	}
}

// choosing is surviving where hosts keep copies, and rank 0 has chosen on the first.
func choosing(t *testing.T, ranks ...int) *Agent {
	a, _ := surviving(ranks...)
	a.survival.copied, a.buddies = true, keeper(t)
	a.speaker = newSpeaker(&stream{screen: a.screens[1], w: io.Discard})
	t.Cleanup(a.speaker.close)
	a.survival.homes[control.Life{Rank: 0, Epoch: 1}] = a.hosts[0]
	return a
}

// A host is lost and the one that knew all that was chosen there: its rank goes on only if another was told all before,
// or that is nothing.
func TestAllWhoKnewWhatWasChosenAreLost(t *testing.T) {
	for _, c := range []struct{ told, none bool }{{}, {told: true}, {none: true}} {
		a := choosing(t, 1, 0, 0)
		p, h := a.processes, a.hosts
		informs := func(g *host) {
			a.witnessed(h[0], g)
			a.brought(g, control.Brought{Rank: -1, Agent: a.agentOf(h[0]), None: c.none})
		}
		informs(h[1])
		h[1].lost, p[1].exited = true, true
		a.witnessed(h[0], h[2])
		if c.told {
			informs(h[2])
		}
		h[0].lost, p[0].exited, p[0].judged = true, true, true
		a.strand(verdict{code: 1, text: "host a is lost"}, p[0])
		require.Equal(t, c.told || c.none, !a.ending)
		require.Equal(t, c.told || c.none, len(p[2].ranks) == 1)
	}
}

// Who knew all that was chosen on a host is lost when it has told that where the rank will go on, and not yet what it goes
// on from.
func TestWhoKnewWhatWasChosenIsLostWhenItHasToldThat(t *testing.T) {
	for _, told := range []bool{false, true} {
		a := choosing(t, 1, 1, 0)
		p, h := a.processes, a.hosts
		a.witnessed(h[0], h[1])
		a.brought(h[1], control.Brought{Rank: -1, Agent: a.agentOf(h[0])})
		a.store(0, stored{version{1, 1}, h[1], "copy"})
		h[0].lost, p[0].exited, p[0].judged = true, true, true
		a.strand(verdict{code: 1, text: "host a is lost"}, p[0])
		require.Equal(t, map[bring]bool{{0, h[1], h[2]}: false}, a.survival.bringing)
		if told {
			a.brought(h[2], control.Brought{Rank: 0, Agent: a.agentOf(h[1])})
		}
		require.Empty(t, p[2].ranks, "its state is on its way")
		h[1].lost = true
		a.goOn()
		require.Equal(t, told, !a.ending)
		require.Equal(t, told, len(p[2].ranks) == 1)
	}
}

// A buddy of before is heard late: it is the next that knows all.
func TestABuddyOfBeforeIsHeardLate(t *testing.T) {
	a := choosing(t, 1, 0, 0)
	p, h := a.processes, a.hosts
	a.witnessed(h[0], h[1])
	a.witnessed(h[0], h[2])
	h[0].buddy = h[2]
	for _, g := range []*host{h[2], h[1]} {
		a.brought(g, control.Brought{Rank: -1, Agent: a.agentOf(h[0])})
	}
	h[1].lost, p[1].exited = true, true
	h[0].lost, p[0].exited, p[0].judged = true, true, true
	a.strand(verdict{code: 1, text: "host a is lost"}, p[0])
	require.False(t, a.ending)
	require.Equal(t, []int{0}, p[2].ranks)
}

// choosesOn has the first life of rank 0 choose on a host whose buddy is to. The function that it
// returns tells whether that has been heard.
func choosesOn(t *testing.T, on *buddy.Keeper, dir string, to *buddy.Keeper) func() bool {
	page, err := witness.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { page.Close() })
	heard := func() bool { page.Wake(); return page.Witnessed() >= page.Recorded() }
	page.Record(1) // of a file that is gone
	on.Do(control.ToAgent{Buddy: &control.Buddy{Addrs: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(to.Port()))}}})
	require.Eventually(t, heard, 20*time.Second, time.Millisecond, "they are there for each other")

	d, err := checkpoint.CreateDeterminants(filepath.Join(dir, "choices-0.1"))
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	require.NoError(t, d.Append(checkpoint.Determinant{Kind: 1}))
	page.AddFile()
	page.Record(1)
	return heard
}

// A host keeps its buddy as long as that will do: not one that ranks are kept off while there is
// another, and a distrusted one last.
func TestBuddiesThatWillDo(t *testing.T) {
	a, _ := surviving(1, 1, 1, 1)
	a.survival.copied = true
	a.buddies = keeper(t)
	var places []topology.Place
	for _, p := range a.processes {
		places = append(places, p.place())
	}
	a.policy = &policy{traffics: map[string]*traffic{}, machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New(places)),
		hosts: map[string]bool{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
	for _, h := range a.hosts {
		a.tellPolicy(leader.HostJoined{Host: h.name, Trusted: true})
	}
	buddies := func() (all string) {
		for _, h := range a.hosts {
			if h.buddy == nil {
				all += "-"
			} else {
				all += h.buddy.name
			}
		}
		return all
	}
	a.pairHosts()
	require.Equal(t, "bcda", buddies(), "the next")
	a.tellPolicy(leader.Cordon{Host: "b", Ref: "1"})
	a.lookForLeft()
	require.Equal(t, "ccda", buddies())
	require.Len(t, a.survival.witnesses[a.hosts[0]], 2, "who had b before is known there, too")
	a.tellPolicy(leader.Uncordon{Host: "b", Ref: "2"})
	a.lookForLeft()
	require.Equal(t, "ccda", buddies(), "what is kept is kept")
	a.hosts[2].lost = true
	a.pairHosts()
	require.Equal(t, "bd", buddies()[:2])
	a.hosts[3].Distrusted = true
	a.pairHosts()
	require.Equal(t, "ba", buddies()[:2])
	a.tellPolicy(leader.Cordon{Host: "a", Ref: "3"})
	a.lookForLeft()
	require.Equal(t, "ba", buddies()[:2], "better than one that is distrusted")
}

// A host whose agent is to end is no buddy, though the only other one is distrusted: its agent would wait in vain for
// another to have what it has.
func TestABuddyIsEvictedWhereTheOthersAreDistrusted(t *testing.T) {
	a, _ := surviving(1, 0, 0)
	a.survival.copied, a.buddies = true, keeper(t)
	h := a.hosts
	h[2].Distrusted = true
	a.pairHosts()
	require.Same(t, h[1], h[0].buddy)
	h[1].evicted = true
	a.pairHosts()
	require.Same(t, h[2], h[0].buddy)
}

// Slurm kills what is on the nodes when srun ends, and that may be heard of first, even of all.
func TestTheEndOfSrunIsWhy(t *testing.T) {
	for _, known := range []bool{true, false} {
		a, _ := surviving(1, 1)
		a.job.Options.Survive, a.job.Launch.Slurm = "none", true
		a.speaker = newSpeaker(&stream{screen: a.screens[1], w: io.Discard})
		defer a.speaker.close()
		for _, p := range a.processes {
			p.exited, p.status = true, syscall.WaitStatus(syscall.SIGKILL)
			a.judge(p)
		}
		require.False(t, a.ending, "the reason may follow")
		if known {
			a.notLaunched(control.LaunchFailed{Agent: 1, Exit: 137}, false)
			require.Equal(t, 1, a.code)
			continue
		}
		require.NotNil(t, a.doubt, "the job does not end well if it does not")
		require.Equal(t, 128+9, a.doubt.code)
	}
}

// Who has no buddy is said of a host that has ranks, or when it has some.
func TestAHostWithoutRanksSavesNothing(t *testing.T) {
	a, _ := surviving(1, 1, 0)
	a.copies, a.survival.copied, a.job.Quiet, a.buddies = true, true, false, keeper(t)
	out := new(strings.Builder)
	a.speaker = newSpeaker(&stream{screen: a.screens[1], w: out})
	a.hosts[0].lost, a.hosts[1].lost = true, true
	a.pairHosts() // c has a spare process
	a.processes[1].ranks, a.processes[2].ranks = nil, []int{1}
	for number := range uint64(2) {
		a.savedOn(a.processes[2], control.Saved{Rank: 1, Epoch: 2, Number: number + 1})
	}
	a.speaker.close()
	require.Equal(t, "mpivrun: host c: no other host can keep copies of the snapshots of rank 1: the loss of this host would be the loss of the job\n", out.String())
}
