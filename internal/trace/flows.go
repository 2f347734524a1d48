package trace

// flowsMost is how many ends of arrows may wait for the other.
const flowsMost = 1 << 18

// A flow names an arrow: the message with number n from one rank to another, or, where
// move is set, the way of rank from by the map with number n.
type flow struct {
	move     bool
	from, to int32
	n        uint64
}

// An end is where an arrow begins or ends: within a slice of a row.
type end struct {
	out bool
	at  int64 // ns since the job began
	row row
}

// arrows pairs the ends of flows. An arrow is drawn when both are known, so that each
// that begins ends.
type arrows struct {
	waiting  map[flow]end
	drawn    uint64
	unpaired uint64 // ends that were given up
	back     uint64 // arrows that would end before they begin
}

// meet is told of an end, and returns both when the other is known.
func (a *arrows) meet(f flow, e end) (from, to end, ok bool) {
	other, known := a.waiting[f]
	switch {
	case known && other.out != e.out:
		delete(a.waiting, f)
	case known: // a rank that died does what it had done again
		a.unpaired++
		a.waiting[f] = e
		return from, to, false
	case len(a.waiting) >= flowsMost:
		a.unpaired++
		return from, to, false
	default:
		a.waiting[f] = e
		return from, to, false
	}
	from, to = other, e
	if e.out {
		from, to = e, other
	}
	if from.at > to.at {
		a.back++
		return from, to, false
	}
	a.drawn++
	return from, to, true
}
