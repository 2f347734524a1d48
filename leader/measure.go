package leader

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
)

// A Measured is what a remedy has brought, by the readings that showed the trouble. Of links it is bytes
// by the second, at which what goes between the ranks concerned is delivered; of a starved host the part of
// the time in which the ranks concerned did not wait for a core.
type Measured struct {
	After     float64 `json:"after"`             // seconds since the last plan of the decision has ended
	Starved   bool    `json:"starved,omitempty"` // it was a host that wanted for CPU: parts of the time
	Before    float64 `json:"before"`            // when it was decided
	Now       float64 `json:"now"`
	Predicted float64 `json:"predicted"`         // what Now would be if the remedy brought its Benefit
	Limited   bool    `json:"limited,omitempty"` // the program had no more to send
	Flows     int     `json:"flows,omitempty"`   // from one rank to another that are concerned
	Within    int     `json:"within,omitempty"`  // of those, within a host now: they are not in Now
	None      string  `json:"none,omitempty"`    // why Now is not known. Empty: it is
}

func (d Measured) String() string {
	text := fmt.Sprintf("measured %.2g s later: ", d.After)
	switch {
	case d.None != "":
		return "nothing " + text + d.None
	case d.Starved:
		return text + fmt.Sprintf("its ranks have a core %.0f %% of the time where it was %.0f %%; predicted %.0f %%", 100*d.Now, 100*d.Before, 100*d.Predicted)
	}
	text += fmt.Sprintf("%s where %s were seen", rate(d.Now), rate(d.Before))
	if d.Before > 0 {
		text += fmt.Sprintf(", %.3g times as much", d.Now/d.Before)
	}
	text += "; predicted " + rate(d.Predicted)
	if d.Limited {
		text += "; the program had no more to send"
	}
	if d.Within > 0 {
		text += fmt.Sprintf("; %d of %d flows are within a host now, and not counted", d.Within, d.Flows)
	}
	return text
}

// unsettled is how long after a remedy nothing is counted yet: what is told then is also of before.
const unsettled = time.Second

// A measurement waits for what a remedy brings.
type measurement struct {
	record   *Record
	suspect  string
	since    time.Time // its last plan has ended; zero: none has yet
	measured Measured
	gain     float64         // predicted: how much of what is lost is regained
	flows    []delivery      // that crossed the links that fell; by ranks
	ranks    []topology.Rank // of a starved host
	switched []Switch        // that were carried out, and whose links were not heard to be well since
}

// A delivery is what was delivered of one flow.
type delivery struct {
	from, to topology.Rank
	over     Fall
	bytes    float64
	slots    []sensors.Slots // one for each time it was told of
	limited  time.Duration   // of those
}

func compareDeliveries(a, b delivery) int {
	return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
}

// measure has what a remedy brings measured, once it was carried out. Its plans were not ordered yet.
func (m *Machine) measure(t Trouble, chosen Option, rec *Record) {
	w := &measurement{record: rec, suspect: t.Suspect.String()}
	if lost := (1 - t.Left) * horizon.Seconds(); lost > 0 {
		w.gain = min(1, chosen.Benefit/lost)
	}
	if t.Suspect.Starved {
		before := m.served(t.Suspect.Host)
		w.measured = Measured{Starved: true, Before: before, Predicted: before + w.gain*(1-before)}
		w.ranks = ranksAt(m.hosts[t.Suspect.Host])
	} else {
		w.expect(t.Falls)
		for _, f := range t.Falls {
			for _, r := range ranksAt(m.hosts[f.Link.From]) {
				for _, flow := range m.ranks[r].to {
					if m.at(flow.To).Host == f.Link.To {
						w.flows = append(w.flows, delivery{from: r, to: flow.To, over: f})
					}
				}
			}
		}
		slices.SortStableFunc(w.flows, compareDeliveries)
		w.flows = slices.CompactFunc(w.flows, func(a, b delivery) bool { return compareDeliveries(a, b) == 0 }) // over several networks
		w.measured.Flows = len(w.flows)
	}
	m.measurements = append(m.measurements, w)
}

// expect says what was seen of what fell, and what is predicted.
func (w *measurement) expect(falls []Fall) {
	w.measured.Before, w.measured.Predicted = 0, 0
	for _, f := range falls {
		w.measured.Before += f.Seen
		w.measured.Predicted += f.Seen + w.gain*max(0, f.Promised-f.Seen)
	}
}

// served is the part of the time in which the ranks of a host do not wait for a core.
func (m *Machine) served(host string) float64 {
	return 1 - min(1, m.hosts[host].reading.wants())
}

// carriedOut begins to count: a plan of the record has ended.
func (m *Machine) carriedOut(rec *Record) {
	for _, w := range m.measurements {
		if w.record == rec {
			w.since = m.now
			for i, f := range w.flows {
				w.flows[i] = delivery{from: f.from, to: f.to, over: f.over}
			}
		}
	}
}

// delivered counts what a rank was told to have sent.
func (m *Machine) delivered(r topology.Rank, to []Flow) {
	for _, w := range m.measurements {
		if w.since.IsZero() || m.now.Sub(w.since) < unsettled {
			continue
		}
		for _, f := range to {
			if i, ok := slices.BinarySearchFunc(w.flows, delivery{from: r, to: f.To}, compareDeliveries); ok {
				d := &w.flows[i]
				d.bytes += f.Bytes
				d.slots = append(d.slots, f.Slots)
				if f.Limited {
					d.limited += f.Slots.Time()
				}
			}
		}
	}
}

// measureDue tells what the remedies have brought that were carried out for long enough.
func (m *Machine) measureDue() {
	m.conclude(func(w *measurement) bool {
		return !w.since.IsZero() && m.now.Sub(w.since) >= measureAfter && !underway(w.record)
	})
}

func underway(r *Record) bool {
	return slices.ContainsFunc(r.Plans, func(p Planned) bool { return p.End == "" })
}

// conclude ends those measurements, and tells what they found. Of a remedy that was not carried out
// there is nothing to tell.
func (m *Machine) conclude(which func(*measurement) bool) {
	var open []*measurement
	for _, w := range m.measurements {
		if !which(w) {
			open = append(open, w)
			continue
		}
		if !underway(w.record) && slices.ContainsFunc(w.record.Plans, func(p Planned) bool { return p.End == adapt.Finished }) {
			w.record.Measured = m.measuredNow(w)
			m.tell(w.record)
		}
	}
	m.measurements = open
}

// switched takes a link for well that another network is used for, until it was measured.
func (m *Machine) switched(rec *Record, s Switch) {
	delete(m.breaches, s.Link)
	for _, w := range m.measurements {
		if w.record == rec {
			w.switched = append(w.switched, s)
		}
	}
}

// recovered: the link is well.
func (m *Machine) recovered(l Link) {
	same := func(o Link) bool { return o.From == l.From && o.To == l.To }
	for o := range m.breaches {
		if same(o) {
			delete(m.breaches, o)
		}
	}
	for _, w := range m.measurements {
		w.switched = slices.DeleteFunc(w.switched, func(s Switch) bool { return same(s.Link) })
	}
}

// wellAgain is how much of what was promised a link must deliver over its other network.
const wellAgain = 0.6

// stillSlow: another network was used for a link, and is no remedy if it is slow too.
func (m *Machine) stillSlow(w *measurement, from, to string, seen float64) {
	for _, s := range w.switched {
		for _, f := range w.flows {
			if f.over.Link == s.Link && s.Link.From == from && s.Link.To == to && seen < wellAgain*f.over.Promised {
				m.breach(Breach{Link: Link{from, to, s.To}, Promised: f.over.Promised, Seen: seen, Evidence: "measured after it was left for " + s.To})
				break
			}
		}
	}
}

// noBetter is how many times as much a flow must get where its rank went to be another trouble than the one it left.
const noBetter = 1.25

// asSlow: a rank has left a link, and gets as little where it went: the trouble is what the two ways share. What they share promised as much
// as before, though nothing has been promised for the new one.
func (m *Machine) asSlow(w *measurement, from, to string, seen float64) {
	for _, f := range w.flows {
		old := f.over.Link
		at, there := m.at(f.from).Host, m.at(f.to).Host
		if at != from || there != to || old.From == from && old.To == to || old.From != from && old.To != to {
			continue
		}
		l := Link{from, to, old.Network}
		if seen < wellAgain*f.over.Promised && seen < noBetter*f.over.Seen && m.breaches[l] == nil {
			m.breach(Breach{Link: l, Promised: f.over.Promised, Seen: seen, Evidence: fmt.Sprintf("measured after %v was left for it", old), lent: true})
		}
	}
}

// measuredNow is what w has found.
func (m *Machine) measuredNow(w *measurement) *Measured {
	d := &w.measured
	passed := m.now.Sub(w.since)
	d.After = passed.Seconds()
	switch {
	case passed < 2*unsettled:
		d.None = "it is too soon"
	case d.Starved:
		m.measureRanks(w.ranks, d)
	default:
		m.measureFlows(w)
	}
	return d
}

func (m *Machine) measureRanks(ranks []topology.Rank, d *Measured) {
	for _, r := range ranks {
		host := m.hosts[m.at(r).Host]
		if host.reading.Cores == 0 {
			d.Now, d.None = 0, fmt.Sprintf("there is no reading of host %s", host.name)
			return
		}
		d.Now += m.served(host.name) / float64(len(ranks))
	}
}

// measureFlows adds up as a link's readings are: all bytes, over the time in which any flow was busy. What
// fell and has no flow left between hosts is not compared.
func (m *Machine) measureFlows(w *measurement) {
	type link struct {
		from, to string
		bytes    float64
		busy     map[int64]bool // by slot
	}
	var links []link
	var falls []Fall
	var busy, limited time.Duration
	d := &w.measured
	for _, f := range w.flows {
		from, to := m.at(f.from).Host, m.at(f.to).Host
		if from == to {
			d.Within++
			continue
		}
		i := slices.IndexFunc(links, func(l link) bool { return l.from == from && l.to == to })
		if i < 0 {
			i, links = len(links), append(links, link{from: from, to: to, busy: map[int64]bool{}})
		}
		links[i].bytes += f.bytes
		for _, s := range f.slots {
			for k := range int64(64) {
				if s.Busy>>k&1 == 1 {
					links[i].busy[s.First+k] = true
				}
			}
			busy += s.Time()
		}
		limited += f.limited
		if !slices.Contains(falls, f.over) {
			falls = append(falls, f.over)
		}
	}
	if len(links) > 0 {
		w.expect(falls)
	}
	d.Limited = 2*limited > busy
	for _, l := range links {
		if len(l.busy) == 0 {
			continue
		}
		seen := l.bytes / (float64(len(l.busy)) * sensors.SlotTime.Seconds())
		d.Now += seen
		if !d.Limited {
			m.stillSlow(w, l.from, l.to, seen)
			m.asSlow(w, l.from, l.to, seen)
		}
	}
	switch {
	case d.Flows == 0:
		d.None = "it is not known what its ranks send"
	case d.Within == d.Flows:
		d.None = "the ranks that it kept apart share a host now"
	case busy == 0:
		d.None = "nothing was seen to go between its ranks"
	}
}
