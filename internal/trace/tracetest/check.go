// Package tracetest reads traces for tests, and refuses those that break the rules of
// the trace-event format.
package tracetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// An Event of a trace. Times are in µs.
type Event struct {
	Name string
	Cat  string
	Ph   string
	TS   *float64
	Dur  *float64
	PID  *int
	TID  *int
	ID   *uint64
	BP   string
	S    string
	Args map[string]any
}

// End is when a slice ends.
func (e *Event) End() float64 { return *e.TS + *e.Dur }

// A Trace is one that keeps the rules.
type Trace struct {
	Events  []Event
	Slices  []Event
	Flows   map[uint64][2]Event // from and to
	Names   map[int]string      // of processes
	Threads map[[2]int]string
	Other   map[string]any
}

// Slice is the innermost slice that a flow's end is in.
func (t *Trace) Slice(e Event) (s Event, ok bool) {
	for _, x := range t.Slices {
		if *x.PID == *e.PID && *x.TID == *e.TID && *x.TS <= *e.TS && *e.TS < x.End() && (!ok || *x.TS >= *s.TS) {
			s, ok = x, true
		}
	}
	return s, ok
}

// slack is for times that are rounded as floating-point numbers, in µs.
const slack = 0.0005

// Read reads a trace. The error is the first rule that it breaks: what each kind of event
// has to have; slices of a thread that overlap without one being within the other; a
// flow that does not begin and end once each, in this order, within slices; a row
// without a name.
func Read(r io.Reader) (*Trace, error) {
	var raw struct {
		TraceEvents     []Event
		DisplayTimeUnit string
		OtherData       map[string]any
	}
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&raw); err != nil {
		return nil, fmt.Errorf("a trace that is no JSON: %w", err)
	}
	if raw.DisplayTimeUnit != "ns" && raw.DisplayTimeUnit != "ms" {
		return nil, fmt.Errorf("displayTimeUnit is %q, want ms or ns", raw.DisplayTimeUnit)
	}
	t := &Trace{Events: raw.TraceEvents, Other: raw.OtherData, Flows: map[uint64][2]Event{}, Names: map[int]string{}, Threads: map[[2]int]string{}}
	rows := map[[2]int][]Event{}
	starts, ends := map[uint64]Event{}, map[uint64]Event{}
	used := map[[2]int]bool{}
	for i, e := range t.Events {
		if e.TS == nil || e.PID == nil || e.TID == nil || e.Name == "" {
			return nil, fmt.Errorf("event %d (%q) has no ts, pid, tid or name", i, e.Name)
		}
		at := [2]int{*e.PID, *e.TID}
		if e.Ph != "M" {
			used[at] = true
		}
		switch e.Ph {
		case "X":
			if e.Dur == nil || *e.Dur < 0 {
				return nil, fmt.Errorf("slice %d (%q) has no dur", i, e.Name)
			}
			t.Slices = append(t.Slices, e)
			rows[at] = append(rows[at], e)
		case "s", "f":
			if e.ID == nil {
				return nil, fmt.Errorf("flow event %d has no id", i)
			}
			side := starts
			if e.Ph == "f" {
				side = ends
			}
			if _, twice := side[*e.ID]; twice {
				return nil, fmt.Errorf("flow %d has two events %q", *e.ID, e.Ph)
			}
			side[*e.ID] = e
		case "i":
			if e.S != "g" && e.S != "p" && e.S != "t" {
				return nil, fmt.Errorf("instant %d (%q) has the scope %q", i, e.Name, e.S)
			}
		case "M":
			name, _ := e.Args["name"].(string)
			switch e.Name {
			case "process_name":
				t.Names[*e.PID] = name
			case "thread_name":
				t.Threads[at] = name
			case "process_sort_index", "thread_sort_index":
			default:
				return nil, fmt.Errorf("metadata %d is called %q", i, e.Name)
			}
		default:
			return nil, fmt.Errorf("event %d (%q) is of kind %q", i, e.Name, e.Ph)
		}
	}
	for at := range used {
		if t.Names[at[0]] == "" || t.Threads[at] == "" {
			return nil, fmt.Errorf("row %v has no name", at)
		}
	}
	until := map[[2]int][]float64{} // by row and slice: when the last of those that began by then ends
	for at, row := range rows {
		if err := nested(row); err != nil {
			return nil, fmt.Errorf("%s, %s: %w", t.Names[at[0]], t.Threads[at], err)
		}
		last := 0.0
		for _, e := range row {
			last = max(last, e.End())
			until[at] = append(until[at], last)
		}
	}
	for id, s := range starts {
		f, ok := ends[id]
		switch {
		case !ok:
			return nil, fmt.Errorf("flow %d begins and does not end", id)
		case *f.TS < *s.TS:
			return nil, fmt.Errorf("flow %d ends at %v, before it begins at %v", id, *f.TS, *s.TS)
		}
		delete(ends, id)
		for _, e := range []Event{s, f} {
			at := [2]int{*e.PID, *e.TID}
			n, _ := slices.BinarySearchFunc(rows[at], *e.TS+slack, func(x Event, ts float64) int { return cmp.Compare(*x.TS, ts) })
			if n == 0 || until[at][n-1] < *e.TS-slack {
				return nil, fmt.Errorf("flow %d: %q at %v is in no slice", id, e.Ph, *e.TS)
			}
		}
		t.Flows[id] = [2]Event{s, f}
	}
	for id := range ends {
		return nil, fmt.Errorf("flow %d ends and does not begin", id)
	}
	return t, nil
}

// nested is an error if slices of a row overlap without one being within the other.
func nested(row []Event) error {
	slices.SortStableFunc(row, func(a, b Event) int {
		return cmp.Or(cmp.Compare(*a.TS, *b.TS), cmp.Compare(*b.Dur, *a.Dur))
	})
	var open []Event
	for _, e := range row {
		for len(open) > 0 && open[len(open)-1].End() <= *e.TS+slack {
			open = open[:len(open)-1]
		}
		if len(open) > 0 && e.End() > open[len(open)-1].End()+slack {
			o := open[len(open)-1]
			return fmt.Errorf("%q from %v to %v and %q from %v to %v overlap", o.Name, *o.TS, o.End(), e.Name, *e.TS, e.End())
		}
		open = append(open, e)
	}
	return nil
}
