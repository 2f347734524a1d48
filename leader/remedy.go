package leader

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/topology"
)

// What can be done, from the cheapest up.
const (
	doNothing = "nothing"
	doPath    = "another path"
	doMove    = "move one rank"
	doEmpty   = "empty the host"
)

// enough is how much of what the best remedy would bring the cheaper one must.
const enough = 0.6

// A Remedy is the [adapt.Strategy] that answers a [Trouble]: what is chosen among options. Each part
// of what is chosen is a strategy of its own, and a plan.
type Remedy struct {
	Chosen  Option
	Options []Option
	Why     string
}

func (r Remedy) String() string { return r.Chosen.What }

// decider is the [adapt.Decider] that answers troubles. It only reads the machine.
type decider struct{ m *Machine }

var _ adapt.Decider = decider{}

// Decide answers a Trouble with a Remedy; false: no rank is concerned that is not looked after already.
func (d decider) Decide(e adapt.Event) (adapt.Strategy, bool) {
	t := e.(Trouble)
	m := d.m
	users := m.users(t)
	if len(users) == 0 {
		return nil, false
	}
	options := []Option{{What: doNothing}}
	if t.Verdict.Kind == Program {
		return Remedy{options[0], options, "it is the program's own doing: a move would not help"}, true
	}
	lost := (1 - t.Left) * horizon.Seconds()
	options = append(options, m.otherPath(t, lost))
	options = append(options, m.moving(t, users, lost)...)
	chosen, why := Weigh(options)
	return Remedy{chosen, options, why}, true
}

// Weigh chooses among options, of which the first is to do nothing, the cheapest kind first: the first that surely brings most of
// what the best one does, else that one. Those that bring less than pays times their cost are out.
func Weigh(options []Option) (Option, string) {
	best, why := options[0], "no remedy would pay"
	worth := func(o Option) bool { return o.Refused == "" && o.Benefit > 0 && o.Benefit >= pays*o.Cost }
	possible := false
	for _, o := range options[1:] {
		if worth(o) && o.Benefit-o.Cost > best.Benefit-best.Cost {
			best = o
		}
		possible = possible || o.Refused == ""
		if o.Refused != "" && !possible {
			why = o.Refused // the last one's: that of the remedy that helps most
		}
	}
	if possible {
		why = "no remedy would pay"
	}
	for _, o := range options {
		if worth(o) && o.Surely-o.Cost >= enough*(best.Benefit-best.Cost) {
			return o, "the cheapest that brings most of what can be had"
		}
	}
	if worth(best) {
		return best, "nothing else would bring as much"
	}
	return best, why
}

// relief is the part of the lost that comes back when share of what crosses the blamed no longer does, and the others have for
// themselves what is left of it: most where no rank waits for another, least where all go at the pace of the slowest.
func relief(left, share float64) (most, least float64) {
	least = 1
	if rest := 1 - share; rest > 1e-6 && left < 1 {
		least = (min(1, left/rest) - left) / (1 - left)
	}
	return max(min(1, share), least), least
}

// A user is a rank that a trouble concerns.
type user struct {
	rank  topology.Rank
	bytes float64 // by the second, over what is blamed
	busy  string  // why it cannot be moved now
}

// users is the ranks at the blamed host whose messages cross it, or at either end of
// the blamed link; none of them if all are being moved already, or one of a link, which may
// be enough. Where nothing is known of their messages, all ranks there are. The busiest come first.
func (m *Machine) users(t Trouble) (all []user) {
	sum := map[topology.Rank]float64{}
	var order []topology.Rank
	note := func(r topology.Rank, rate float64) {
		if _, ok := sum[r]; !ok {
			order = append(order, r)
		}
		sum[r] += rate
	}
	known := false
	s := t.Suspect
	cross := func(from, to topology.Rank, rate float64) {
		a, b := m.at(from).Host, m.at(to).Host
		switch {
		case a == b:
		case s.Host == "":
			if a == s.Link.From && b == s.Link.To {
				note(from, rate)
				note(to, rate)
			}
		case s.Out && a == s.Host:
			note(from, rate)
		case s.In && b == s.Host:
			note(to, rate)
		}
	}
	hosts := []string{s.Host}
	if s.Host == "" {
		hosts = []string{s.Link.From, s.Link.To}
	}
	for _, name := range hosts {
		for _, r := range ranksAt(m.hosts[name]) {
			known = known || len(m.ranks[r].to)+len(m.ranks[r].from) > 0
			if s.Starved {
				note(r, 0)
			}
			for _, f := range m.ranks[r].to {
				if s.Host != "" || name == s.Link.From {
					cross(r, f.To, f.Rate)
				}
			}
			if s.Host == "" {
				continue
			}
			for _, o := range m.ranks[r].from {
				for _, f := range m.ranks[o].to {
					if f.To == r && s.In {
						cross(o, r, f.Rate)
					}
				}
			}
		}
	}
	if !known {
		for _, name := range hosts {
			for _, r := range ranksAt(m.hosts[name]) {
				note(r, 0)
			}
		}
	}
	rest := 0
	for _, r := range order {
		u := user{rank: r, bytes: sum[r], busy: m.held(r)}
		if m.ranks[r].plan == 0 {
			rest++
		}
		all = append(all, u)
	}
	if rest == 0 || s.Host == "" && rest < len(order) {
		return nil
	}
	slices.SortStableFunc(all, func(a, b user) int {
		switch {
		case a.bytes > b.bytes:
			return -1
		case a.bytes < b.bytes:
			return 1
		}
		return int(a.rank) - int(b.rank)
	})
	return all
}

// busy says why a living rank cannot be carried now; empty: it can.
func (m *Machine) busy(r topology.Rank) string {
	if why := m.held(r); why != "" {
		return why
	}
	if info := &m.ranks[r]; m.now.Before(info.retry) {
		return fmt.Sprintf("its last move was undone, less than %v ago", retryAfter)
	}
	return ""
}

// held says why a living rank can neither be carried now nor begin again from a copy.
func (m *Machine) held(r topology.Rank) string {
	info := &m.ranks[r]
	switch {
	case info.dead != nil:
		return "it is lost, and waits to be recovered"
	case info.plan != 0:
		return fmt.Sprintf("plan %d has it", info.plan)
	case !info.moved.IsZero() && m.now.Sub(info.moved) < coolDown:
		return fmt.Sprintf("it moved less than %v ago", coolDown)
	}
	return ""
}

// otherPath is to use another network for all links that fell.
func (m *Machine) otherPath(t Trouble, lost float64) Option {
	o := Option{What: doPath, Cost: standstill.Seconds()}
	switch {
	case len(t.Falls) == 0:
		o.Refused = "no link fell"
		return o
	case t.Verdict.Kind == Starve:
		o.Refused = "it is not the path that is slow"
		return o
	}
	regained := 1.0
	for _, f := range t.Falls {
		if last, ok := m.changed[[2]string{f.Link.From, f.Link.To}]; ok && m.now.Sub(last) < coolDown {
			o.Refused = fmt.Sprintf("%s and %s were to use another network less than %v ago", f.Link.From, f.Link.To, coolDown)
			o.change = nil
			return o
		}
		best, share := "", 0.0
		for _, n := range m.shared(f.Link.From, f.Link.To) {
			if n == f.Link.Network {
				continue
			}
			l := Link{f.Link.From, f.Link.To, n}
			out, in := ports(l)
			if m.breaches[l] != nil || m.ailing[out] != 0 || m.ailing[in] != 0 {
				continue
			}
			s := 1.0
			if known, ok := m.fine[l]; ok && f.Promised > 0 {
				s = min(1, known.seen/f.Promised)
			}
			if s > share {
				best, share = n, s
			}
		}
		if best == "" {
			o.Refused = fmt.Sprintf("%s and %s share no other network that is well", f.Link.From, f.Link.To)
			o.change = nil
			return o
		}
		regained = min(regained, share)
		o.change = append(o.change, Switch{f.Link, best})
	}
	if t.Left < 1 {
		o.Benefit = max(0, lost*(regained-t.Left)/(1-t.Left))
		o.Surely = o.Benefit
	}
	return o
}

// moving is to move the one rank that pays best, and, for a host, all.
func (m *Machine) moving(t Trouble, users []user, lost float64) []Option {
	one, all := Option{What: doMove}, Option{What: doEmpty}
	refuse := func(why string) []Option {
		one.Refused, all.Refused = why, why
		if t.Suspect.Host == "" {
			return []Option{one}
		}
		return []Option{one, all}
	}
	budget := m.cfg.MovesPerMinute - m.moves.count(m.now)
	if budget <= 0 {
		return refuse(fmt.Sprintf("%d moves within a minute are the most", m.cfg.MovesPerMinute))
	}
	total := 0.0
	for _, u := range users {
		total += u.bytes
	}
	why, best, gone := "", math.Inf(-1), 0.0
	taken := map[string]int{}
	done := map[topology.Rank]bool{}
	for _, u := range users {
		if done[u.rank] {
			continue
		}
		spent := len(all.relocate)
		if t.Suspect.Host == "" {
			clear(taken) // one of these moves is made, not all
			spent = 0
		}
		if u.busy != "" {
			why = fmt.Sprintf("rank %d: %s", u.rank, u.busy)
			continue
		}
		// A rank that begins again takes with it all that are in its process.
		group, no := m.way(t, u.rank, taken)
		if no != "" {
			why = fmt.Sprintf("rank %d: %s", u.rank, no)
			continue
		}
		if spent+len(group) > budget {
			why = fmt.Sprintf("rank %d: %d ranks would move, and %d are left of the %d within a minute", u.rank, len(group), budget-spent, m.cfg.MovesPerMinute)
			continue
		}
		cost, share := 0.0, 0.0
		for _, s := range group {
			cost += s.Cost
			done[s.Rank] = true
			taken[s.To.Host]++
			share += m.share(s.Rank, users, total, t.Suspect.Host == "")
		}
		if most, least := relief(t.Left, share); lost*most-cost > best {
			one.relocate, one.Benefit, one.Surely, one.Cost, best = group, lost*most, lost*least, cost, lost*most-cost
		}
		all.relocate = append(all.relocate, group...)
		all.Cost += cost
		gone += share
	}
	if len(all.relocate) == 0 {
		return refuse(why)
	}
	most, least := relief(t.Left, gone)
	all.Benefit, all.Surely = lost*most, lost*least
	one.What = fmt.Sprintf("%s: %s", doMove, one.relocate[0].brief())
	if len(one.relocate) > 1 {
		one.What += fmt.Sprintf(", and %d more of its process", len(one.relocate)-1)
	}
	all.What = fmt.Sprintf("%s: %d of %d ranks", doEmpty, len(all.relocate), len(users))
	if t.Suspect.Host == "" {
		return []Option{one} // a link is left by one of its ends
	}
	return []Option{one, all}
}

// share is the part of what is lost that is regained when a rank no longer crosses what is blamed.
// Both ends of a link's messages are users: each carries its bytes whole.
func (m *Machine) share(r topology.Rank, users []user, total float64, link bool) float64 {
	if total == 0 {
		return 1 / float64(len(users))
	}
	if link {
		total /= 2
	}
	for _, u := range users {
		if u.rank == r {
			return u.bytes / total
		}
	}
	return 0
}

// way is how a rank would best leave: alive, or from a copy with all that share its process; and where to. taken is
// the room that is spoken for.
func (m *Machine) way(t Trouble, r topology.Rank, taken map[string]int) (group []Relocate, no string) {
	to, no, ok := m.choose(r, taken)
	if !ok {
		return nil, no
	}
	info, live := &m.ranks[r], m.alive(r, to)
	if t.Verdict.Kind == Starve { // all that it does there, the way to its next safe point too, takes so much longer
		live.Cost /= max(t.Left, 0.01)
	}
	again := m.again(t, r, to, taken)
	if again == nil {
		if no = m.busy(r); no != "" {
			return nil, no
		}
		return []Relocate{live}, ""
	}
	cost := 0.0
	for _, s := range again {
		cost += s.Cost
	}
	// State must not leave a starved host over what is left of its link.
	dying := (t.Verdict.Kind == Flood || t.Verdict.Kind == Starve) && t.Left < 0.5 && !info.taken.IsZero()
	if dying || info.stuck || cost < live.Cost {
		return again, ""
	}
	return []Relocate{live}, ""
}

func (m *Machine) choose(r topology.Rank, taken map[string]int) (string, string, bool) {
	all := m.candidates(r)
	for i := range all {
		all[i].Room -= taken[all[i].Host]
	}
	all = slices.DeleteFunc(all, func(c Candidate) bool { return c.Room <= 0 })
	c, why, ok := Choose(all, false)
	return c.Host, why, ok
}

// again is how a rank, and all that share its process, would begin again from copies elsewhere; nil: they cannot.
func (m *Machine) again(t Trouble, r topology.Rank, to string, taken map[string]int) (group []Relocate) {
	if m.cfg.Level != Crashes || t.Suspect.Host == "" {
		return nil
	}
	spoken := maps.Clone(taken)
	spoken[to]++
	from := m.at(r)
	for _, o := range m.process(from).ranks {
		host := to
		if o != r {
			if m.held(o) != "" {
				return nil
			}
			var ok bool
			if host, _, ok = m.choose(o, spoken); !ok {
				return nil
			}
			spoken[host]++
		}
		copied, ok := m.copyOf(o, host, from.Host)
		if !ok {
			return nil
		}
		group = append(group, m.fromCopy(o, host, copied))
	}
	return group
}
