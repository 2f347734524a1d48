package main

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

// A record is one run: what ran, in which round, and what came of it.
type record struct {
	setting
	round int
	who   string // a contender's id
	outcome
}

// A table holds the figures of one metric in one setting.
type table struct {
	setting
	metric metric
	whos   []string       // contenders that ran, ours first
	rows   []row          // by size
	failed map[string]int // runs, by contender
}

// A row is what the contenders reached at one size.
type row struct {
	size   int
	median map[string]float64 // by contender; none when all its runs failed
	// better is the peer with the better median; ratio is our median over its.
	// lowest and highest are those of the ratios of our figure to the same
	// peer's within each round: what noise does to the ratio. All are zero
	// without a figure of ours or of a peer.
	better                 string
	ratio, lowest, highest float64
}

// tabulate makes the tables of what was recorded, in the order in which it ran.
// whos are the contenders' ids, in the tables' order, and ours the one that is compared with the others.
func tabulate(records []record, whos []string, ours string) []table {
	var order []string
	bySetting := map[string][]record{}
	for _, r := range records {
		key := r.setting.String()
		if _, known := bySetting[key]; !known {
			order = append(order, key)
		}
		bySetting[key] = append(bySetting[key], r)
	}
	var tables []table
	for _, key := range order {
		of := bySetting[key]
		for column, m := range of[0].metrics {
			tables = append(tables, makeTable(of, m, column, whos, ours))
		}
	}
	return tables
}

// contestants are who ran, in their order.
func contestants(records []record) (whos []string) {
	for _, r := range records {
		if !slices.Contains(whos, r.who) {
			whos = append(whos, r.who)
		}
	}
	return whos
}

func makeTable(records []record, m metric, column int, whos []string, ours string) table {
	t := table{setting: records[0].setting, metric: m, failed: map[string]int{}}
	figures := map[int]map[string]map[int]float64{} // by size, contender, round
	for _, who := range whos {
		if slices.ContainsFunc(records, func(r record) bool { return r.who == who }) {
			t.whos = append(t.whos, who)
		}
	}
	for _, r := range records {
		if r.err != nil {
			t.failed[r.who]++
			continue
		}
		for _, p := range r.points {
			if figures[p.size] == nil {
				figures[p.size] = map[string]map[int]float64{}
			}
			if figures[p.size][r.who] == nil {
				figures[p.size][r.who] = map[int]float64{}
			}
			figures[p.size][r.who][r.round] = p.figures[column]
		}
	}
	for size, by := range figures {
		t.rows = append(t.rows, compare(size, by, m, ours))
	}
	slices.SortFunc(t.rows, func(a, b row) int { return cmp.Compare(a.size, b.size) })
	return t
}

// compare makes a row of the figures by contender and round.
func compare(size int, by map[string]map[int]float64, m metric, ours string) row {
	r := row{size: size, median: map[string]float64{}}
	for who, rounds := range by {
		var all []float64
		for _, figure := range rounds {
			all = append(all, figure)
		}
		r.median[who] = median(all)
		if who != ours && !strings.HasSuffix(who, tls13) && (r.better == "" || m.beats(r.median[who], r.median[r.better])) {
			r.better = who
		}
	}
	if by[ours] == nil || r.better == "" {
		r.better = ""
		return r
	}
	r.ratio = r.median[ours] / r.median[r.better]
	r.lowest, r.highest = math.Inf(1), math.Inf(-1)
	for round, figure := range by[ours] {
		if peer, ran := by[r.better][round]; ran {
			r.lowest = min(r.lowest, figure/peer)
			r.highest = max(r.highest, figure/peer)
		}
	}
	if r.highest < r.lowest { // no round in which both ran
		r.lowest, r.highest = r.ratio, r.ratio
	}
	return r
}

// beats says whether a is a better figure than b.
func (m metric) beats(a, b float64) bool {
	if m.higher {
		return a > b
	}
	return a < b
}

// median returns the middle of all, or the mean of the two in the middle. There
// must be one.
func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
