//go:build linux

package main

import (
	"math/rand/v2"
	"time"
)

// A deed is a kind of thing that survive does to a job.
type deed string

const (
	deedKill    deed = "kill"                      // of one process with a rank
	deedSeveral deed = "several at once"           // of two
	deedAgain   deed = "kill after a recovery"     // of the process to which a rank that was lost has just come
	deedMove    deed = "move"                      // of a rank, to a spare process
	deedMoving  deed = "kill during a move"        // of the process that a rank leaves, or of one that stays
	deedTarget  deed = "kill of a move's target"   // which has no rank yet
	deedSpare   deed = "kill of a spare"           //
	deedStop    deed = "stop"                      // of a process with a rank, for a while
	deedStopped deed = "kill of a stopped process" //
)

// deeds is all of them, in the order of the table, and how often each is done.
var deeds = []struct {
	deed
	weight int
}{
	{deedKill, 6}, {deedSeveral, 3}, {deedAgain, 3}, {deedMove, 4}, {deedMoving, 3}, {deedTarget, 2}, {deedSpare, 2}, {deedStop, 2}, {deedStopped, 1},
}

// Bounds of what is drawn.
const (
	longestPause = 600 * time.Millisecond
	longestStop  = 1200 * time.Millisecond
	longestDelay = 20 * time.Millisecond // between the two halves of a deed
)

// An act is one thing to do.
type act struct {
	deed
	after time.Duration // the one before
	ranks [2]int        // different ones
	delay time.Duration // of the kill, after what it follows
	lasts time.Duration // a stop
}

// draw draws the next act. It depends on the random source alone, so that a seed
// names a sequence.
func draw(r *rand.Rand, ranks int) act {
	all := 0
	for _, d := range deeds {
		all += d.weight
	}
	a := act{after: time.Duration(r.Int64N(int64(longestPause)))}
	pick := r.IntN(all)
	for _, d := range deeds {
		if pick -= d.weight; pick < 0 {
			a.deed = d.deed
			break
		}
	}
	a.ranks[0] = r.IntN(ranks)
	a.ranks[1] = (a.ranks[0] + 1 + r.IntN(ranks-1)) % ranks
	a.delay = time.Duration(r.Int64N(int64(longestDelay)))
	a.lasts = longestStop/10 + time.Duration(r.Int64N(int64(longestStop-longestStop/10)))
	return a
}
