package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// A csvWriter writes every figure of every run, as the runs end.
type csvWriter struct {
	out        *csv.Writer
	congestion string
}

func newCSV(w io.Writer, congestion string) *csvWriter {
	c := &csvWriter{csv.NewWriter(w), congestion}
	c.write("round", "test", "ranks", "transport", "congestion", "contender", "size", "metric", "unit", "figure",
		"run_seconds", "network_bytes", "cores_ns_before", "cores_ns_after", "error")
	return c
}

func (c *csvWriter) write(fields ...string) { _ = c.out.Write(fields) } // its error stays for add to return

// add writes the lines of r: one for each figure, or one with the error.
func (c *csvWriter) add(r record) error {
	line := func(size, metric, unit, figure, err string) {
		c.write(strconv.Itoa(r.round), r.name, strconv.Itoa(r.ranks), r.transport, c.congestion, r.who, size, metric, unit, figure,
			strconv.FormatFloat(r.wall.Seconds(), 'f', 3, 64), strconv.FormatInt(r.carried, 10),
			strconv.FormatInt(int64(r.before), 10), strconv.FormatInt(int64(r.after), 10), err)
	}
	if r.err != nil {
		line("", "", "", "", r.err.Error())
	}
	for _, p := range r.points {
		size := ""
		if p.size != noSize {
			size = strconv.Itoa(p.size)
		}
		for i, m := range r.metrics {
			line(size, m.name, m.unit, strconv.FormatFloat(p.figures[i], 'f', -1, 64), "")
		}
	}
	c.out.Flush()
	return c.out.Error()
}

// A heading is what a reader must know of where and how the figures were made.
type heading struct {
	command    string
	machine    string
	load       string // before the first run
	versions   []string
	congestion string
	rounds     int
	names      map[string]string // of contenders, by id
	ours       string
	left       map[string]int // runs that are in no table, by setting
}

// writeReport writes the page: how it was made, the bars, the failures, and a table
// for every setting and metric. plots gives the file of a table's plot, if any.
func writeReport(w io.Writer, h heading, tables []table, records []record, plots map[string]string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# mpiv beside its peers\n\nMade by `%s`\n\n", h.command)
	fmt.Fprintf(&b, "- machine: %s; load average before the first run %s\n", h.machine, h.load)
	for _, version := range h.versions {
		fmt.Fprintf(&b, "- %s\n", version)
	}
	fmt.Fprintf(&b, "- TCP congestion control: %s\n- rounds: %d\n\n", h.congestion, h.rounds)
	b.WriteString("Figures are medians over the rounds. The ratio is mpiv's median over that of the better peer; " +
		"min–max are the ratios to the same peer within one round. ✗ misses the bar, ✗✗ goes beyond what the bar allows any cell.\n\n")

	if slices.ContainsFunc(records, func(r record) bool { return r.cores != "" }) {
		b.WriteString("The machine's cores were not always as far from each other, that is, one did not always take as long to see what the other stored. " +
			"Figures are compared where that was the same.\n\n")
	}
	for _, s := range slices.Sorted(maps.Keys(h.left)) {
		fmt.Fprintf(&b, "- in no table, as there is too little to compare: %d runs of %s\n", h.left[s], s)
	}
	if len(h.left) > 0 {
		b.WriteString("\n")
	}

	if h.names[h.ours] != "" {
		b.WriteString("## Bars\n\n```\n")
		for _, v := range verdicts(tables, h.ours) {
			fmt.Fprintln(&b, v)
		}
		b.WriteString("```\n\n")
	}
	if failures := failuresOf(records, h.names); failures != "" {
		b.WriteString("## Failed runs\n\nThey are in no median.\n\n" + failures + "\n")
	}
	for _, t := range tables {
		writeTable(&b, h, t, plots[t.plotName()])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func failuresOf(records []record, names map[string]string) string {
	var b strings.Builder
	for _, r := range records {
		if r.err != nil {
			first, _, _ := strings.Cut(r.err.Error(), "\n")
			fmt.Fprintf(&b, "- %s, round %d, %s: `%s`\n", r.setting, r.round, names[r.who], first)
		}
	}
	return b.String()
}

func writeTable(b *strings.Builder, h heading, t table, plot string) {
	fmt.Fprintf(b, "## %s: %s in %s\n\n", t.setting, t.metric.name, t.metric.unit)
	compared := slices.Contains(t.whos, h.ours) && len(t.whos) > 1
	b.WriteString("| size |")
	rule := "| ---: |"
	for _, who := range t.whos {
		fmt.Fprintf(b, " %s |", h.names[who])
		rule += " ---: |"
	}
	if compared {
		b.WriteString(" ratio | min–max | better peer |")
		rule += " ---: | :---: | --- |"
	}
	fmt.Fprintf(b, "\n%s\n", rule)
	for _, r := range t.rows {
		fmt.Fprintf(b, "| %s |", sizeName(r.size))
		for _, who := range t.whos {
			if figure, ok := r.median[who]; ok {
				fmt.Fprintf(b, " %s |", figureName(figure))
			} else {
				b.WriteString(" failed |")
			}
		}
		switch {
		case compared && r.better != "":
			fmt.Fprintf(b, " %s | %.2f–%.2f | %s |", ratioName(r.ratio, judge(t, r)), r.lowest, r.highest, h.names[r.better])
		case compared:
			b.WriteString(" | | |")
		}
		b.WriteString("\n")
	}
	if plot != "" {
		fmt.Fprintf(b, "\n![%s](%s)\n", t.setting, plot)
	}
	b.WriteString("\n")
}

func ratioName(ratio float64, m mark) string {
	switch m {
	case missed:
		return fmt.Sprintf("**%.2f** ✗", ratio)
	case missedFar:
		return fmt.Sprintf("**%.2f** ✗✗", ratio)
	default:
		return fmt.Sprintf("%.2f", ratio)
	}
}

// figureName writes v with three significant digits, or all of the whole part.
func figureName(v float64) string {
	digits := max(0, 2-int(math.Floor(math.Log10(v))))
	return strconv.FormatFloat(v, 'f', digits, 64)
}

// sizeName writes a size in bytes the way people say it.
func sizeName(size int) string {
	switch {
	case size == noSize:
		return "–"
	case size >= 1<<20 && size%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", size>>20)
	case size >= 1<<10 && size%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", size>>10)
	default:
		return fmt.Sprintf("%d B", size)
	}
}
