package main

import (
	"fmt"
	"slices"
)

// A bar is what mpiv must reach, as a limit to the ratio of its figure to the
// better peer's, in the cells it covers: at most that for a latency, at least
// that for a bandwidth or rate.
type bar struct {
	name      string
	tests     []string
	metric    string
	ranks     []int
	transport string // empty: any
	sizes     []int  // empty: any
	limit     float64
	share     float64 // of the cells that must keep the limit
	never     float64 // a ratio that no cell may go beyond; 0: none
}

var collectives = []string{"barrier", "bcast", "reduce", "allreduce", "gather", "scatter", "allgather", "alltoall"}

var bars = []bar{
	{"latency, shared memory: ratio ≤ 1.0 at every size", []string{"latency"}, "latency", []int{2}, "shm", nil, 1, 1, 0},
	{"latency, TCP: ratio ≤ 1.0 at every size", []string{"latency"}, "latency", []int{2}, "tcp", nil, 1, 1, 0},
	{"bandwidth, shared memory: ratio ≥ 1.0 at every size", []string{"bw"}, "bandwidth", []int{2}, "shm", nil, 1, 1, 0},
	{"bandwidth, TCP: ratio ≥ 1.0 at every size", []string{"bw"}, "bandwidth", []int{2}, "tcp", nil, 1, 1, 0},
	{"bandwidth both ways, shared memory: ratio ≥ 1.0 at every size", []string{"bibw"}, "bandwidth", []int{2}, "shm", nil, 1, 1, 0},
	{"bandwidth both ways, TCP: ratio ≥ 1.0 at every size", []string{"bibw"}, "bandwidth", []int{2}, "tcp", nil, 1, 1, 0},
	{"message rate of 8 B, shared memory: ratio ≥ 1.0", []string{"mbw_mr"}, "rate", []int{2}, "shm", []int{8}, 1, 1, 0},
	{"message rate of 8 B, TCP: ratio ≥ 10", []string{"mbw_mr"}, "rate", []int{2}, "tcp", []int{8}, 10, 1, 0},
	{"latency between hosts: ratio ≤ 1.0 at every size", []string{"latency"}, "latency", []int{2}, lan, nil, 1, 1, 0},
	{"bandwidth between hosts: ratio ≥ 1.0 at every size", []string{"bw"}, "bandwidth", []int{2}, lan, nil, 1, 1, 0},
	{"bandwidth both ways between hosts: ratio ≥ 1.0 at every size", []string{"bibw"}, "bandwidth", []int{2}, lan, nil, 1, 1, 0},
	{"message rate of 8 B between hosts: ratio ≥ 10", []string{"mbw_mr"}, "rate", []int{2}, lan, []int{8}, 10, 1, 0},
	{"collectives, 2 and 4 ranks: ratio ≤ 1.0 in 80 % of the cells, never above 1.5", collectives, "latency", []int{2, 4}, "", append([]int{noSize}, fewSizes...), 1, 0.8, 1.5},
	{"collectives, 8 and 16 ranks: ratio ≤ 1.0 in every cell", collectives, "latency", []int{8, 16}, "", append([]int{noSize}, fewSizes...), 1, 1, 0},
	{"launch and exit of 4 ranks: ratio ≤ 1.0", []string{"init"}, "launch", []int{4}, "", nil, 1, 1, 0},
}

// covers says whether the cell of t at size counts for b.
func (b bar) covers(t table, size int) bool {
	return slices.Contains(b.tests, t.name) && b.metric == t.metric.name && slices.Contains(b.ranks, t.ranks) &&
		(b.transport == "" || b.transport == t.transport) && (len(b.sizes) == 0 || slices.Contains(b.sizes, size))
}

// beyond says whether ratio misses limit, given which way the metric is better.
func beyond(ratio, limit float64, m metric) bool { return m.beats(limit, ratio) }

// A mark is how a cell does against the bar that covers it.
type mark int

const (
	unmarked mark = iota // no bar covers it, or there is no ratio
	kept
	missed
	missedFar // beyond what the bar allows any cell
)

// judge returns the mark of the cell of t in r.
func judge(t table, r row) mark {
	if r.better == "" {
		return unmarked
	}
	for _, b := range bars {
		switch {
		case !b.covers(t, r.size):
		case b.never != 0 && beyond(r.ratio, b.never, t.metric):
			return missedFar
		case beyond(r.ratio, b.limit, t.metric):
			return missed
		default:
			return kept
		}
	}
	return unmarked
}

// A verdict is how one bar came out.
type verdict struct {
	bar
	cells, kept, far int
	failed           int     // runs of ours that failed where the bar looks
	worst            float64 // ratio
	worstAt          string
}

// verdicts judges all bars by the tables. A bar that covers none of them has no cells.
func verdicts(tables []table, ours string) []verdict {
	all := make([]verdict, len(bars))
	for i, b := range bars {
		v := verdict{bar: b}
		for _, t := range tables {
			if b.coversTable(t) {
				v.failed += t.failed[ours]
			}
			for _, r := range t.rows {
				if r.better != "" && b.covers(t, r.size) {
					v.count(t, r)
				}
			}
		}
		all[i] = v
	}
	return all
}

// coversTable says whether any cell of t could count for b.
func (b bar) coversTable(t table) bool {
	return slices.ContainsFunc(append([]int{noSize}, t.sizes...), func(size int) bool { return b.covers(t, size) })
}

func (v *verdict) count(t table, r row) {
	v.cells++
	if !beyond(r.ratio, v.limit, t.metric) {
		v.kept++
	}
	if v.never != 0 && beyond(r.ratio, v.never, t.metric) {
		v.far++
	}
	if v.cells == 1 || t.metric.beats(v.worst, r.ratio) {
		v.worst = r.ratio
		v.worstAt = fmt.Sprintf("%s, %s", t.setting, sizeName(r.size))
	}
}

// ok says whether the bar is kept. Without a cell it is not.
func (v verdict) ok() bool {
	return v.cells > 0 && v.failed == 0 && v.far == 0 && float64(v.kept) >= v.share*float64(v.cells)
}

func (v verdict) String() string {
	word := "missed"
	switch {
	case v.ok():
		word = "ok"
	case v.cells == 0 && v.failed == 0:
		return fmt.Sprintf("%-12s %s", "not measured", v.name)
	}
	line := fmt.Sprintf("%-12s %s | %d of %d cells keep it", word, v.name, v.kept, v.cells)
	if v.cells > 0 {
		line += fmt.Sprintf(", the worst ratio is %.2f (%s)", v.worst, v.worstAt)
	}
	if v.failed > 0 {
		line += fmt.Sprintf(", %d runs of mpiv failed", v.failed)
	}
	return line
}
