package events

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/mpiv/mpiv/leader"
)

// AuditMost is how many decisions, and how many passages, an Audit keeps: the last.
const AuditMost = 1000

// An Audit is why ranks are where they are: what was decided, and how ranks went from
// one process to another. It is a fold of a job's events; the zero value knows nothing.
type Audit struct {
	Job       string           `json:"job,omitempty"`
	Began     time.Time        `json:"began,omitzero"`
	Decisions []*leader.Record `json:"decisions,omitempty"`
	Passages  []*Passage       `json:"passages,omitempty"`
	Left      int              `json:"left,omitempty"` // older ones that are not kept

	hosts  []string         // of processes
	ended  map[int]Event    // by process
	lost   map[string]Event // by host
	coming map[int]*Passage // by rank: the last
}

// A Passage is a rank that goes from one process to another, or was to.
type Passage struct {
	Rank     int       `json:"rank"`
	From     int       `json:"from"` // process
	FromHost string    `json:"from_host"`
	To       int       `json:"to"` // process; of one that stayed From
	ToHost   string    `json:"to_host"`
	Lost     bool      `json:"lost,omitempty"`   // its process was: this is a recovery
	Stayed   bool      `json:"stayed,omitempty"` // it was to go, and has not
	Why      string    `json:"why,omitempty"`
	Ended    time.Time `json:"ended,omitzero"` // when the end of its process, or host, was seen
	Moved    time.Time `json:"moved"`          // when all were told where it is
	Epoch    uint32    `json:"epoch,omitempty"`
	Snapshot uint64    `json:"snapshot,omitempty"` // that it went on from; 0: it was not lost, or began again
	Arrived  time.Time `json:"arrived,omitzero"`   // when it had its state and went on; zero: that is not known
	Bytes    int64     `json:"bytes,omitempty"`    // of its state
	Stood    int64     `json:"stood_ns,omitempty"` // ns in which it did not run, if it was moved alive
}

// Took is how long it took from the end of the process, or if that was not seen from the new map,
// until the rank went on; 0: that is not known.
func (p *Passage) Took() time.Duration {
	if p.Arrived.IsZero() {
		return 0
	}
	if p.Ended.IsZero() {
		return p.Arrived.Sub(p.Moved)
	}
	return p.Arrived.Sub(p.Ended)
}

// Apply has a know of e.
func (a *Audit) Apply(e Event) {
	switch e.Kind {
	case JobStarted:
		*a = Audit{Job: e.Job.Name, Began: e.began(), ended: map[int]Event{}, lost: map[string]Event{}, coming: map[int]*Passage{}}
		for _, p := range e.Job.Processes {
			a.hosts = append(a.hosts, p.Host)
		}
	case ProcessAdded:
		if *e.Process == len(a.hosts) {
			a.hosts = append(a.hosts, e.Host)
		}
	case ProcessExited:
		if a.ended != nil {
			a.ended[*e.Process] = e
		}
	case HostLost:
		if a.lost != nil {
			a.lost[e.Host] = e
		}
	case Decided:
		a.decided(e.Decision)
	case RankMoved:
		p := &Passage{Rank: *e.Rank, From: e.Moved.From, FromHost: a.hostOf(e.Moved.From), To: *e.Process, ToHost: e.Host, Lost: e.Moved.Lost,
			Why: e.Text, Moved: e.Time, Epoch: e.Moved.Epoch, Snapshot: e.Moved.Snapshot}
		if p.Lost {
			if x, ok := a.ended[p.From]; ok && !x.Time.After(e.Time) {
				p.Ended = x.Time
			} else if x, ok := a.lost[p.FromHost]; ok && !x.Time.After(e.Time) {
				p.Ended = x.Time
			}
		}
		a.add(p)
	case RankArrived:
		if p := a.coming[*e.Rank]; p != nil && p.To == *e.Process && p.Arrived.IsZero() {
			p.Arrived, p.Bytes, p.Stood = e.Time, e.Arrived.Bytes, e.Arrived.Stood
		}
	case RankStayed:
		a.add(&Passage{Rank: *e.Rank, From: *e.Process, FromHost: e.Host, To: *e.Process, ToHost: e.Host, Stayed: true, Why: e.Text, Moved: e.Time})
	}
}

func (a *Audit) add(p *Passage) {
	if a.coming == nil {
		return // the job is not known
	}
	a.coming[p.Rank] = p
	if a.Passages = append(a.Passages, p); len(a.Passages) > AuditMost {
		a.Passages = a.Passages[1:]
		a.Left++
	}
}

// decided keeps r in place of the one with its number.
func (a *Audit) decided(r *leader.Record) {
	for i := len(a.Decisions) - 1; i >= 0; i-- {
		if a.Decisions[i].ID == r.ID {
			a.Decisions[i] = r
			return
		}
	}
	if a.Decisions = append(a.Decisions, r); len(a.Decisions) > AuditMost {
		a.Decisions = a.Decisions[1:]
		a.Left++
	}
}

// Decision is the one with that number; nil if there is none.
func (a *Audit) Decision(id uint64) *leader.Record {
	for _, r := range a.Decisions {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (a *Audit) hostOf(process int) string {
	if process >= 0 && process < len(a.hosts) {
		return a.hosts[process]
	}
	return "?"
}

// String is all of a, for people: in the order of time.
func (a *Audit) String() string {
	var b strings.Builder
	ds, ps := a.Decisions, a.Passages
	for len(ds) > 0 || len(ps) > 0 {
		if len(ps) == 0 || len(ds) > 0 && !ds[0].At.After(ps[0].Moved) {
			b.WriteString(a.TextOf(ds[0]))
			ds = ds[1:]
		} else {
			b.WriteString(a.textOf(ps[0]))
			ps = ps[1:]
		}
	}
	if a.Left > 0 {
		fmt.Fprintf(&b, "%d older ones are not kept\n", a.Left)
	}
	return b.String()
}

// inLine is a text of others, such as a reason that a program gave, without what would end the
// line, or act on a terminal.
func inLine(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// after is when t was, for people.
func (a *Audit) after(t time.Time) string {
	if a.Began.IsZero() || t.Before(a.Began) {
		return t.Format(time.TimeOnly)
	}
	return fmt.Sprintf("%.3f s", t.Sub(a.Began).Seconds())
}

// TextOf is a decision for people.
func (a *Audit) TextOf(r *leader.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "decision %d at %s: %s\n", r.ID, a.after(r.At), inLine(r.Chosen))
	for _, s := range r.Seen {
		fmt.Fprintf(&b, "  seen: %s\n", inLine(s))
	}
	if r.Blamed != "" {
		fmt.Fprintf(&b, "  blamed: %s, %s", inLine(r.Blamed), r.Verdict)
		if len(r.Reasons) > 0 {
			fmt.Fprintf(&b, ": %s", inLine(strings.Join(r.Reasons, "; ")))
		}
		b.WriteByte('\n')
	}
	for _, o := range r.Options {
		mark := "could be done"
		if o.What == r.Chosen {
			mark = "chosen"
		}
		fmt.Fprintf(&b, "  %s: %s\n", mark, inLine(o.String()))
	}
	if r.Why != "" {
		fmt.Fprintf(&b, "  why: %s\n", inLine(r.Why))
	}
	for _, p := range r.Plans {
		fmt.Fprintf(&b, "  plan: %s, predicted to cost %.3g s: ", inLine(p.What), p.Cost)
		if p.End == "" {
			b.WriteString("under way\n")
			continue
		}
		fmt.Fprintf(&b, "%s after %.3g s", p.End, p.Took)
		if p.Stood > 0 {
			fmt.Fprintf(&b, ", and did cost %.3g s, in which the rank stood still", p.Stood)
		}
		if p.Why != "" {
			fmt.Fprintf(&b, " (%s)", inLine(p.Why))
		}
		b.WriteByte('\n')
	}
	if r.Measured != nil {
		fmt.Fprintf(&b, "  brought: %v\n", *r.Measured)
	}
	return b.String()
}

func (a *Audit) textOf(p *Passage) string {
	var b strings.Builder
	switch {
	case p.Stayed:
		return fmt.Sprintf("rank %d at %s: it was to be moved, and stayed in process %d on host %s: %s\n", p.Rank, a.after(p.Moved), p.From, p.FromHost, inLine(p.Why))
	case !p.Lost:
		fmt.Fprintf(&b, "rank %d at %s: it was moved from process %d on host %s to process %d on host %s\n", p.Rank, a.after(p.Moved), p.From, p.FromHost, p.To, p.ToHost)
		if !p.Arrived.IsZero() {
			fmt.Fprintf(&b, "  cost: %d bytes of state, it stood still for %v\n", p.Bytes, time.Duration(p.Stood).Round(time.Microsecond))
		}
		return b.String()
	}
	at := p.Moved
	if !p.Ended.IsZero() {
		at = p.Ended
	}
	fmt.Fprintf(&b, "rank %d at %s: it was lost with process %d on host %s\n", p.Rank, a.after(at), p.From, p.FromHost)
	fmt.Fprintf(&b, "  seen: %s\n", inLine(p.Why))
	fmt.Fprintf(&b, "  done: it goes on in process %d on host %s, %s, by map %d", p.To, p.ToHost, Moved{Snapshot: p.Snapshot}.Origin(), p.Epoch)
	if !p.Ended.IsZero() {
		fmt.Fprintf(&b, ", which was told after %v", p.Moved.Sub(p.Ended).Round(time.Microsecond))
	}
	b.WriteByte('\n')
	switch {
	case !p.Arrived.IsZero() && p.Snapshot == 0:
		fmt.Fprintf(&b, "  cost: it began after %v; all that it had done it did again\n", p.Took().Round(time.Microsecond))
	case !p.Arrived.IsZero():
		fmt.Fprintf(&b, "  cost: it had its %d bytes of state and went on after %v; what it had done since that snapshot it did again\n", p.Bytes, p.Took().Round(time.Microsecond))
	case p.Snapshot != 0:
		b.WriteString("  cost: it has not told that it has its state\n")
	}
	return b.String()
}
