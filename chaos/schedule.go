package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A Schedule is faults to be done to a job, in any order.
type Schedule []Item

// An Item is a [Fault] or a [Random].
type Item interface {
	String() string
	check() error
	faults(ranks int) []Fault
}

var errNil = errors.New("a fault of the schedule is nil")

func (f Fault) faults(int) []Fault { return []Fault{f} }

// String is s as [Parse] takes it.
func (s Schedule) String() string {
	all := make([]string, len(s))
	for i, item := range s {
		all[i] = item.String()
	}
	return strings.Join(all, "; ")
}

// Faults is all that is to be done to a job of so many ranks, by when it begins. The
// error says what cannot be done, or not at the same time.
func (s Schedule) Faults(ranks int) ([]Fault, error) {
	var all []Fault
	for _, item := range s {
		if item == nil {
			return nil, errNil
		}
		if err := item.check(); err != nil {
			return nil, fmt.Errorf("%v: %w", item, err)
		}
		if all = append(all, item.faults(ranks)...); len(all) > most {
			return nil, fmt.Errorf("the schedule has more than %d faults", most)
		}
	}
	for _, f := range all {
		if f.OfRank() && f.Rank >= ranks {
			return nil, fmt.Errorf("%v: the job has ranks 0 to %d", f, ranks-1)
		}
	}
	slices.SortStableFunc(all, func(a, b Fault) int { return cmp.Compare(a.Start, b.Start) })
	return all, exclusive(all)
}

// exclusive is an error if two faults want the same part of the lab at a time: the
// end of one would undo the other. all is by start.
func exclusive(all []Fault) error {
	holds := map[string][]Fault{}
	for _, f := range all {
		part := f.part()
		if part == "" {
			continue
		}
		lasting := slices.DeleteFunc(holds[part], func(g Fault) bool { return g.Length > 0 && g.Start+g.Length <= f.Start })
		for _, before := range lasting {
			if f.Network == before.Network || f.Network == "" || before.Network == "" { // one is done to all networks
				return fmt.Errorf("%v begins while %v lasts, and the end of one would end both: let the first end before, or make one of them", f, before)
			}
		}
		holds[part] = append(lasting, f)
	}
	return nil
}

// part is the part of a lab that f has for itself, or, of the host's cables, those of its network; empty:
// it shares.
func (f Fault) part() string {
	switch {
	case f.OfRank():
		return ""
	case len(f.Groups) > 0:
		return "partition" // a lab has one
	}
	return string(f.Kind) + " " + f.Host
}
