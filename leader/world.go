package leader

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// A host is what is known of one. Processes that are lost are in none.
type host struct {
	name          string
	joined        bool // and not lost since
	trusted       bool
	networks      []string
	reading       HostReading
	usual         float64   // cores that the job takes, slowly learned
	usualPressure float64   // as that
	pressedSince  time.Time // its readings show starvation; zero: they do not
	cordoned      bool
	draining      *drain
	quarantine    quarantine

	processes []*process // by slot
	ranks     int        // in the map
	incoming  int        // on their way
}

type process struct {
	place topology.Place
	ready bool
	ranks []topology.Rank
	plan  adapt.ID // that needs it, as a target; 0: none
}

type rankInfo struct {
	to     []Flow
	from   []topology.Rank // who send to it; sorted
	bytes  float64
	copies []string
	taken  time.Time      // of the copies; zero: there never was one
	plan   adapt.ID       // under way; 0: none
	dead   *cause         // nil: it runs
	since  time.Time      // dead
	moved  time.Time      // while alive
	retry  time.Time      // not before
	undone int            // plans to recover it, since it died
	lives  bool           // dead by decision only: while nobody has ended its process it is well
	stuck  bool           // it did not reach a safe point when it was to move
	was    topology.Place // before others placed it elsewhere; the zero Place if they have not
}

// room is how many more ranks the host can take: one in each process that is free.
func (h *host) room() (n int) {
	for _, p := range h.processes {
		if p.free() {
			n++
		}
	}
	return n
}

// free says whether a process can take a rank.
func (p *process) free() bool {
	return p.ready && len(p.ranks) == 0 && p.plan == 0
}

// well says whether a host can be moved to, but for quarantine.
func (h *host) well() bool {
	return h.joined && !h.cordoned && h.draining == nil && h.pressedSince.IsZero()
}

// Takes says whether ranks may come to a host: nobody keeps them off, and it is not one that
// they were moved off lately, or that shows that it is unwell.
func (m *Machine) Takes(name string) bool {
	h := m.hosts[name]
	return h != nil && h.well() && !h.quarantine.holds(m.now)
}

// Cordoned says whether ranks are to be kept off a host until the operator says otherwise.
func (m *Machine) Cordoned(name string) bool {
	h := m.hosts[name]
	return h != nil && (h.cordoned || h.draining != nil)
}

// Drains says whether a host is being emptied for good.
func (m *Machine) Drains(name string) bool {
	h := m.hosts[name]
	return h != nil && h.draining != nil
}

// Left says whether ranks are kept off a host: by the operator, or since they were moved off
// it lately.
func (m *Machine) Left(name string) bool {
	h := m.hosts[name]
	return m.Cordoned(name) || h != nil && h.quarantine.holds(m.now)
}

func (m *Machine) host(name string) *host {
	h := m.hosts[name]
	if h == nil {
		h = &host{name: name}
		m.hosts[name] = h
		i, _ := slices.BinarySearch(m.names, name)
		m.names = slices.Insert(m.names, i, name)
	}
	return h
}

func (m *Machine) process(p topology.Place) *process {
	if h := m.hosts[p.Host]; h != nil {
		for _, q := range h.processes {
			if q.place == p {
				return q
			}
		}
	}
	return nil
}

func (m *Machine) addProcess(p topology.Place) *process {
	h := m.host(p.Host)
	q := &process{place: p}
	i, _ := slices.BinarySearchFunc(h.processes, p.Slot, func(q *process, slot int) int { return q.place.Slot - slot })
	h.processes = slices.Insert(h.processes, i, q)
	return q
}

func (m *Machine) dropProcess(q *process) {
	h := m.hosts[q.place.Host]
	h.processes = slices.DeleteFunc(h.processes, func(o *process) bool { return o == q })
}

func (m *Machine) at(r topology.Rank) topology.Place {
	p, _ := m.world.Place(r)
	return p
}

// traffic keeps what a rank sends, and both ends of every interest group.
func (m *Machine) traffic(in Traffic) {
	if int(in.Rank) >= len(m.ranks) || in.Rank < 0 {
		return
	}
	for _, f := range m.ranks[in.Rank].to {
		from := &m.ranks[f.To].from
		if i, ok := slices.BinarySearch(*from, in.Rank); ok {
			*from = slices.Delete(*from, i, i+1)
		}
	}
	kept := make([]Flow, 0, len(in.To))
	for _, f := range in.To {
		if f.To < 0 || int(f.To) >= len(m.ranks) || f.To == in.Rank {
			continue
		}
		kept = append(kept, f)
		from := &m.ranks[f.To].from
		if i, ok := slices.BinarySearch(*from, in.Rank); !ok {
			*from = slices.Insert(*from, i, in.Rank)
		}
	}
	m.ranks[in.Rank].to = kept
	m.delivered(in.Rank, kept)
}

// Group is the interest group of r: the ranks that exchange messages with it, sorted.
func (m *Machine) Group(r topology.Rank) []topology.Rank {
	all := slices.Clone(m.ranks[r].from)
	for _, f := range m.ranks[r].to {
		all = append(all, f.To)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// rateTo is how fast state would travel between two hosts over the best network that both have.
func (m *Machine) rateTo(from, to string) float64 {
	if from == to {
		return 1e9
	}
	best := 0.0
	for _, n := range m.shared(from, to) {
		l := Link{from, to, n}
		rate := float64(unknownRate)
		if f, ok := m.fine[l]; ok {
			rate = f.seen
		}
		if b, ok := m.breaches[l]; ok {
			rate = b.Seen
		}
		out, in := ports(l)
		for _, p := range []Port{out, in} {
			if most, ok := m.ailing[p]; ok {
				rate = min(rate, most)
			}
		}
		best = max(best, rate)
	}
	return max(best, 1)
}

// shared is the networks that both hosts have; where none is known, one without a name.
func (m *Machine) shared(a, b string) (names []string) {
	for _, n := range m.host(a).networks {
		if slices.Contains(m.host(b).networks, n) {
			names = append(names, n)
		}
	}
	if names == nil {
		names = []string{""}
	}
	return names
}

// copyOf is the host from whose copy the rank is soonest at the target; "": it begins anew. False: every
// copy is lost.
func (m *Machine) copyOf(r topology.Rank, to string, avoid string) (from string, ok bool) {
	info := &m.ranks[r]
	if info.taken.IsZero() {
		return "", true // from the beginning
	}
	best := 0.0
	for _, c := range info.copies {
		h := m.hosts[c]
		if h == nil || !h.joined || c == avoid {
			continue
		}
		if rate := m.rateTo(c, to); rate > best {
			from, best, ok = c, rate, true
		}
	}
	return from, ok
}

// candidates is all hosts as places for r, in the order of their names. A rank that lives is not
// moved within its host.
func (m *Machine) candidates(r topology.Rank) []Candidate {
	out := map[string]float64{}
	for _, f := range m.ranks[r].to {
		out[m.at(f.To).Host] += f.Rate
	}
	in := map[string]float64{}
	for _, s := range m.ranks[r].from {
		for _, f := range m.ranks[s].to {
			if f.To == r {
				in[m.at(s).Host] += f.Rate
			}
		}
	}
	var all []Candidate
	for _, name := range m.names {
		h := m.hosts[name]
		if !h.well() || name == m.at(r).Host && m.ranks[r].dead == nil {
			continue
		}
		if room := h.room(); room > 0 {
			all = append(all, Candidate{
				Host: name, Room: room, Trusted: h.trusted, Quarantined: h.quarantine.holds(m.now),
				Crowded:   h.reading.Cores > 0 && h.reading.Busy+h.reading.Others+h.reading.Steal+float64(h.incoming)+1 > h.reading.Cores+0.5,
				NoMemory:  h.reading.MemoryFree > 0 && h.reading.MemoryFree < m.ranks[r].bytes,
				ToThere:   out[name],
				FromThere: in[name],
			})
		}
	}
	return all
}

// target is a process on the host for a rank. There is room.
func (m *Machine) target(name string) *process {
	processes := m.hosts[name].processes
	return processes[slices.IndexFunc(processes, (*process).free)]
}

// roomText is what is left elsewhere, for people.
func (m *Machine) roomText(not string) string {
	var parts []string
	for _, name := range m.names {
		h := m.hosts[name]
		if name == not || !h.joined {
			continue
		}
		state := ""
		switch {
		case h.draining != nil:
			state = ", draining"
		case h.cordoned:
			state = ", cordoned"
		case h.quarantine.holds(m.now):
			state = ", quarantined"
		}
		parts = append(parts, fmt.Sprintf("%s %d of %d%s", name, len(h.processes)-h.room(), len(h.processes), state))
		if len(parts) == 6 {
			parts = append(parts, "…")
			break
		}
	}
	if parts == nil {
		return "no other host is left"
	}
	return "processes taken on the others: " + strings.Join(parts, "; ")
}
