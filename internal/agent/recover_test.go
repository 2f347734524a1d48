package agent

import (
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/topology"
)

// A notebook is a host's place that notes what it is told, by process.
type notebook struct {
	sent    map[int][]control.Message
	killed  []int
	spawned int
	orders  int // to send
}

func (n *notebook) startRanks([]int, control.Start)    {}
func (n *notebook) kill(process int, _ syscall.Signal) { n.killed = append(n.killed, process) }
func (n *notebook) spawn(*process) error               { n.spawned++; return nil }
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
			a.policy = &policy{machine: leader.New(leader.Config{Level: leader.Crashes}, topology.New([]topology.Place{p[0].place()})),
				slots: map[string]int{}, refs: map[string]order{}, said: map[uint64]leader.Record{}}
			for _, h := range a.hosts {
				a.tellPolicy(leader.HostJoined{Host: h.name, Slots: 1, Trusted: true})
			}
			for _, h := range c.cordoned {
				a.tellPolicy(leader.Cordon{Host: h, Ref: "test"})
			}
			p[0].exited, p[0].judged = true, true
			a.recover(p[0])
			require.Equal(t, []int{0}, p[c.to].ranks)
			require.Equal(t, "copy on "+p[c.to].host.name, n.adopted(t, p[c.to]).Snapshot)
		})
	}
}

// What a rank saved before it moved is known by who took it, on the host where it is.
func TestWhatWasSavedBeforeAMove(t *testing.T) {
	a, _ := surviving(1, 0, 0)
	p := a.processes
	a.survival.homes[life{0, 1}] = p[0].host
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
