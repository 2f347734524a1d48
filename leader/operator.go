package leader

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// A drain is an order that lasts until the host is empty.
type drain struct {
	ref    string
	record *Record // of the moves; nil: none was made yet
	why    string  // what it waits for, as last told
	cut    string  // why it is not the operator's; then nothing is waited for that can be done without. Empty: it is
}

func (m *Machine) answer(ref, chosen, why string, seen string) {
	rec := m.record(seen)
	rec.Verdict, rec.Chosen, rec.Why, rec.Ref = Order, chosen, why, ref
	m.tell(rec)
}

// alive is to carry a living rank to a host.
func (m *Machine) alive(r topology.Rank, to string) Relocate {
	s := Relocate{Rank: r, From: m.at(r), To: topology.Place{Host: to}}
	s.Carry = m.carry(s.From.Host, to, m.ranks[r].bytes)
	s.Cost = (standstill + s.Carry).Seconds()
	return s
}

// noHost says that a host is not in the job.
func (m *Machine) noHost(host string) string {
	var joined []string
	for _, name := range m.names {
		if m.hosts[name].joined {
			joined = append(joined, name)
		}
	}
	return fmt.Sprintf("there is no host %s in the job: it has %s", host, strings.Join(joined, " "))
}

// RefusesDrain is why a host cannot be drained now; empty: it can.
func (m *Machine) RefusesDrain(host string) string {
	h := m.hosts[host]
	switch {
	case h == nil || !h.joined:
		return m.noHost(host)
	case h.draining != nil:
		return fmt.Sprintf("%s is being drained already", host)
	}
	room := 0
	for _, name := range m.names {
		if o := m.hosts[name]; o != h && o.well() {
			room += o.room()
		}
	}
	if room < h.ranks {
		return fmt.Sprintf("%s has %d ranks and the others have room for %d (%s)", host, h.ranks, room, m.roomText(host))
	}
	return ""
}

func (m *Machine) drainHost(in Drain) {
	seen := fmt.Sprintf("the operator drains %s", in.Host)
	h, why := m.hosts[in.Host], m.RefusesDrain(in.Host)
	if why != "" && !(in.Accepted && h != nil && h.joined && h.draining == nil) {
		m.answer(in.Ref, "refused", why, seen)
		return
	}
	m.drain(h, &drain{ref: in.Ref})
	if in.Host == m.leader {
		m.giveWhy, m.giveMust = seen, true
		m.handOver()
	}
}

// drain has h emptied from now on. One that has just become empty is among the drains still.
func (m *Machine) drain(h *host, d *drain) {
	h.draining = d
	if !slices.Contains(m.drains, h.name) {
		m.drains = append(m.drains, h.name)
	}
}

// drainOn moves what can be moved off the hosts that are being drained.
func (m *Machine) drainOn() {
	m.drains = slices.DeleteFunc(m.drains, func(name string) bool { return m.hosts[name].draining == nil })
	for _, name := range m.drains {
		h := m.hosts[name]
		d := h.draining
		first := d.record == nil
		if first {
			d.record = m.record(fmt.Sprintf("the operator drains %s", name))
			d.record.Verdict, d.record.Chosen, d.record.Ref = Order, doEmpty, d.ref
			if d.cut != "" {
				d.record.Seen, d.record.Blamed, d.record.Verdict, d.record.Reasons = []string{d.cut}, "host "+name, CutOff, []string{"each is reached from " + m.leader}
			}
		}
		before, why := len(d.record.Plans), ""
		all := ranksAt(h)
		slices.SortStableFunc(all, func(r, o topology.Rank) int { return m.ranks[r].retry.Compare(m.ranks[o].retry) }) // or those that cannot leave would use up the moves
		for _, r := range all {
			if m.ranks[r].plan != 0 {
				continue
			}
			if d.cut != "" && !m.now.Before(m.ranks[r].retry) {
				to, no, ok := Choose(m.candidates(r), true)
				if !ok {
					why = fmt.Sprintf("rank %d waits: %s", r, no)
					continue
				}
				if m.leaveAtOnce(name, m.alive(r, to.Host), d.record) {
					continue
				}
			}
			if why = m.busy(r); why != "" {
				why = fmt.Sprintf("rank %d waits: it moved or was tried lately", r)
				continue
			}
			if m.moves.count(m.now) >= m.cfg.MovesPerMinute {
				why = fmt.Sprintf("%d moves within a minute are the most", m.cfg.MovesPerMinute)
				break
			}
			to, no, ok := m.choose(r, nil)
			if !ok {
				why = fmt.Sprintf("rank %d waits: %s", r, no)
				continue
			}
			m.relocate(m.alive(r, to), to, d.record)
		}
		if h.ranks == 0 && h.incoming == 0 {
			h.cordoned, h.draining = true, nil
			d.record.Why = "the host is empty, and cordoned"
			m.tell(d.record)
		} else if len(d.record.Plans) > before || why != d.why || first { // who asked is answered, if all are leaving already
			d.why, d.record.Why = why, why
			m.tell(d.record)
		}
	}
}

func (m *Machine) cordon(in Cordon) {
	seen := fmt.Sprintf("the operator cordons %s", in.Host)
	h := m.hosts[in.Host]
	if h == nil || !h.joined {
		m.answer(in.Ref, "refused", m.noHost(in.Host), seen)
		return
	}
	h.cordoned = true
	m.answer(in.Ref, "cordon", "no rank moves there; those that are there stay", seen)
}

func (m *Machine) uncordon(in Uncordon) {
	seen := fmt.Sprintf("the operator uncordons %s", in.Host)
	h := m.hosts[in.Host]
	if h == nil || !h.joined {
		m.answer(in.Ref, "refused", m.noHost(in.Host), seen)
		return
	}
	h.cordoned, h.draining = false, nil
	if in.Host == m.leader && m.giveMust {
		m.giveAt, m.giveMust = time.Time{}, false
	}
	h.quarantine.until = m.now
	m.answer(in.Ref, "uncordon", "ranks may move there", seen)
}

// ChosenAdd is what is chosen in the record of an [AddHost]: its plan tells when the host is there.
const ChosenAdd = "add host"

func (m *Machine) addHost(in AddHost) {
	seen := fmt.Sprintf("the operator adds host %s", in.Host)
	switch h := m.hosts[in.Host]; {
	case h != nil && h.joined:
		m.answer(in.Ref, "refused", in.Host+" is in the job already", seen)
		return
	case m.added[in.Host]:
		m.answer(in.Ref, "refused", in.Host+" is being added already", seen)
		return
	}
	m.added[in.Host] = true
	rec := m.record(seen)
	rec.Verdict, rec.Chosen, rec.Ref = Order, ChosenAdd, in.Ref
	m.do(Add{in.Host}, rec, 0)
	m.tell(rec)
}
