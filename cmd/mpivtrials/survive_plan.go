//go:build linux

package main

import (
	"math/rand/v2"
	"slices"
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

	// In a lab.
	deedHost   deed = "kill of a host"               // of all its processes, its agent first of all
	deedAgent  deed = "kill of an agent"             // whose processes must end
	deedCutOff deed = "a host is cut off"            // for good
	deedBlink  deed = "a short cut"                  // of a host, for less than the silence
	deedApart  deed = "two hosts are apart"          // for a while
	deedPause  deed = "a short stop of a host"       // for less than the silence
	deedFreeze deed = "a host stops, and goes on"    // when it was given up
	deedDrain  deed = "drain"                        // of a host, which is uncordoned later
	deedAdd    deed = "add"                          // of a new host, or of one that was lost
	deedLeader deed = "kill of the agent that leads" // where the job outlives that
)

// A chance is how often a deed is done, beside others.
type chance struct {
	deed
	weight int
}

// deeds is all that are done to processes, in the order of the table.
var deeds = []chance{
	{deedKill, 6}, {deedSeveral, 3}, {deedAgain, 3}, {deedMove, 4}, {deedMoving, 3}, {deedTarget, 2}, {deedSpare, 2}, {deedStop, 2}, {deedStopped, 1},
}

// hostDeeds is those that are done to hosts.
var hostDeeds = []deed{deedHost, deedAgent, deedCutOff, deedBlink, deedApart, deedPause, deedFreeze, deedDrain, deedAdd, deedLeader}

// fatal tells whether it costs the job a host.
func (d deed) fatal() bool {
	return slices.Contains([]deed{deedHost, deedAgent, deedCutOff, deedFreeze, deedLeader}, d)
}

// labDeeds is all that are done in a lab.
func labDeeds(outlive bool) []chance {
	all := append(slices.Clone(deeds), chance{deedHost, 2}, chance{deedAgent, 2}, chance{deedCutOff, 2}, chance{deedBlink, 4}, chance{deedApart, 2},
		chance{deedPause, 2}, chance{deedFreeze, 2}, chance{deedDrain, 3}, chance{deedAdd, 3})
	if outlive {
		all = append(all, chance{deedLeader, 3})
	}
	return all
}

// Bounds of what is drawn.
const (
	longestPause = 600 * time.Millisecond
	longestStop  = 1200 * time.Millisecond
	longestDelay = 20 * time.Millisecond // between the two halves of a deed
	longestBlink = 400 * time.Millisecond
	frozenFor    = 3 * fieldSilence // and a blink
	apartBlinks  = 15               // how much longer two hosts are apart
)

// An act is one thing to do.
type act struct {
	deed
	after time.Duration // the one before
	ranks [2]int        // different ones
	delay time.Duration // of the kill, after what it follows
	lasts time.Duration // a stop, or a drain
	blink time.Duration // a short cut, or stop of a host
	host  float64       // which of those that there are, from 0 to 1
}

// draw draws the next act. It depends on the random source alone, so that a seed
// names a sequence.
func draw(r *rand.Rand, from []chance) act {
	all := 0
	for _, d := range from {
		all += d.weight
	}
	a := act{after: time.Duration(r.Int64N(int64(longestPause)))}
	pick := r.IntN(all)
	for _, d := range from {
		if pick -= d.weight; pick < 0 {
			a.deed = d.deed
			break
		}
	}
	a.ranks[0] = r.IntN(surviveRanks)
	a.ranks[1] = (a.ranks[0] + 1 + r.IntN(surviveRanks-1)) % surviveRanks
	a.delay = time.Duration(r.Int64N(int64(longestDelay)))
	a.lasts = longestStop/10 + time.Duration(r.Int64N(int64(longestStop-longestStop/10)))
	a.blink = longestBlink/10 + time.Duration(r.Int64N(int64(longestBlink-longestBlink/10)))
	a.host = r.Float64()
	return a
}
