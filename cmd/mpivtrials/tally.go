//go:build linux

package main

import "fmt"

// A tally watches the numbers of a stream of messages, which are due as 0, 1, 2, …
type tally struct {
	next       uint64
	missing    map[uint64]bool // skipped so far
	doubled    int
	disordered int // came after a later one, or left a gap
	wrong      int // other bytes than were sent
}

func (t *tally) saw(n uint64) {
	switch {
	case n == t.next:
		t.next++
	case n > t.next:
		if n-t.next > 1<<20 { // no number that anyone sent
			t.wrong++
			return
		}
		if t.missing == nil {
			t.missing = map[uint64]bool{}
		}
		for ; t.next < n; t.next++ {
			t.missing[t.next] = true
		}
		t.next++
		t.disordered++
	case t.missing[n]:
		delete(t.missing, n)
		t.disordered++
	default:
		t.doubled++
	}
}

// lost is how many of sent messages never came.
func (t *tally) lost(sent uint64) int {
	n := len(t.missing)
	if sent > t.next {
		n += int(sent - t.next)
	}
	return n
}

// A toll is what went wrong with the messages of a job, of how many.
type toll struct{ Messages, Lost, Doubled, Disordered, Wrong int }

// toll is that of a stream of which so many were sent.
func (t *tally) toll(sent uint64) toll {
	return toll{int(sent), t.lost(sent), t.doubled, t.disordered, t.wrong}
}

const tollFormat = "toll %d lost %d doubled %d disordered %d wrong %d"

func (t toll) String() string {
	return fmt.Sprintf(tollFormat, t.Messages, t.Lost, t.Doubled, t.Disordered, t.Wrong)
}

// parseToll reads what String writes; false if line is something else.
func parseToll(line string) (t toll, ok bool) {
	_, err := fmt.Sscanf(line, tollFormat, &t.Messages, &t.Lost, &t.Doubled, &t.Disordered, &t.Wrong)
	return t, err == nil
}

func (t *toll) add(u toll) {
	t.Messages += u.Messages
	t.Lost += u.Lost
	t.Doubled += u.Doubled
	t.Disordered += u.Disordered
	t.Wrong += u.Wrong
}

// claims are those of every trial that checks its messages.
func (t toll) claims() []claim {
	of := fmt.Sprintf(" of %d messages", t.Messages)
	return []claim{
		{what: "lost" + of, measured: float64(t.Lost)},
		{what: "doubled" + of, measured: float64(t.Doubled)},
		{what: "out of order" + of, measured: float64(t.Disordered)},
		{what: "with other bytes than were sent" + of, measured: float64(t.Wrong)},
	}
}
