package main

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A distance is how long it takes until one core sees what another has stored; 0 if that is not
// known. Where the machine is a guest its cores may move, to one core's two threads, to cores that
// share a cache, and to such that do not, from one run to the next. What a short message takes goes
// with it: figures of one distance say nothing beside those of another.
type distance time.Duration

// measureDistance is that of the first two cores on which this process may run.
func measureDistance() distance {
	var allowed unix.CPUSet
	if unix.SchedGetaffinity(0, &allowed) != nil || allowed.Count() < 2 {
		return 0
	}
	var cores []int
	for core := 0; len(cores) < 2; core++ {
		if allowed.IsSet(core) {
			cores = append(cores, core)
		}
	}
	var table [2]struct { // what each stores for the other, as messages in slots
		slots [256]struct {
			count atomic.Uint32
			_     [124]byte
		}
	}
	const batches, turns = 10, 2000
	var failed atomic.Bool
	var took [batches]time.Duration
	late := time.AfterFunc(200*time.Millisecond, func() { failed.Store(true) }) // somebody else has one of them
	defer late.Stop()
	var players sync.WaitGroup
	for player, core := range cores {
		players.Go(func() {
			runtime.LockOSThread() // for good: the thread, which is bound, ends with the goroutine
			var only unix.CPUSet
			only.Set(core)
			if unix.SchedSetaffinity(0, &only) != nil {
				failed.Store(true)
			}
			mine, others := &table[player], &table[1-player]
			for batch := range took {
				start := time.Now()
				for turn := range uint32(turns) {
					count := uint32(batch)*turns + turn + 1
					out, in := &mine.slots[count%256].count, &others.slots[count%256].count
					if player == 0 {
						out.Store(count)
					}
					for in.Load() != count {
						if failed.Load() {
							return
						}
					}
					if player == 1 {
						out.Store(count)
					}
				}
				if player == 0 {
					took[batch] = time.Since(start)
				}
			}
		})
	}
	players.Wait()
	if failed.Load() {
		return 0
	}
	return distance(slices.Min(took[:]) / (2 * turns))
}

func (d distance) String() string { return time.Duration(d).String() }

// moved says of a run that the distance of the cores changed meanwhile, or is not known.
const moved = "cores that moved"

// kinds are the limits between distances of different kinds: in the gaps between neighbours
// among ds that are wide.
func kinds(ds []distance) (limits []distance) {
	const wide = 1.4
	known := slices.DeleteFunc(slices.Sorted(slices.Values(ds)), func(d distance) bool { return d == 0 })
	for i := 1; i < len(known); i++ {
		if a, b := float64(known[i-1]), float64(known[i]); b >= wide*a {
			limits = append(limits, distance(math.Sqrt(a*b)))
		}
	}
	return limits
}

// tellApart gives every record's setting how far apart the cores were in that run, where that was
// not always about the same.
func tellApart(records []record) {
	var all []distance
	for _, r := range records {
		all = append(all, r.before, r.after)
	}
	limits := kinds(all)
	if len(limits) == 0 {
		return
	}
	kind := func(d distance) int {
		n, _ := slices.BinarySearch(limits, d)
		return n
	}
	of := make([][]float64, len(limits)+1)
	for _, d := range all {
		if d != 0 {
			of[kind(d)] = append(of[kind(d)], float64(d))
		}
	}
	for i := range records {
		r := &records[i]
		if k := kind(r.before); r.before != 0 && r.after != 0 && k == kind(r.after) {
			r.cores = fmt.Sprintf("cores %v apart", distance(median(of[k])))
		} else {
			r.cores = moved
		}
	}
}

// toCompare are those records of which there are enough: where settings were told apart, those in
// which the cores did not move, and each contender ran in at least a third of the rounds. The
// others are counted, by setting.
func toCompare(records []record, rounds int) (kept []record, left map[string]int) {
	type runs struct{ setting, who string }
	count := map[runs]int{}
	whos := map[string][]string{} // by setting, with the cores left out
	for _, r := range records {
		count[runs{r.setting.String(), r.who}]++
		if all := whos[r.anyCores()]; !slices.Contains(all, r.who) {
			whos[r.anyCores()] = append(all, r.who)
		}
	}
	left = map[string]int{}
	for _, r := range records {
		few := func(who string) bool { return count[runs{r.setting.String(), who}] < (rounds+2)/3 }
		if r.cores == moved || r.cores != "" && slices.ContainsFunc(whos[r.anyCores()], few) {
			left[r.setting.String()]++
			continue
		}
		kept = append(kept, r)
	}
	return kept, left
}

// anyCores is the setting's name with the cores left out.
func (s setting) anyCores() string {
	s.cores = ""
	return s.String()
}
