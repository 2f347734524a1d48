package leader

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// A cause is why ranks died, and the record of what is done about it.
type cause struct {
	seen    []string
	blamed  string
	verdict Verdict
	record  *Record // nil: nothing was done yet
}

func (m *Machine) hostJoined(in HostJoined) {
	h := m.host(in.Host)
	h.joined, h.trusted = true, in.Trusted
	h.networks = slices.Clone(in.Networks)
	if m.added[in.Host] { // the operator wants it used
		h.cordoned = false
	}
	delete(m.added, in.Host)
}

// hostLost takes a host, and all that runs there, out of the job.
func (m *Machine) hostLost(in HostLost) {
	name, h := in.Host, m.hosts[in.Host]
	m.notSpared(func(p topology.Place) bool { return p.Host == name })
	if h == nil || !h.joined {
		return
	}
	c := &cause{
		seen:    []string{fmt.Sprintf("host %s is lost", name)},
		blamed:  "host " + name,
		verdict: Verdict{Crash, []string{"its agent has ended, or was not heard"}},
	}
	h.joined, h.draining, h.pressedSince = false, nil, time.Time{}
	m.blameHost(name, string(c.verdict.Kind))
	for l := range m.breaches {
		if l.From == name || l.To == name {
			delete(m.breaches, l)
		}
	}
	for r := range m.ranks {
		if i := slices.Index(m.ranks[r].copies, name); i >= 0 {
			m.ranks[r].copies = slices.Delete(slices.Clone(m.ranks[r].copies), i, i+1)
		}
	}
	m.processesGone(slices.Clone(h.processes), c, m.elsewhere(func(p topology.Place) bool { return p.Host == name }))
}

// elsewhere is ranks that others have placed elsewhere, and that were where was tells.
func (m *Machine) elsewhere(was func(p topology.Place) bool) (ranks []topology.Rank) {
	for r := range m.ranks {
		if was(m.ranks[r].was) {
			ranks = append(ranks, topology.Rank(r))
		}
	}
	return ranks
}

func (m *Machine) processReady(p topology.Place) {
	q := m.process(p)
	if q == nil {
		q = m.addProcess(p)
	}
	q.ready = true
}

func (m *Machine) processLost(in ProcessLost) {
	m.notSpared(func(p topology.Place) bool { return p == in.Place })
	q := m.process(in.Place)
	if q == nil {
		return
	}
	c := &cause{
		seen:    []string{fmt.Sprintf("process %v lost: %s", in.Place, in.Why)},
		verdict: Verdict{Crash, []string{"its agent saw it end"}},
	}
	switch in.Why {
	case Hung:
		c.verdict = Verdict{Hang, []string{"it did not answer, or was out of the job"}}
	case Cut:
		c.verdict = Verdict{CutOff, []string{"its host is lost"}}
	}
	m.processesGone([]*process{q}, c, m.elsewhere(func(was topology.Place) bool { return was == in.Place }))
}

// placed makes the map what others have decided.
func (m *Machine) placed(in Seat) {
	if in.Rank < 0 || int(in.Rank) >= len(m.ranks) || m.at(in.Rank) == in.At {
		return
	}
	r, before := &m.ranks[in.Rank], m.at(in.Rank)
	next, err := m.world.Apply(topology.Move{Rank: in.Rank, From: before, To: in.At})
	if err != nil {
		panic(fmt.Sprintf("rank %d is at %v, and cannot be: %v", in.Rank, in.At, err))
	}
	m.world = next
	m.moot(r.plan)
	if from := m.process(before); from != nil {
		from.ranks = slices.DeleteFunc(from.ranks, func(o topology.Rank) bool { return o == in.Rank })
	}
	if r.dead == nil {
		m.hosts[before.Host].ranks--
	} else {
		m.dead = slices.DeleteFunc(m.dead, func(o topology.Rank) bool { return o == in.Rank })
	}
	r.dead, r.lives, r.stuck, r.retry, r.was = nil, false, false, time.Time{}, before
	q := m.process(in.At)
	if q == nil {
		q = m.addProcess(in.At)
	}
	q.ready = true
	q.ranks = append(q.ranks, in.Rank)
	m.hosts[in.At.Host].ranks++
}

// processesGone takes processes out of the job and does with their ranks what the level
// allows. Others that ran there are elsewhere already.
func (m *Machine) processesGone(gone []*process, c *cause, elsewhere []topology.Rank) {
	var ranks []topology.Rank
	for _, q := range gone {
		if c.blamed == "" {
			c.blamed = fmt.Sprintf("process %v", q.place)
		}
		m.dropProcess(q)
		m.moot(q.plan)
		for _, r := range q.ranks {
			m.hosts[q.place.Host].ranks--
			m.moot(m.ranks[r].plan)
			ranks = append(ranks, r)
		}
	}
	if len(ranks) > 0 && m.cfg.Level == Crashes {
		for _, r := range ranks {
			m.die(r, c)
		}
		return
	}
	rec := m.record(c.seen...)
	rec.Blamed, rec.Verdict, rec.Reasons = c.blamed, c.verdict.Kind, c.verdict.Reasons
	if len(ranks) > 0 {
		rec.Chosen, rec.Why = "give up", fmt.Sprintf("at level %s nothing of what is lost is left", m.cfg.Level)
		m.tell(rec)
		m.giveUp(fmt.Sprintf("%s, and %s with it; at level %s nothing is left to go on from: start with --survive crashes and spares", strings.Join(c.seen, "; "), ranksOf(ranks), m.cfg.Level))
		return
	}
	rec.Chosen, rec.Why = "nothing", "no rank runs there"
	if len(elsewhere) > 0 {
		rec.Why = "what ran there is elsewhere already: " + ranksOf(elsewhere)
	}
	m.tell(rec)
}

func ranksOf(ranks []topology.Rank) string {
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	return fmt.Sprintf("ranks %d", ranks)
}

// die: a rank waits to be recovered.
func (m *Machine) die(r topology.Rank, c *cause) {
	if m.ranks[r].dead == nil {
		m.dead = append(m.dead, r)
	}
	m.ranks[r].dead, m.ranks[r].since, m.ranks[r].retry, m.ranks[r].undone, m.ranks[r].lives = c, m.now, time.Time{}, 0, false
}

// spared: a rank that was to begin again elsewhere, and was well, goes on where it is.
func (m *Machine) spared(r topology.Rank) {
	at, info := m.at(r), &m.ranks[r]
	q := m.process(at)
	if q == nil {
		q = m.addProcess(at)
	}
	q.ready = true
	q.ranks = append(q.ranks, r)
	m.hosts[at.Host].ranks++
	m.dead = slices.DeleteFunc(m.dead, func(o topology.Rank) bool { return o == r })
	info.dead, info.lives, info.retry = nil, false, m.now.Add(retryAfter)
}

// notSpared: the processes at some places have ended, whatever was decided of their ranks.
func (m *Machine) notSpared(ended func(p topology.Place) bool) {
	for r := range m.ranks {
		if m.ranks[r].lives && ended(m.at(topology.Rank(r))) {
			m.ranks[r].lives = false
		}
	}
}

// A recovery that could not be is tried again, after tryAgain and so often: who performs it
// may know more of the processes than this.
const (
	tryAgain   = 200 * time.Millisecond
	undoneMost = 50
)

// recoverDead begins dead ranks again where there is room, and gives the job up if one
// can't be.
func (m *Machine) recoverDead() {
	var told []*Record
	hopeless := ""
	for _, r := range m.dead {
		info := &m.ranks[r]
		if info.plan != 0 || m.ended || m.now.Before(info.retry) {
			continue
		}
		var rec *Record
		if rec, hopeless = m.recoverRank(r, info); hopeless != "" {
			break
		}
		if rec != nil && !slices.Contains(told, rec) {
			told = append(told, rec)
		}
	}
	for _, rec := range told {
		m.tell(rec)
	}
	if hopeless != "" {
		m.giveUp(hopeless)
	}
}

// recoverRank begins a dead rank again, as part of the record that it returns; without
// room the rank waits for its patience, and then hopeless says why there is no use.
func (m *Machine) recoverRank(r topology.Rank, info *rankInfo) (rec *Record, hopeless string) {
	if info.undone >= undoneMost {
		return nil, fmt.Sprintf("rank %d has died with %v, and %d plans to recover it were undone: see what was decided in mpivrun explain", r, m.at(r), info.undone)
	}
	to, why, ok := Choose(m.candidates(r), true)
	copied := ""
	if ok {
		avoid := ""
		if info.lives { // its host is to be left, and is not asked for a copy if another has one
			avoid = m.at(r).Host
		}
		if copied, ok = m.copyOf(r, to.Host, avoid); !ok {
			copied, ok = m.copyOf(r, to.Host, "")
		}
		if !ok {
			why = "no host is left that has its snapshot"
		}
	}
	if !ok {
		if m.now.Sub(info.since) < patience {
			return nil, ""
		}
		return nil, fmt.Sprintf("rank %d has died with %v and cannot be recovered: %s (%s); start with more spares or hosts", r, m.at(r), why, m.roomText(""))
	}
	c := info.dead
	if c.record == nil {
		c.record = m.record(c.seen...)
		c.record.Blamed, c.record.Verdict, c.record.Reasons = c.blamed, c.verdict.Kind, c.verdict.Reasons
		c.record.Chosen, c.record.Why = "recover", "what is lost begins again from its copies"
		if info.taken.IsZero() {
			c.record.Why = "what is lost begins anew: no snapshot was taken yet"
		}
	}
	m.relocate(m.fromCopy(r, to.Host, copied), to.Host, c.record)
	return c.record, ""
}

// fromCopy is to begin a rank again on a host, from the copy on another; "": anew.
func (m *Machine) fromCopy(r topology.Rank, to, copied string) Relocate {
	return Relocate{Rank: r, From: m.at(r), To: topology.Place{Host: to}, Again: true, Copy: copied,
		Carry: m.carry(copied, to, m.ranks[r].bytes), Cost: m.againCost(r, copied, to)}
}

// carry is how long state takes from one host to another; from "" there is none.
func (m *Machine) carry(from, to string, bytes float64) time.Duration {
	if from == "" {
		return 0
	}
	return time.Duration(min(bytes/m.rateTo(from, to), 1e6) * float64(time.Second))
}

// againCost is how many seconds a rank loses that begins again from a copy: all since the copy is done twice.
func (m *Machine) againCost(r topology.Rank, from, to string) float64 {
	since := m.ranks[r].taken
	if since.IsZero() {
		since = m.began
	}
	return (2*standstill + m.carry(from, to, m.ranks[r].bytes) + max(0, m.now.Sub(since))).Seconds()
}

// tellOnce tells what fill says, unless the last time it chose the same for the same reason.
func (m *Machine) tellOnce(key string, fill func(rec *Record)) {
	rec := &Record{At: m.now}
	fill(rec)
	if what := rec.Chosen + ": " + rec.Why; m.told[key] != what {
		m.told[key] = what
		m.lastRecord++
		rec.ID = m.lastRecord
		m.tell(rec)
	}
}
