package leader

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Evidence is what is known when somebody is to be blamed. What was not measured
// is in neither Fell nor Fine, and proves nothing.
type Evidence struct {
	Fell    []Link
	Fine    []Port   // of which a link was measured and fine since the last one fell
	Odd     []string // hosts whose readings show traffic or load that is not the job's
	Starved []string // hosts whose readings show that they are the cause of something
}

// A Suspect is a host, or its end of one network, or a link. Out and In tell
// which directions of the host's links fell; for a starved host, both.
type Suspect struct {
	Host    string
	Network string
	Out, In bool
	Starved bool
	Link    Link // where Host is empty
	Fell    []Link
}

func (s Suspect) String() string {
	if s.Host == "" {
		return "link " + s.Link.String()
	}
	text := "host " + s.Host
	if s.Network != "" && !s.Starved {
		text += " on " + s.Network
	}
	switch {
	case s.Starved:
	case s.Out && !s.In:
		text += ", outwards"
	case s.In && !s.Out:
		text += ", inwards"
	}
	return text
}

// A Port is one direction of a host's end of a network.
type Port struct {
	Host, Network string
	Out           bool
}

func (p Port) opposite() Port { p.Out = !p.Out; return p }

func ports(l Link) (from, to Port) {
	return Port{l.From, l.Network, true}, Port{l.To, l.Network, false}
}

// element is a candidate: a port, a link where the port is empty, both ports of a host's end of a
// network, or a starved host.
type element struct {
	port    Port
	link    Link
	whole   bool // both directions, whichever port has
	starved bool
	odd     bool
}

func (e element) hits(l Link) bool {
	switch {
	case e.starved:
		return l.From == e.port.Host || l.To == e.port.Host
	case e.port.Host == "":
		return l == e.link
	}
	from, to := ports(l)
	return e.port == from || e.port == to || e.whole && (e.port.opposite() == from || e.port.opposite() == to)
}

// Blame is the smallest set of suspects that explains what fell. A host can be one
// if two of its links fell in a direction, or one and its readings are odd, and no
// link is fine in that direction on that network; for both directions together, if one link fell in
// each, to one host and from another, and none is fine.
//
// The search is exact for up to five suspects and 64 links, and takes whoever explains most otherwise.
func Blame(ev Evidence) []Suspect {
	var sure []element
	for _, h := range ev.Starved {
		sure = append(sure, element{port: Port{Host: h}, starved: true})
	}
	var open []Link
	for _, l := range ev.Fell {
		if !slices.ContainsFunc(sure, func(e element) bool { return e.hits(l) }) {
			open = append(open, l)
		}
	}
	slices.SortFunc(open, compareLinks)
	open = slices.Compact(open)
	alone := eligible(ev, open)
	able := suspectable{alone, whole(ev, open, alone)}
	set := exact(open, able)
	if set == nil {
		set = greedy(open, able)
	}
	return suspects(append(sure, set...), ev.Fell)
}

func compareLinks(a, b Link) int {
	return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Network, b.Network))
}

// eligible is the ports that may be blamed; true: with odd readings.
func eligible(ev Evidence, fell []Link) map[Port]bool {
	count := map[Port]int{}
	for _, l := range fell {
		from, to := ports(l)
		count[from]++
		count[to]++
	}
	able := map[Port]bool{}
	for p, n := range count {
		odd := slices.Contains(ev.Odd, p.Host)
		if !slices.Contains(ev.Fine, p) && (n >= 2 || odd) {
			able[p] = odd
		}
	}
	return able
}

// whole is the ends of networks that may be blamed for both directions, though for neither alone, by
// their ports outwards: in each direction fell one link, and not just those between the same two hosts.
func whole(ev Evidence, fell []Link, alone map[Port]bool) map[Port]bool {
	others := map[Port][2]map[string]bool{} // by the port outwards: at the other ends of links outwards, and inwards
	note := func(p Port, way int, other string) {
		o := others[p]
		if o[way] == nil {
			o[way] = map[string]bool{}
		}
		o[way][other] = true
		others[p] = o
	}
	for _, l := range fell {
		from, to := ports(l)
		note(from, 0, l.To)
		note(to.opposite(), 1, l.From)
	}
	able := map[Port]bool{}
	for p, o := range others {
		_, out := alone[p]
		_, in := alone[p.opposite()]
		if out || in || len(o[0]) == 0 || len(o[1]) == 0 {
			continue
		}
		all := maps.Clone(o[0])
		maps.Copy(all, o[1])
		if len(all) > 1 && !slices.Contains(ev.Fine, p) && !slices.Contains(ev.Fine, p.opposite()) {
			able[p] = slices.Contains(ev.Odd, p.Host)
		}
	}
	return able
}

// suspectable is the ports, and the ends for both directions, that may be blamed; true: with odd readings.
type suspectable struct{ ports, wholes map[Port]bool }

// explainers is who could explain l, the likeliest first.
func explainers(l Link, able suspectable) []element {
	var all []element
	from, to := ports(l)
	for _, p := range []Port{from, to} {
		if odd, ok := able.ports[p]; ok {
			all = append(all, element{port: p, odd: odd})
		}
	}
	for _, p := range []Port{from, to.opposite()} {
		if odd, ok := able.wholes[p]; ok {
			all = append(all, element{port: p, whole: true, odd: odd})
		}
	}
	slices.SortStableFunc(all, func(a, b element) int { return before(a.odd, b.odd) })
	return append(all, element{link: l})
}

const (
	exactSuspects = 5
	exactLinks    = 64
)

// exact is the best set of at most exactSuspects, or nil. Of sets of one size the one with more odd
// hosts is better, then the one with fewer links, then the first.
func exact(fell []Link, able suspectable) []element {
	if len(fell) > exactLinks {
		return nil
	}
	better := func(a, b []element) bool {
		score := func(set []element) (n int) {
			for _, e := range set {
				switch {
				case e.odd:
					n += 100
				case e.port.Host == "":
					n -= 2
				}
				if e.whole { // a direction says more, where it explains as much
					n--
				}
			}
			return n
		}
		return b == nil || score(a) > score(b)
	}
	for size := range exactSuspects + 1 {
		var best []element
		var search func(set []element)
		search = func(set []element) {
			i := slices.IndexFunc(fell, func(l Link) bool {
				return !slices.ContainsFunc(set, func(e element) bool { return e.hits(l) })
			})
			if i < 0 {
				if better(set, best) {
					best = append([]element{}, set...)
				}
				return
			}
			if len(set) == size {
				return
			}
			for _, e := range explainers(fell[i], able) {
				search(append(slices.Clone(set), e))
			}
		}
		search(nil)
		if best != nil || len(fell) == 0 {
			return best
		}
	}
	return nil
}

func greedy(fell []Link, able suspectable) (set []element) {
	left := slices.Clone(fell)
	for len(left) > 0 {
		count := map[Port]int{}
		for _, l := range left {
			from, to := ports(l)
			count[from]++
			count[to]++
		}
		var best element
		most := 0
		for _, l := range left { // in their order, so that ties fall the same way each time
			for _, e := range explainers(l, able) {
				n := 1
				if e.port.Host != "" {
					n = 2 * count[e.port]
				}
				if e.whole {
					n += 2*count[e.port.opposite()] - 1
				}
				if e.odd {
					n++
				}
				if n > most {
					best, most = e, n
				}
			}
		}
		set = append(set, best)
		left = slices.DeleteFunc(left, best.hits)
	}
	return set
}

// suspects joins what is of one host, and says what each explains.
func suspects(set []element, fell []Link) []Suspect {
	var all []Suspect
	for _, e := range set {
		s := Suspect{Host: e.port.Host, Network: e.port.Network, Starved: e.starved, Link: e.link}
		both := e.starved || e.whole
		s.Out, s.In = both || e.port.Out, both || e.port.Host != "" && !e.port.Out
		i := slices.IndexFunc(all, func(o Suspect) bool {
			return s.Host != "" && o.Host == s.Host && o.Network == s.Network && o.Starved == s.Starved
		})
		if i < 0 {
			all = append(all, s)
			i = len(all) - 1
		}
		all[i].Out, all[i].In = all[i].Out || s.Out, all[i].In || s.In
		for _, l := range fell {
			if e.hits(l) && !slices.Contains(all[i].Fell, l) {
				all[i].Fell = append(all[i].Fell, l)
			}
		}
	}
	slices.SortFunc(all, func(a, b Suspect) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), strings.Compare(a.Network, b.Network), compareLinks(a.Link, b.Link))
	})
	return all
}
