package waits

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/mpiv/mpiv/internal/control"
)

// maxCauses bounds how many sentences of one kind are said.
const maxCauses = 6

// causes says what is wrong in d, the most telling first.
func (g graph) causes(d *Deadlock) []string {
	var all []obstacle
	for _, m := range d.Ranks {
		all = append(all, g.obstacles(g.ranks[m])...)
	}
	found := append(mismatches(all), passed(all)...)
	if len(found) == 0 && d.Cycle != nil {
		found = append(found, cycleSentence(d.Cycle))
	}
	found = append(found, g.deserted(all)...)
	switch {
	case len(found) > 0:
	case len(d.Ranks) == 1:
		found = append(found, cycleSentence(d.Ranks))
	default:
		found = append(found, rankList(d.Ranks)+" wait for each other, and none of them can be the first")
	}
	return append(found, misnamed(all)...)
}

// bound keeps the first sentences.
func bound(sentences []string) []string {
	if more := len(sentences) - maxCauses; more > 0 {
		sentences = append(sentences[:maxCauses], fmt.Sprintf("and %s of this kind", count(more, "more case")))
	}
	return sentences
}

// A step is one collective call on one communicator, of which all members must
// make the same.
type step struct {
	context uint32
	number  string
}

// mismatches finds collectives in which members disagree: on which it is, or on
// its root.
func mismatches(all []obstacle) []string {
	type place struct{ what, where string }
	steps := map[step]map[place][]int{}
	comm := map[step]string{}
	for _, o := range all {
		name, number, detail := cutCollective(o.need.Collective)
		if number == "" {
			continue
		}
		s := step{o.need.Context, number}
		if steps[s] == nil {
			steps[s] = map[place][]int{}
		}
		comm[s] = o.need.Comm
		at := place{name + " number " + number + detail, o.wait.Where}
		if !slices.Contains(steps[s][at], o.rank) {
			steps[s][at] = append(steps[s][at], o.rank)
		}
	}
	var found []string
	for _, s := range slices.SortedFunc(maps.Keys(steps), func(a, b step) int {
		return cmp.Or(cmp.Compare(a.context, b.context), cmp.Compare(len(a.number), len(b.number)), cmp.Compare(a.number, b.number))
	}) {
		whats := map[string]bool{}
		names := map[string]bool{}
		for at := range steps[s] {
			whats[at.what] = true
			name, _, _ := cutCollective(at.what)
			names[name] = true
		}
		if len(whats) < 2 {
			continue
		}
		places := slices.SortedFunc(maps.Keys(steps[s]), func(a, b place) int {
			return slices.Compare(steps[s][a], steps[s][b])
		})
		var parts []string
		for _, at := range places {
			verb := ""
			if len(parts) == 0 {
				verb = are(steps[s][at]) + " "
			}
			parts = append(parts, fmt.Sprintf("%s %sin %s%s", rankList(steps[s][at]), verb, at.what, inBrackets(at.where)))
		}
		rule := "all members must call the same collectives in the same order"
		if len(names) == 1 {
			rule = "all members must give the same root"
		}
		found = append(found, fmt.Sprintf("on %s, %s: %s", comm[s], strings.Join(parts, ", "), rule))
	}
	return bound(found)
}

// An absence is of a rank that is in a later collective without what others wait for in an earlier one.
type absence struct {
	context  uint32
	what, is string // the collective in which they wait, and that in which the rank is
	rank     int
}

// passed finds ranks that are in a later collective than those who wait for them. They took another part
// in the earlier one than these believe.
func passed(all []obstacle) []string {
	in := map[int][]obstacle{} // collectives, by rank
	for _, o := range all {
		if o.need.Collective != "" {
			in[o.rank] = append(in[o.rank], o)
		}
	}
	waiting := map[absence][]int{}
	var found []absence
	note := func(o, q obstacle) {
		x := absence{o.need.Context, o.need.Collective + inBrackets(o.wait.Where), q.need.Collective + inBrackets(q.wait.Where), q.rank}
		if waiting[x] == nil {
			found = append(found, x)
		}
		if !slices.Contains(waiting[x], o.rank) {
			waiting[x] = append(waiting[x], o.rank)
		}
	}
	for _, o := range all {
		if o.need.Collective == "" {
			continue
		}
		for _, p := range peers(o.need) {
			for _, q := range in[p] {
				if q.need.Context == o.need.Context && later(q.need.Collective, o.need.Collective) {
					note(o, q)
				}
			}
		}
	}
	var sentences []string
	for _, x := range found {
		verb := "waits"
		if len(waiting[x]) > 1 {
			verb = "wait"
		}
		did := "called another collective"
		if other := mayDiffer(x.what); other != "" {
			did = "gave another " + other + ", or called another collective"
		}
		sentences = append(sentences, fmt.Sprintf("rank %d is in %s without having done in %s what %s %s for: it %s", x.rank, x.is, x.what, rankList(waiting[x]), verb, did))
	}
	return bound(sentences)
}

// later tells whether a collective has a higher number than another.
func later(a, b string) bool {
	_, n, _ := cutCollective(a)
	_, m, _ := cutCollective(b)
	return m != "" && cmp.Or(cmp.Compare(len(n), len(m)), cmp.Compare(n, m)) > 0
}

// mayDiffer is in what ranks may disagree that call a collective, so that they exchange other messages:
// of another length, data may go another way. "" if they agree on it by calling it.
func mayDiffer(collective string) string {
	name, _, detail := cutCollective(collective)
	rooted, object := strings.HasPrefix(detail, ", root "), strings.HasSuffix(name, "Obj")
	switch {
	case rooted && object:
		return "root"
	case rooted:
		return "root or length"
	case object:
	case strings.HasPrefix(name, "All"), strings.HasPrefix(name, "ReduceScatter"), strings.HasSuffix(strings.ToLower(name), "scan"):
		return "length"
	}
	return ""
}

// cutCollective takes "Bcast number 3, root 0" apart: "Bcast", "3", ", root 0".
func cutCollective(c string) (name, number, detail string) {
	name, rest, ok := strings.Cut(c, " number ")
	if !ok {
		return c, "", ""
	}
	if i := strings.IndexByte(rest, ','); i >= 0 {
		return name, rest[:i], rest[i:]
	}
	return name, rest, ""
}

// cycleSentence names the ranks of a cycle in order.
func cycleSentence(cycle []int) string {
	if len(cycle) == 1 {
		return fmt.Sprintf("rank %d waits for itself", cycle[0])
	}
	var parts []string
	for i, r := range cycle {
		if len(cycle) > 16 && i == 8 {
			parts = append(parts, fmt.Sprintf("… (%d more)", len(cycle)-16))
		}
		if len(cycle) > 16 && i >= 8 && i < len(cycle)-8 {
			continue
		}
		parts = append(parts, fmt.Sprintf("rank %d", r))
	}
	parts = append(parts, fmt.Sprintf("rank %d", cycle[0]))
	return "each waits for the next: " + strings.Join(parts, " → ")
}

// deserted finds those who wait for ranks that have finished.
func (g graph) deserted(all []obstacle) []string {
	var found []string
	for _, o := range all {
		ps := peers(o.need)
		if o.need.Peer < 0 { // of any, it does not mean itself
			ps = slices.DeleteFunc(slices.Clone(ps), func(p int) bool { return p == o.rank })
		}
		if len(ps) == 0 || slices.ContainsFunc(ps, func(p int) bool { return g.ranks[p].State != "finished" }) {
			continue
		}
		call := o.wait.Op + inBrackets(o.wait.Where)
		gone := rankList(ps) + " " + have(ps)
		switch {
		case o.need.Collective != "":
			another := ""
			if other := mayDiffer(o.need.Collective); other != "" {
				another = ": unless it gave another " + other + " there"
			}
			found = append(found, fmt.Sprintf("%s finished without taking part in %s, in which rank %d waits%s%s", gone, o.need.Collective, o.rank, inBrackets(o.wait.Where), another))
		case o.need.What == control.NeedReceive:
			found = append(found, fmt.Sprintf("%s finished without receiving what rank %d sends in %s", gone, o.rank, call))
		default:
			found = append(found, fmt.Sprintf("%s finished without sending what rank %d waits for in %s", gone, o.rank, call))
		}
	}
	return bound(found)
}

// nearSentence tells of messages with the right tag that came from elsewhere.
func nearSentence(o obstacle) string {
	var has []string
	for _, m := range o.need.Near {
		text := fmt.Sprintf("from rank %d", m.Peer)
		if m.Comm != o.need.Comm {
			text += " on " + m.Comm
		}
		if !slices.Contains(has, text) {
			has = append(has, text)
		}
	}
	messages := "a message"
	if len(has) > 1 {
		messages = "messages"
	}
	return fmt.Sprintf("rank %d wants %s from %s on %s in %s, and has, unreceived and with that tag, %s %s: was that meant?",
		o.rank, tagPhrase(o.need.Tag), rankList(peers(o.need)), o.need.Comm, o.wait.Op+inBrackets(o.wait.Where), messages, strings.Join(has, " and "))
}

// misnamed finds receives for which a message did come, by another tag. Those of collectives are
// the library's.
func misnamed(all []obstacle) []string {
	var found []string
	for _, o := range all {
		if o.need.Collective != "" {
			continue
		}
		if len(o.need.Near) > 0 {
			found = append(found, nearSentence(o))
		}
		if len(o.need.Unexpected) == 0 {
			continue
		}
		tags := slices.Clone(o.need.Unexpected)
		slices.Sort(tags)
		tags = slices.Compact(tags)
		has := fmt.Sprintf("a message with tag %d: was that meant?", tags[0])
		if len(tags) > 1 {
			has = fmt.Sprintf("messages with tags %s: was one of them meant?", joinNumbers(tags))
		}
		found = append(found, fmt.Sprintf("rank %d wants tag %d from %s in %s, and has from there, unreceived, %s",
			o.rank, o.need.Tag, rankList(peers(o.need)), o.wait.Op+inBrackets(o.wait.Where), has))
	}
	return bound(found)
}
