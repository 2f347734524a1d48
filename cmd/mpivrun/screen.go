package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/mpiv/mpiv/internal/events"
)

// A page is what of a job top shows.
type page int

const (
	pageAll page = iota
	pageRanks
	pageProcesses
	pageLinks
	pageHosts
	pages
)

var pageNames = [pages]string{"all", "ranks", "processes", "links", "hosts"}

// An order is by what the rows of tables are sorted.
type order int

const (
	byNumber order = iota
	byRate
	byWait
	orders
)

var orderNames = [orders]string{"number", "rate", "wait"}

// A screen is how a person wants to see a job. Lines is a function of it and of
// what is known.
type screen struct {
	page          page
	order         order
	skip          int // rows
	width, height int
	note          string // said at the bottom
}

// lines is the whole screen: height lines, none wider than width.
func (v screen) lines(s *events.State, now time.Time) []string {
	lines := v.head(s, now)
	foot := v.foot()
	room := v.height - len(lines) - 1
	switch v.page {
	case pageRanks:
		lines = append(lines, v.fit(v.ranks(s), room)...)
	case pageProcesses:
		lines = append(lines, v.fit(v.processes(s), room)...)
	case pageLinks:
		lines = append(lines, v.fit(v.links(s), room)...)
	case pageHosts:
		lines = append(lines, v.fit(v.hosts(s), room)...)
	default:
		lines = append(lines, v.overview(s, room)...)
	}
	if len(lines) > v.height-1 {
		lines = lines[:max(v.height-1, 0)]
	}
	for len(lines) < v.height-1 {
		lines = append(lines, "")
	}
	return append(lines, foot)
}

// head is two lines on the job, an empty one, and what is wrong.
func (v screen) head(s *events.State, now time.Time) []string {
	title := fmt.Sprintf(" %s  %s %s   %s in %s on %s", s.Job.Name, s.Phase, span(now.Sub(s.Began)),
		count(s.Job.Ranks, "rank"), count(len(s.Processes), "process"), count(len(s.Hosts), "host"))
	clock := now.Format("15:04:05 ")
	if room := v.width - ansi.StringWidth(title) - len(clock); room >= 0 {
		title += strings.Repeat(" ", room) + clock
	}
	lines := []string{titleLook.Render(ansi.Truncate(title, v.width, "…")), v.cut(" " + summary(s))}
	if s.Deadlock != nil {
		word := "perhaps a deadlock"
		if s.Deadlock.Kind == events.DeadlockProven {
			word = "deadlock"
		}
		lines = append(lines, badLook.Render(v.cut(" "+word+": mpivrun explain tells more")))
	}
	if s.Verdict != nil && s.Verdict.Text != "" {
		first, _, _ := strings.Cut(s.Verdict.Text, "\n")
		lines = append(lines, badLook.Render(v.cut(" ends: "+printable(first))))
	}
	return append(lines, "")
}

// summary is the job in numbers.
func summary(s *events.State) string {
	var rate events.Rate
	known, waiting, refused, resent := false, 0, uint64(0), uint64(0)
	for _, h := range s.Hosts {
		refused += h.Refused
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		refused += p.Refused
		if r, ok := p.Rate(); ok {
			rate, known = rate.Add(r), true
		}
		if p.Reading == nil || p.Phase == events.PhaseExited {
			continue
		}
		for _, l := range p.Reading.Links {
			resent += l.Resent
		}
		for _, k := range p.Reading.Ranks {
			if k.State == "waiting" && !p.Finished[k.Rank] {
				waiting++
			}
		}
	}
	text := "- msg/s  - B/s"
	if known {
		text = amount(rate.SentMessages) + " msg/s  " + ofBytes(rate.SentBytes) + "/s"
	}
	text += fmt.Sprintf(" between processes   %d waiting, %d finished of %d", waiting, s.FinishedRanks(), s.Job.Ranks)
	for _, n := range []struct {
		n    uint64
		what string
	}{{resent, "resent"}, {refused, "refused"}} {
		if n.n > 0 {
			text += fmt.Sprintf(", %d %s", n.n, n.what)
		}
	}
	return text
}

func (v screen) foot() string {
	keys := "q quit  "
	for i, name := range pageNames {
		if page(i) == v.page {
			name = "[" + name + "]"
		}
		keys += fmt.Sprintf("%d %s  ", i+1, name)
	}
	keys += "s sort: " + orderNames[v.order]
	if v.page != pageAll {
		keys += "  ↑↓"
	}
	if v.note != "" {
		keys = v.note
	}
	return faintLook.Render(v.cut(keys))
}

func (v screen) cut(text string) string { return ansi.Truncate(text, v.width, "…") }

// fit is as much of a table as there is room for, from where the reader is on.
func (v screen) fit(lines []string, room int) []string {
	if len(lines) == 0 || room <= 0 {
		return nil
	}
	if room < 3 { // for no row beside a note
		return lines[:min(room, len(lines))]
	}
	rows := lines[1:]
	skip := min(v.skip, max(len(rows)-(room-2), 0))
	rows = rows[skip:]
	if len(rows) <= room-1 && skip == 0 {
		return lines
	}
	shown := min(len(rows), room-2)
	note := fmt.Sprintf("%d to %d of %d", skip+1, skip+shown, len(lines)-1)
	return append(append([]string{lines[0]}, rows[:shown]...), faintLook.Render(v.cut(note)))
}

// overview is the hosts, where there are several, the ranks, and the busiest links,
// sharing the room.
func (v screen) overview(s *events.State, room int) []string {
	v.skip = 0
	var lines []string
	if len(s.Hosts) > 1 {
		lines = append(v.fit(v.hosts(s), min(room/4, 6)), "")
	}
	ranks := v.ranks(s)
	links := v.links(s)
	forLinks := 0
	if len(links) > 1 {
		forLinks = max(min(len(links), 7, room/3), room-len(lines)-len(ranks)-1)
		forLinks = min(forLinks, len(links))
	}
	forRanks := room - len(lines) - forLinks
	if forLinks > 0 {
		forRanks--
	}
	shown := v.fit(ranks, forRanks)
	lines = append(lines, shown...)
	if forLinks > 0 {
		lines = append(append(lines, ""), v.fit(links, forLinks)...)
	}
	return lines
}

// A sortable row.
type sortable struct {
	row
	number     int
	rate, wait float64
}

func (v screen) sorted(rows []sortable) []row {
	slices.SortStableFunc(rows, func(a, b sortable) int {
		switch v.order {
		case byRate:
			return cmp.Or(cmp.Compare(b.rate, a.rate), a.number-b.number)
		case byWait:
			return cmp.Or(cmp.Compare(b.wait, a.wait), a.number-b.number)
		}
		return a.number - b.number
	})
	all := make([]row, len(rows))
	for i, r := range rows {
		all[i] = r.row
	}
	return all
}

// longWait is from when on a wait is shown as one to look at.
const longWait = 5 * time.Second

func (v screen) ranks(s *events.State) []string {
	columns := []column{{"RANK", true}, {"IS", false}, {"OUT/s", true}, {"IN/s", true}, {"IN CALL", false}, {"HOST", false}}
	where := func(p *events.Process) string { return shortHost(p.Host) }
	if len(s.Hosts) == 1 {
		columns[5].title = ""
		where = func(*events.Process) string { return "" }
	}
	room := v.width - 33 - longest(s, where)
	var rows []sortable
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, r := range p.Ranks {
			is, text, look, wait := rankLine(p, r)
			sent, received, ok := p.RankRate(r)
			out, in := "-", "-"
			if ok {
				out, in = amount(sent), amount(received)
			}
			rows = append(rows, sortable{row{[]string{fmt.Sprint(r), is, out, in, ansi.Truncate(text, max(room, 7), "…"), where(p)}, look}, r, sent + received, wait.Seconds()})
		}
	}
	return table(columns, v.sorted(rows), v.width)
}

// longest is the width of the longest of what f gives.
func longest(s *events.State, f func(*events.Process) string) (n int) {
	for i := range s.Processes {
		n = max(n, ansi.StringWidth(f(&s.Processes[i])))
	}
	return n
}

// shorter says in few words what a call waits for.
var shorter = strings.NewReplacer("for a message from ", "from ", "for rank ", "for ", " to receive its message", " to receive", " to take part in ", " in ",
	", on world", "", " on world", "")

// rankLine is what a rank of p is, the call that it is in, and for how long.
func rankLine(p *events.Process, rank int) (is, call string, look lipgloss.Style, wait time.Duration) {
	k := p.Rank(rank)
	switch {
	case p.Failed[rank] != "":
		return "failed", printable(p.Failed[rank]), badLook, 0
	case p.Finished[rank]:
		return "finished", "", faintLook, 0
	case p.Phase == events.PhaseExited:
		return "exited", p.Exit, badLook, 0
	case k == nil:
		return string(p.Phase), "", plainLook, 0
	case k.Op == "":
		return k.State, "", plainLook, 0
	}
	call = k.Op
	if wait = time.Duration(k.Waits); wait > 0 {
		call = fmt.Sprintf("%7s %s", span(wait), call)
	}
	if k.Where != "" {
		call += " (" + k.Where + ")"
	}
	if k.For != "" {
		call += " " + shorter.Replace(printable(k.For))
	}
	if look = plainLook; wait >= longWait {
		look = waitLook
	}
	return k.State, call, look, wait
}

func (v screen) processes(s *events.State) []string {
	columns := []column{{"RANKS", false}, {"HOST", false}, {"PID", true}, {"IS", false}, {"OUT/s", true}, {"IN/s", true}, {"OUT", true}, {"IN", true},
		{"HEAP", true}, {"GOROUTINES", true}, {"PARKED", true}}
	var rows []sortable
	for i := range s.Processes {
		p := &s.Processes[i]
		cells := []string{whose(p), hostText(p.Host), fmt.Sprint(p.PID), string(p.Phase), "-", "-", "-", "-", "-", "-", "-"}
		rate, ok := p.Rate()
		if ok {
			copy(cells[4:], []string{amount(rate.SentMessages), amount(rate.ReceivedMessages), ofBytes(rate.SentBytes), ofBytes(rate.ReceivedBytes)})
		}
		if r := p.Reading; r != nil && p.Phase != events.PhaseExited {
			copy(cells[8:], []string{ofBytes(float64(r.Heap)), fmt.Sprint(r.Goroutines), fmt.Sprint(r.Parked)})
		}
		look := plainLook
		if p.Phase == events.PhaseExited {
			look = faintLook
		}
		rows = append(rows, sortable{row{cells, look}, i, rate.SentBytes + rate.ReceivedBytes, 0})
	}
	return table(columns, v.sorted(rows), v.width)
}

func (v screen) links(s *events.State) []string {
	columns := []column{{"RANKS", false}, {"WITH", false}, {"PATH", false}, {"MSG/s", true}, {"OUT/s", true}, {"IN/s", true}, {"RTT", true},
		{"LOG", true}, {"QUEUE", true}, {"RESENT", true}}
	var rows []sortable
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, l := range linksOf(s, p) {
			rate, ok := p.LinkRate(l.Peer)
			messages, out, in := "-", "-", "-"
			if ok {
				messages, out, in = amount(rate.SentMessages+rate.ReceivedMessages), ofBytes(rate.SentBytes), ofBytes(rate.ReceivedBytes)
			}
			look := plainLook
			if l.Network == "" {
				look = badLook
			}
			rows = append(rows, sortable{row{[]string{whose(p), whose(&s.Processes[l.Peer]), pathOf(l), messages, out, in, rttOf(l),
				ofBytes(float64(l.Log)), fmt.Sprint(l.Queued), fmt.Sprint(l.Resent)}, look},
				i*len(s.Processes) + l.Peer, rate.SentBytes + rate.ReceivedBytes, float64(l.Log)})
		}
	}
	if v.page == pageAll && v.order == byNumber {
		v.order = byRate // the busiest are what there is room for
	}
	if len(rows) == 0 {
		return nil
	}
	return table(columns, v.sorted(rows), v.width)
}

func (v screen) hosts(s *events.State) []string {
	columns := []column{{"HOST", false}, {"IS", false}, {"CORES", true}, {"PROCESSES", true}, {"RANKS", true}, {"MSG/s", true}, {"OUT/s", true}, {"IN/s", true}, {"REFUSED", true}}
	var rows []sortable
	for i, h := range s.Hosts {
		is, look, ranks, refused := "starting", plainLook, 0, h.Refused
		switch {
		case h.Lost:
			is, look = "lost", badLook
		case h.Joined:
			is = "there"
		}
		var sum events.Rate
		known := false
		on, ended := s.On(h.Name), 0
		for _, p := range on {
			if p.Phase == events.PhaseExited {
				ended++
			}
			ranks += len(p.Ranks)
			refused += p.Refused
			if r, ok := p.Rate(); ok {
				sum, known = sum.Add(r), true
			}
		}
		cells := []string{hostText(h.Name), is, fmt.Sprint(h.Agent.Cores), livingText(len(on), ended), fmt.Sprint(ranks), "-", "-", "-", fmt.Sprint(refused)}
		if known {
			copy(cells[5:], []string{amount(sum.SentMessages), ofBytes(sum.SentBytes), ofBytes(sum.ReceivedBytes)})
		}
		rows = append(rows, sortable{row{cells, look}, i, sum.SentBytes + sum.ReceivedBytes, 0})
	}
	return table(columns, v.sorted(rows), v.width)
}

// shortHost is a host's name without its domain, where it has one.
func shortHost(name string) string {
	short, _, _ := strings.Cut(name, ".")
	if strings.Trim(short, "0123456789") == "" { // of an address
		short = name
	}
	return hostText(short)
}

// hostText is a host's name, as much as a column takes.
func hostText(name string) string { return ansi.Truncate(name, 16, "…") }
