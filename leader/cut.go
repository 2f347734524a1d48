package leader

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Unreached: these pairs of hosts have something to send each other and do not reach each
// other, though the leader reaches all of them.
type Unreached struct {
	Pairs [][2]string
	For   time.Duration
}

func (Unreached) input() {}

// Leave is which hosts are to be left so that the others all reach each other: those with
// few ranks for the pairs that they are in. It never is the host called keep. The same arguments
// give the same hosts.
func Leave(pairs [][2]string, ranks map[string]int, keep string) (left []string) {
	open := slices.Clone(pairs)
	for len(open) > 0 {
		degree := map[string]int{}
		for _, p := range open {
			degree[p[0]]++
			degree[p[1]]++
		}
		best := ""
		for h, d := range degree {
			if h == keep {
				continue
			}
			b := degree[best]
			x, y := ranks[h]*b, ranks[best]*d // ranks for each pair
			if best == "" || x < y || x == y && (d > b || d == b && h > best) {
				best = h
			}
		}
		if best == "" {
			break
		}
		left = append(left, best)
		open = slices.DeleteFunc(open, func(p [2]string) bool { return p[0] == best || p[1] == best })
	}
	return left
}

// unreached has the hosts emptied that must be.
func (m *Machine) unreached(in Unreached) {
	ranks := map[string]int{}
	var pairs [][2]string
	for _, p := range in.Pairs {
		a, b := m.hosts[p[0]], m.hosts[p[1]]
		if a != nil && b != nil && a.joined && b.joined {
			pairs = append(pairs, p)
			ranks[p[0]], ranks[p[1]] = a.ranks, b.ranks
		}
	}
	for _, name := range Leave(pairs, ranks, m.leader) {
		var others []string
		for _, p := range pairs {
			if p[0] == name {
				others = append(others, p[1])
			} else if p[1] == name {
				others = append(others, p[0])
			}
		}
		m.drain(m.hosts[name], &drain{cut: fmt.Sprintf("nothing has got through between host %s and %s for %v", name, strings.Join(others, ", "), in.For.Round(100*time.Millisecond))})
	}
}

// leaveAtOnce has a rank go on elsewhere from its copy, with all that share its process:
// over a cut it waits for what does not come, and reaches no safe point. False: it cannot.
func (m *Machine) leaveAtOnce(host string, s Relocate, rec *Record) bool {
	group := m.again(Trouble{Suspect: Suspect{Host: host}}, s.Rank, s.To.Host, map[string]int{})
	for _, g := range group {
		m.relocate(g, g.To.Host, rec)
	}
	return group != nil
}
