package agent

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/patient"
)

// A host of the job, as the loop sees it.
type host struct {
	Host
	index     int // in the job; that of its agent, too
	name      string
	here      bool  // it is this one
	processes []int // on it
	place     place // nil until its agent has joined
	cores     int   // known by then
	networks  []control.Network
	router    string         // of an address translation, from where its agent seems to come; empty: there is none between
	lost      bool           // its agent has ended
	evicted   bool           // its agent is to end
	adding    *adding        // nil: it is in the job, or is no more
	clock     clock          // as it was when its agent joined
	copies    int            // the port of its agent where it takes copies of snapshots
	buddy     *host          // to which those of its own go; nil: to none
	alive     patient.Moment // when bytes of its processes had come to other hosts
}

// apart tells whether h is behind an address translation: others may not reach its processes.
func (h *host) apart() bool { return h.router != "" }

// A place is the crew of a host: this one's, or one behind an agent elsewhere.
// None of its methods waits; all but send report by events.
type place interface {
	send(m control.Message, to ...int) bool // to processes. False: one does not read
	sendLater(m control.Message, to ...int) // with what comes next anyway
	hurry()                                 // no later than now
	kill(process int, sig syscall.Signal)
	spawn(p *process) error // starts one more
}

// layout cuts the ranks of each program into processes, and says on which host
// each is.
func layout(j Job) ([]*host, []*process, error) {
	var all []*process
	rank := 0
	for i := range j.Programs {
		prog := &j.Programs[i]
		for end := rank + prog.Ranks; rank < end; {
			p := &process{index: len(all), prog: prog, finished: map[int]control.RankReport{}}
			for ; rank < end && len(p.ranks) < j.RanksPerProcess; rank++ {
				p.ranks = append(p.ranks, rank)
			}
			p.reads = j.Stdin != nil && slices.Contains(p.ranks, j.StdinRank)
			all = append(all, p)
		}
	}
	if len(all) == 0 {
		return nil, nil, fmt.Errorf("the job has no ranks")
	}
	for i := range j.Spares { // a rank can go to a process of its own program only
		all = append(all, &process{index: len(all), prog: &j.Programs[i%len(j.Programs)], finished: map[int]control.RankReport{}})
	}
	hosts := make([]*host, len(j.Hosts))
	for i, h := range j.Hosts {
		hosts[i] = &host{Host: h, index: i, name: h.Name, here: h.Here}
	}
	at := places(len(all)-j.Spares, j.Hosts, j.ByNode)
	at = append(at, sparePlaces(j.Spares, at, j.Hosts)...)
	if len(at) < len(all) {
		return nil, nil, &exit.Error{Code: codeUsage, Err: fmt.Errorf("%d processes do not fit the hosts, whose max_slots take %d", len(all), len(at))}
	}
	for i, p := range all {
		p.host, p.slot = hosts[at[i]], len(hosts[at[i]].processes)
		p.host.processes = append(p.host.processes, i)
	}
	return hosts, all, nil
}

// busyHosts is those of hosts that have processes.
func busyHosts(hosts []*host) []*host {
	return slices.DeleteFunc(slices.Clone(hosts), func(h *host) bool { return len(h.processes) == 0 })
}

// checkTransports is an error if processes are on several hosts and may use only what works
// within one.
func (a *Agent) checkTransports() error {
	busy := busyHosts(a.hosts)
	if len(busy) < 2 || !slices.Equal(a.job.Options.Transports, []string{"shm"}) {
		return nil
	}
	return &exit.Error{Code: codeUsage, Err: fmt.Errorf("--transport shm: hosts %s and %s cannot reach each other by it: add tcp", busy[0].name, busy[1].name)}
}

// sparePlaces says on which of the hosts each of n spare processes is, where others are
// at those of at: in turn, beginning with those that have the least to lose, so that the
// loss of one leaves spares on others.
func sparePlaces(n int, at []int, hosts []Host) []int {
	on, spares := make([]int, len(hosts)), make([]int, len(hosts))
	for _, h := range at {
		on[h]++
	}
	var all []int
	for range n {
		best := -1
		for i, h := range hosts {
			switch {
			case h.MaxSlots > 0 && on[i] >= h.MaxSlots:
			case best < 0, spares[i] < spares[best], spares[i] == spares[best] && on[i] < on[best]:
				best = i
			}
		}
		if best < 0 {
			break
		}
		on[best]++
		spares[best]++
		all = append(all, best)
	}
	return all
}

// places says on which of the hosts each of n processes is: as many as a host
// has slots before the next, or one on each in turn. What does not fit is dealt
// out again from the first, as far as MaxSlots let it.
func places(n int, hosts []Host, byNode bool) []int {
	at := make([]int, 0, n)
	on := make([]int, len(hosts))
	for last := -1; len(at) < n && len(at) > last; {
		last = len(at)
		free := make([]int, len(hosts))
		for i, h := range hosts {
			free[i] = max(h.Slots, 1)
			if h.MaxSlots > 0 {
				free[i] = min(free[i], h.MaxSlots-on[i])
			}
		}
		for more := true; more && len(at) < n; {
			more = false
			for i := range hosts {
				for free[i] > 0 && len(at) < n {
					free[i]--
					on[i]++
					more = true
					at = append(at, i)
					if byNode {
						break
					}
				}
			}
		}
	}
	return at
}
