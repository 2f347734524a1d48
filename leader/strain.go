package leader

import (
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// A breach is one that holds.
type breach struct {
	Fall
	since time.Time
	text  string
	lent  bool
}

const (
	learn         = 0.05 // of a reading, for what is usual
	learnPressure = 0.01 // which rises well before a breach
	pressFor      = 500 * time.Millisecond
	heldFor       = 300 * time.Millisecond // where a quota leaves next to nothing
)

func (m *Machine) hostReading(in HostReading) {
	h := m.host(in.Host)
	calm := true
	for l := range m.breaches {
		calm = calm && l.From != in.Host && l.To != in.Host
	}
	switch {
	case h.reading.Cores == 0:
		h.usual, h.usualPressure = in.Busy, in.Pressure
	case calm:
		h.usual += learn * (in.Busy - h.usual)
		h.usualPressure += learnPressure * (in.Pressure - h.usualPressure)
	}
	h.reading = in
	if !h.joined || len(starving(in)) == 0 {
		h.pressedSince = time.Time{}
		delete(m.told, "host "+in.Host)
		return
	}
	if h.pressedSince.IsZero() {
		h.pressedSince = m.now
	}
	if left := m.pressedUntil(h).Sub(m.now); left > 0 {
		m.gather(left)
	}
}

// pressedUntil is when a host has been pressed for so long that it is no moment's doing.
func (m *Machine) pressedUntil(h *host) time.Time {
	if h.reading.Throttled >= held {
		return h.pressedSince.Add(heldFor)
	}
	return h.pressedSince.Add(pressFor)
}

func (m *Machine) breach(in Breach) {
	if in.Lasts && m.knows(in.Link) {
		return
	}
	if m.host(in.Link.From).joined && m.host(in.Link.To).joined {
		since := in.Since
		if since.IsZero() || since.After(m.now) {
			since = m.now
		}
		if m.breaches[in.Link] == nil {
			m.gather(gatherFor)
		}
		m.breaches[in.Link] = &breach{Fall{in.Link, in.Promised, in.Seen}, since, in.Evidence, in.lent}
		delete(m.fine, in.Link)
	}
}

// knows tells whether there is nothing new in a breach of a link that lasts: it holds, or another network is tried for it.
func (m *Machine) knows(l Link) bool {
	for o := range m.breaches {
		if o.From == l.From && o.To == l.To {
			return true
		}
	}
	for _, w := range m.measurements {
		for _, s := range w.switched {
			if s.Link.From == l.From && s.Link.To == l.To {
				return true
			}
		}
	}
	return false
}

// gather puts the next look off until what else falls is known.
func (m *Machine) gather(d time.Duration) {
	if end := m.now.Add(d); m.gatherEnd.IsZero() || end.Before(m.gatherEnd) {
		m.gatherEnd = end
	}
}

// look blames, judges and remedies, when something was gathered and from time to time
// while it lasts.
func (m *Machine) look() {
	switch {
	case !m.gatherEnd.IsZero():
		if m.now.Before(m.gatherEnd) {
			return
		}
		m.gatherEnd = time.Time{}
	case m.lookAt.IsZero() || m.now.Before(m.lookAt):
		return
	}
	m.lookAt = time.Time{}
	m.ailing = nil
	falls := m.falls()
	ev := m.evidence(falls)
	if len(ev.Fell)+len(ev.Starved) == 0 {
		return
	}
	m.lookAt = m.now.Add(recheck)
	all := m.troubles(Blame(ev), falls)
	for _, t := range all {
		if t.Verdict.Kind != Program {
			m.ail(t)
		}
	}
	for _, t := range all {
		m.remedy(t)
	}
	m.handOverFrom(all)
}

// falls is the breaches between hosts that both have ranks, in order. The others are over: nothing uses them.
func (m *Machine) falls() (all []Fall) {
	for l, b := range m.breaches {
		if m.hosts[l.From].ranks == 0 || m.hosts[l.To].ranks == 0 {
			delete(m.breaches, l)
			continue
		}
		all = append(all, b.Fall)
	}
	slices.SortFunc(all, func(a, b Fall) int { return compareLinks(a.Link, b.Link) })
	return all
}

func (m *Machine) evidence(falls []Fall) (ev Evidence) {
	latest := map[Port]time.Time{} // what was fine before the last link of a port fell proves nothing
	promised := map[string]float64{}
	for _, f := range falls {
		ev.Fell = append(ev.Fell, f.Link)
		for _, p := range both(f.Link) {
			if since := m.breaches[f.Link].since; since.After(latest[p]) {
				latest[p] = since
			}
		}
		for _, h := range []string{f.Link.From, f.Link.To} {
			promised[h] = max(promised[h], f.Promised)
		}
	}
	for l, f := range m.fine {
		for _, p := range both(l) {
			if since, fell := latest[p]; fell && !f.at.Before(since) && !slices.Contains(ev.Fine, p) {
				ev.Fine = append(ev.Fine, p) // in any order: it is a set
			}
		}
	}
	for _, name := range m.names {
		h := m.hosts[name]
		if h.joined && h.ranks > 0 && !h.pressedSince.IsZero() && !m.now.Before(m.pressedUntil(h)) {
			ev.Starved = append(ev.Starved, name)
		} else if flooded(h.reading, promised[name]) != nil {
			ev.Odd = append(ev.Odd, name)
		}
	}
	return ev
}

// A Trouble is a suspect with its verdict: the event that remedies answer.
type Trouble struct {
	Suspect Suspect
	Verdict Verdict
	Falls   []Fall
	Left    float64 // of what was promised
}

func (t Trouble) String() string { return fmt.Sprintf("%v: %s", t.Suspect, t.Verdict.Kind) }

func (m *Machine) troubles(all []Suspect, falls []Fall) (out []Trouble) {
	readings, usual := map[string]HostReading{}, map[string]float64{}
	for _, name := range m.names {
		readings[name], usual[name] = m.hosts[name].reading, m.hosts[name].usual
	}
	slow := map[string]bool{}
	for _, s := range all {
		t := Trouble{Suspect: s}
		for _, f := range falls {
			if slices.Contains(s.Fell, f.Link) {
				t.Falls = append(t.Falls, f)
			}
		}
		t.Verdict = Judge(s, t.Falls, readings, usual)
		if t.Left = left(t.Falls); s.Starved {
			t.Left = min(t.Left, 1-min(0.99, readings[s.Host].wants()))
		}
		if t.Verdict.Kind == Slow {
			slow[s.Host], slow[s.Link.From], slow[s.Link.To] = true, true, true
		}
		out = append(out, t)
	}
	// Where everything falls at once and nothing foreign is seen anywhere, it is the program
	// that asks for less; where every host lacks cores at once, no link is to blame.
	used, everywhere, short := 0, true, true
	for _, name := range m.names {
		if h := m.hosts[name]; h.joined && h.ranks > 0 {
			used++
			everywhere = everywhere && slow[name]
			short = short && h.reading.Pressure-h.usualPressure >= rose
		}
	}
	for i := range out {
		switch v := &out[i].Verdict; {
		case v.Kind != Slow || used < 3:
		case everywhere:
			*v = Verdict{Program, append(v.Reasons[:1:1], "every host that has ranks fell at once, and none shows a foreign cause")}
		case short:
			*v = Verdict{Program, append(v.Reasons[:1:1], "on every host that has ranks they wait longer for a core than usual")}
		}
	}
	return out
}

// ail keeps a blamed host, and what still goes through its ports, for placement and the cost of moves;
// that a rank does not get there is not its own doing.
func (m *Machine) ail(t Trouble) {
	if m.ailing == nil {
		m.ailing = map[Port]float64{}
	}
	most := 1.0
	for _, f := range t.Falls {
		most = max(most, f.Seen)
	}
	for _, f := range t.Falls {
		for _, p := range both(f.Link) {
			if p.Host == t.Suspect.Host {
				m.ailing[p] = most
			}
		}
	}
	if t.Suspect.Host == "" {
		return
	}
	m.blameHost(t.Suspect.Host, string(t.Verdict.Kind))
	for _, q := range m.hosts[t.Suspect.Host].processes {
		m.moot(q.plan)
	}
}

func both(l Link) [2]Port { from, to := ports(l); return [2]Port{from, to} }

func (m *Machine) blameHost(name, why string) {
	if m.hosts[name].quarantine.blame(m.now, why) && !slices.Contains(m.jailed, name) {
		m.jailed = append(m.jailed, name)
		slices.Sort(m.jailed)
	}
}

// release tells when a quarantine has ended.
func (m *Machine) release() {
	m.jailed = slices.DeleteFunc(m.jailed, func(name string) bool {
		h := m.hosts[name]
		if h.quarantine.holds(m.now) {
			return false
		}
		if h.joined {
			rec := m.record(fmt.Sprintf("quarantine %d of host %s is over: %s", h.quarantine.strikes, name, h.quarantine.why))
			rec.Chosen, rec.Why = "release", "ranks may move there again"
			if h.cordoned || h.draining != nil {
				rec.Why = "ranks may move there again once it is uncordoned"
			}
			m.tell(rec)
		}
		return true
	})
}

// remedy does what Decide chooses, and keeps the record.
func (m *Machine) remedy(t Trouble) {
	strategy, ok := decider{m}.Decide(t)
	if !ok {
		return
	}
	s := strategy.(Remedy)
	rec := m.record()
	for _, f := range t.Falls {
		text := fmt.Sprintf("%v: %s of %s", f.Link, rate(f.Seen), rate(f.Promised))
		if f.Promised <= 0 {
			text = fmt.Sprintf("%v: %s, and nothing is promised yet", f.Link, rate(f.Seen))
		}
		if b := m.breaches[f.Link]; b.text != "" {
			text += ", " + b.text
		}
		rec.Seen = append(rec.Seen, text)
	}
	if len(t.Falls) == 0 {
		rec.Seen = []string{fmt.Sprintf("host %s has been starved for %v", t.Suspect.Host, m.now.Sub(m.hosts[t.Suspect.Host].pressedSince))}
	}
	rec.Blamed, rec.Verdict, rec.Reasons = t.Suspect.String(), t.Verdict.Kind, t.Verdict.Reasons
	rec.Options, rec.Chosen, rec.Why = s.Options, s.Chosen.What, s.Why
	if len(s.Chosen.relocate)+len(s.Chosen.change) == 0 {
		m.lastRecord-- // unless it is told, there was no decision
		m.tellOnce(t.Suspect.String(), func(r *Record) { *r = *rec })
		return
	}
	delete(m.told, t.Suspect.String())
	m.conclude(func(w *measurement) bool { return w.suspect == t.Suspect.String() })
	m.measure(t, s.Chosen, rec)
	for _, c := range s.Chosen.change {
		m.changed[[2]string{c.Link.From, c.Link.To}] = m.now
		m.do(c, rec, standstill.Seconds())
	}
	var again []*process
	for _, r := range s.Chosen.relocate {
		if !r.Again {
			m.relocate(r, r.To.Host, rec)
			continue
		}
		m.moves.add(m.now) // the rank lives: it counts
		m.ranks[r.Rank].moved = m.now
		if q := m.process(r.From); q != nil && !slices.Contains(again, q) {
			again = append(again, q)
		}
	}
	m.tell(rec)
	if len(again) > 0 {
		// Nobody has to consent to be rescued: the processes are out, and recoverDead goes on.
		m.processesGone(again, &cause{seen: rec.Seen, blamed: rec.Blamed, verdict: t.Verdict, record: rec}, nil)
		for _, q := range again {
			for _, r := range q.ranks {
				m.ranks[r].lives = m.ranks[r].dead != nil
			}
		}
	}
}

// handOverFrom is told what there is to blame: where it is the leader's own host, another's agent is to lead in
// a while. By then it shows whether others are any better off.
func (m *Machine) handOverFrom(all []Trouble) {
	for _, t := range all {
		if t.Verdict.Kind != Program && t.Suspect.Host == m.leader && m.giveAt.IsZero() && m.handed != m.leader && !m.now.Before(m.stay) {
			m.giveAt, m.giveWhy, m.giveMust = m.now.Add(giveAfter), t.String(), false
		}
	}
}

// giveAfter is how long after its host was blamed a leader hands over.
const giveAfter = 2 * time.Second

// handOverDue has another host's agent lead if the time for that has come.
func (m *Machine) handOverDue() {
	if !m.giveAt.IsZero() && !m.now.Before(m.giveAt) {
		m.giveAt = time.Time{}
		m.handOver()
	}
}

// stayFor is for how long a leader that could not hand over is not asked again.
const stayFor = 10 * time.Second

// stays has the leader asked again later, if there still is a reason: its host is to be left, or is blamed then.
func (m *Machine) stays() {
	m.handed, m.stay = "", m.now.Add(stayFor)
	if m.giveMust {
		m.giveAt = m.stay
	}
}

// handOver has the agent of a host that is well lead, one that is trusted if there is one. Unless it must be, not one of
// whose links others than those with the leader's fell: it would lead no better.
func (m *Machine) handOver() {
	if m.leader == "" || m.handed == m.leader {
		return
	}
	best := ""
	for _, name := range m.names {
		h := m.hosts[name]
		if name == m.leader || !h.well() || h.quarantine.holds(m.now) || !m.giveMust && m.troubled(name) {
			continue
		}
		if best == "" || h.trusted && !m.hosts[best].trusted {
			best = name
		}
	}
	if best != "" {
		m.handed = m.leader
		m.out = append(m.out, HandOver{best, m.giveWhy})
	}
}

// troubled tells whether a link of a host fell that is not with the leader's.
func (m *Machine) troubled(host string) bool {
	for l := range m.breaches {
		if l.From == host && l.To != m.leader || l.To == host && l.From != m.leader {
			return true
		}
	}
	return false
}

func ranksAt(h *host) (all []topology.Rank) {
	for _, q := range h.processes {
		all = append(all, q.ranks...)
	}
	slices.Sort(all)
	return all
}
