package agent

import "time"

// A clock is by how much that of another host is behind the one here, as far as is known.
type clock struct {
	behind time.Duration // below zero: it is ahead
	within time.Duration // or by so much more or less
}

// compareClocks compares the clock of a host that has told its time between two moments here: after it
// was asked, and before it was heard.
func compareClocks(asked, heard, told time.Time) clock {
	within := heard.Sub(asked) / 2
	return clock{asked.Add(within).Sub(told), within}
}

// differs is by how much the clock there is behind, and 0 if nothing says that it is not the same.
func (c clock) differs() time.Duration {
	if c.surely() == 0 {
		return 0
	}
	return c.behind
}

// surely is by how much the two differ at least.
func (c clock) surely() time.Duration { return max(0, c.behind.Abs()-c.within) }
