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
	fence   bool    // what died may still live
	record  *Record // nil: nothing was done yet
}

func (m *Machine) hostJoined(in HostJoined) {
	h := m.host(in.Host)
	if !h.joined && (h.nextSlot > 0 && len(h.processes) == 0 || m.added[in.Host]) {
		m.lacks(in.Host) // its agent has no processes
	}
	h.joined, h.slots, h.spares, h.trusted = true, in.Slots, in.Spares, in.Trusted
	h.networks = slices.Clone(in.Networks)
	h.silent = time.Time{}
	if m.added[in.Host] { // the operator wants it used
		h.cordoned = false
	}
	delete(m.added, in.Host)
}

func (m *Machine) hostLost(in HostLost) {
	kind := Crash
	if in.Why == Cut {
		kind = CutOff
	}
	m.hostGone(in.Host, &cause{
		seen:    []string{fmt.Sprintf("host %s lost: %s", in.Host, cut(string(in.Why), in.Text))},
		verdict: Verdict{kind, []string{"its agent is gone"}},
	})
}

func cut(word, text string) string {
	if text == "" {
		return word
	}
	return word + ", " + text
}

// hostGone takes a host, and all that runs there, out of the job.
func (m *Machine) hostGone(name string, c *cause) {
	h := m.hosts[name]
	if h == nil || !h.joined {
		return
	}
	h.joined, h.silent, h.draining, h.pressedSince = false, time.Time{}, nil, time.Time{}
	c.blamed = "host " + name
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
	m.processesGone(slices.Clone(h.processes), c, true, m.elsewhere(func(p topology.Place) bool { return p.Host == name }))
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

// processThere is told of a process that runs. One that was fenced is fenced again.
func (m *Machine) processThere(p topology.Place, ready bool) {
	if m.fenced[p] {
		m.shut(p)
		return
	}
	q := m.process(p)
	if q == nil {
		q = m.addProcess(p)
	}
	q.ready = q.ready || ready
}

// shut fences a process that came back.
func (m *Machine) shut(p topology.Place) {
	if m.closing[p] {
		return
	}
	m.closing[p] = true
	rec := m.record(fmt.Sprintf("process %v was heard of, which is out of the job", p))
	rec.Blamed, rec.Chosen, rec.Why = fmt.Sprintf("process %v", p), "refuse", fmt.Sprintf("the map of epoch %d holds", m.world.Epoch())
	m.do(Shut{p}, rec, 0)
	m.tell(rec)
}

func (m *Machine) processLost(in ProcessLost) {
	delete(m.fenced, in.Place) // it certainly does not come back
	q := m.process(in.Place)
	if q == nil {
		return
	}
	c := &cause{
		seen:    []string{fmt.Sprintf("process %v lost: %s", in.Place, cut(string(in.Why), in.Text))},
		verdict: Verdict{Crash, []string{"its agent saw it end"}},
	}
	switch in.Why {
	case Exited:
		c.verdict = Verdict{Program, []string{"it ended by itself, and would again"}}
	case Hung:
		c.verdict.Kind = Hang
	case Cut:
		c.verdict.Kind = CutOff
	}
	m.processGone(in.Place, c, in.Why == Hung || in.Why == Cut)
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
	if r.plan != 0 {
		m.abandon(r.plan, "the rank is elsewhere")
	}
	if from := m.process(before); from != nil {
		from.ranks = slices.DeleteFunc(from.ranks, func(o topology.Rank) bool { return o == in.Rank })
	}
	if r.dead == nil {
		m.hosts[before.Host].ranks--
	} else {
		m.dead = slices.DeleteFunc(m.dead, func(o topology.Rank) bool { return o == in.Rank })
	}
	r.dead, r.stuck, r.retry, r.was = nil, false, time.Time{}, before
	q := m.process(in.At)
	if q == nil {
		q = m.addProcess(in.At)
	}
	q.ready = true
	q.ranks = append(q.ranks, in.Rank)
	m.hosts[in.At.Host].ranks++
}

func (m *Machine) processGone(p topology.Place, c *cause, fence bool) {
	if q := m.process(p); q != nil {
		m.processesGone([]*process{q}, c, fence, m.elsewhere(func(was topology.Place) bool { return was == p }))
	}
}

// processesGone takes processes out of the job and does with their ranks what the level
// allows. Others that ran there are elsewhere already.
func (m *Machine) processesGone(gone []*process, c *cause, fence bool, elsewhere []topology.Rank) {
	c.fence = fence
	var ranks []topology.Rank
	for _, q := range gone {
		if c.blamed == "" {
			c.blamed = fmt.Sprintf("process %v", q.place)
		}
		m.dropProcess(q)
		m.silent = slices.DeleteFunc(m.silent, func(p topology.Place) bool { return p == q.place })
		m.fenced[q.place] = fence
		if !fence {
			delete(m.fenced, q.place)
		}
		if q.plan != 0 {
			m.abandon(q.plan, fmt.Sprintf("its target %v is lost", q.place))
		}
		for _, r := range q.ranks {
			m.hosts[q.place.Host].ranks--
			if p := m.ranks[r].plan; p != 0 {
				m.abandon(p, fmt.Sprintf("its source %v is lost", q.place))
			}
			ranks = append(ranks, r)
		}
		m.lacks(q.place.Host)
	}
	if len(ranks) > 0 && m.cfg.Level == Crashes && c.verdict.Kind != Program {
		for _, r := range ranks {
			m.die(r, c)
		}
		return
	}
	rec := m.record(c.seen...)
	rec.Blamed, rec.Verdict, rec.Reasons = c.blamed, c.verdict.Kind, c.verdict.Reasons
	who := ranksOf(ranks)
	switch {
	case len(ranks) == 0:
		rec.Chosen, rec.Why = "nothing", "no rank runs there"
		if len(elsewhere) > 0 {
			rec.Why = "what ran there is elsewhere already: " + ranksOf(elsewhere)
		}
		m.tell(rec)
	case m.cfg.Level == Report:
		rec.Chosen, rec.Why = "nothing", "at level report it is for the program to handle"
		if fence {
			rec.Chosen = "refuse"
			for _, q := range gone {
				m.closing[q.place] = true
				m.do(Shut{q.place}, rec, 0)
			}
		}
		m.tell(rec)
	case c.verdict.Kind == Program:
		rec.Chosen, rec.Why = "give up", "the program itself has failed"
		m.tell(rec)
		m.giveUp(fmt.Sprintf("%s: %s with %s; it ended by itself and would do so again elsewhere", strings.Join(c.seen, "; "), c.blamed, who))
	default:
		rec.Chosen, rec.Why = "give up", fmt.Sprintf("at level %s nothing of what is lost is left", m.cfg.Level)
		m.tell(rec)
		m.giveUp(fmt.Sprintf("%s, and %s with it; at level %s nothing is left to go on from: start with --survive crashes and spares", strings.Join(c.seen, "; "), who, m.cfg.Level))
	}
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
	m.ranks[r].dead, m.ranks[r].since, m.ranks[r].retry, m.ranks[r].undone = c, m.now, time.Time{}, 0
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
	if info.revived.count(m.now) >= m.cfg.RecoveriesPerMinute {
		return nil, fmt.Sprintf("rank %d was recovered %d times within a minute and died again, last of %v: look at what it does before it dies",
			r, m.cfg.RecoveriesPerMinute, m.at(r))
	}
	to, why, ok := Choose(m.candidates(r), true)
	copied := ""
	if ok {
		if copied, ok = m.copyOf(r, to.Host, ""); !ok {
			why = "no host is left that has its snapshot"
		}
	}
	if !ok {
		if m.now.Sub(info.since) < m.cfg.Patience {
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
	s := Relocate{Rank: r, From: m.at(r), Again: true, Copy: copied, Fence: c.fence}
	s.Carry = m.carry(copied, to.Host, info.bytes)
	s.Cost = m.againCost(r, copied, to.Host)
	m.relocate(s, to.Host, c.record)
	return c.record, ""
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
	return (2*m.cfg.Standstill + m.carry(from, to, m.ranks[r].bytes) + max(0, m.now.Sub(since))).Seconds()
}

func (m *Machine) becameSilent(in Silent) {
	since := in.Since
	if since.IsZero() || since.After(m.now) {
		since = m.now
	}
	if in.Place.Slot < 0 {
		if h := m.hosts[in.Place.Host]; h != nil && h.joined && h.silent.IsZero() {
			h.silent = since
			m.silent = append(m.silent, in.Place)
		}
		return
	}
	if q := m.process(in.Place); q != nil && q.silent.IsZero() {
		q.silent = since
		m.silent = append(m.silent, in.Place)
	}
}

func (m *Machine) heard(p topology.Place) {
	m.silent = slices.DeleteFunc(m.silent, func(o topology.Place) bool { return o == p })
	delete(m.told, "silent "+p.String())
	switch q, h := m.process(p), m.hosts[p.Host]; {
	case m.fenced[p]:
		m.shut(p)
	case p.Slot < 0 && h != nil:
		h.silent = time.Time{}
	case q != nil:
		q.silent = time.Time{}
	}
}

// settleSilent declares lost what was silent for too long. Hosts come first: they explain their processes.
// When most hosts are silent it is the leader that is cut off, and another will be elected.
func (m *Machine) settleSilent() {
	if len(m.silent) == 0 {
		return
	}
	joined, silent := 0, 0
	var oldest time.Time
	for _, name := range m.names {
		if h := m.hosts[name]; h.joined {
			joined++
			if !h.silent.IsZero() {
				silent++
				if oldest.IsZero() || h.silent.Before(oldest) {
					oldest = h.silent
				}
			}
		}
	}
	isolated := joined >= 3 && 2*silent > joined
	for _, p := range slices.Clone(m.silent) {
		h, q := m.hosts[p.Host], m.process(p)
		switch {
		case p.Slot < 0 && (!h.joined || h.silent.IsZero()), p.Slot >= 0 && q == nil:
			m.silent = slices.DeleteFunc(m.silent, func(o topology.Place) bool { return o == p })
		case p.Slot < 0 && m.now.Sub(h.silent) >= m.cfg.Silence && !isolated:
			m.silentHost(p, h)
		case p.Slot >= 0 && h.silent.IsZero() && m.now.Sub(q.silent) >= m.cfg.Silence:
			m.silentProcess(p, q)
		}
	}
	if !isolated || m.now.Sub(oldest) < m.cfg.Silence {
		delete(m.told, "isolated")
		return
	}
	m.tellOnce("isolated", func(rec *Record) {
		rec.Seen = []string{fmt.Sprintf("%d of %d hosts are silent", silent, joined)}
		rec.Blamed, rec.Verdict, rec.Chosen = "host "+m.leader, CutOff, "nothing"
		rec.Why = "where most are silent it is the leader's host that is cut off"
	})
	if m.now.Sub(oldest) >= m.cfg.Patience {
		m.giveUp(fmt.Sprintf("%d of %d hosts have been silent for %v: the leader on %s cannot tell whether they or it are cut off", silent, joined, m.cfg.Patience, m.leader))
	}
}

func (m *Machine) silentHost(p topology.Place, h *host) {
	c := &cause{
		seen:    []string{fmt.Sprintf("host %s silent for %v", h.name, m.now.Sub(h.silent))},
		verdict: Verdict{CutOff, []string{"neither its agent nor its processes are heard of"}},
	}
	if why := starving(h.reading); why != nil {
		c.verdict = Verdict{Starve, why}
	}
	if m.cfg.Level == Crashes || m.cfg.Level == Report || h.ranks == 0 {
		m.silent = slices.DeleteFunc(m.silent, func(o topology.Place) bool { return o == p })
		m.hostGone(h.name, c)
		return
	}
	m.wait("silent "+p.String(), "host "+h.name, c)
}

func (m *Machine) silentProcess(p topology.Place, q *process) {
	c := &cause{
		seen:    []string{fmt.Sprintf("process %v silent for %v", p, m.now.Sub(q.silent))},
		verdict: Verdict{Hang, []string{"its agent is heard of, and it is not"}},
	}
	if why := starving(m.hosts[p.Host].reading); why != nil {
		c.verdict = Verdict{Starve, why}
	}
	if m.cfg.Level == Crashes || m.cfg.Level == Report || len(q.ranks) == 0 {
		m.processGone(p, c, true)
		return
	}
	m.wait("silent "+p.String(), fmt.Sprintf("process %v", p), c)
}

// wait tells that nothing can be done about what is silent but to wait for it.
func (m *Machine) wait(key, blamed string, c *cause) {
	m.tellOnce(key, func(rec *Record) {
		rec.Seen, rec.Blamed, rec.Verdict, rec.Reasons = c.seen, blamed, c.verdict.Kind, c.verdict.Reasons
		rec.Chosen, rec.Why = "nothing", fmt.Sprintf("at level %s there is no copy to go on from: it is waited for", m.cfg.Level)
	})
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

// lacks notes that a host may lack spares.
func (m *Machine) lacks(name string) {
	if !slices.Contains(m.short, name) {
		m.short = append(m.short, name)
	}
}

// refill starts spares on hosts that have fewer than they should, and room.
func (m *Machine) refill() {
	if len(m.short) == 0 || !m.cfg.Level.moves() {
		return
	}
	var still []string
	for _, name := range m.short {
		h := m.hosts[name]
		if !h.joined || h.cordoned || h.draining != nil {
			continue
		}
		idle, starting := 0, 0
		for _, q := range h.processes {
			if len(q.ranks) == 0 && q.plan == 0 && q.silent.IsZero() {
				idle++
			}
			if q.starting != 0 {
				starting++
			}
		}
		want := min(h.spares-idle, h.size()-len(h.processes), h.size()-h.ranks-h.incoming-idle)
		for range want {
			if starting > 0 || h.starts.count(m.now) >= m.cfg.StartsPerMinute {
				still = append(still, name) // one at a time
				break
			}
			p := topology.Place{Host: name, Slot: h.nextSlot}
			rec := m.record(fmt.Sprintf("host %s has %d of %d spares", name, idle, h.spares))
			rec.Chosen, rec.Why = "refill", "a spare that is ready saves the start of a process"
			h.starts.add(m.now)
			id := m.do(Start{p}, rec, 0)
			m.addProcess(p).starting = id
			starting++
			m.tell(rec)
		}
	}
	m.short = still
}
