package waits

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// maxNeeds bounds how many needs of one call are told.
const maxNeeds = 4

// waitSentence tells what rank r waits for in w.
func waitSentence(now time.Time, r int, w control.Wait) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rank %d waits", r)
	if w.Since > 0 {
		b.WriteString(" " + duration(now.Sub(time.Unix(0, w.Since))))
	}
	b.WriteString(" in " + w.Op + inBrackets(w.Where))
	join := ", and "
	if w.Any {
		join = ", or "
	}
	for i, n := range w.Needs {
		if i == maxNeeds {
			fmt.Fprintf(&b, "%s%s", join, count(len(w.Needs)-i, "more"))
			break
		}
		if i > 0 {
			b.WriteString(join)
		} else {
			b.WriteString(" ")
		}
		b.WriteString(needPhrase(w, n))
	}
	if w.Until > 0 {
		b.WriteString(", for " + duration(time.Unix(0, w.Until).Sub(now)) + " more")
	}
	return b.String()
}

// For tells what w waits for: "for a message from rank 0, tag 5, on world".
func For(w control.Wait) string {
	if len(w.Needs) == 0 {
		return ""
	}
	text := needPhrase(w, w.Needs[0])
	if more := len(w.Needs) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// needPhrase tells of one need: "for a message from rank 0, tag 5, on world".
func needPhrase(w control.Wait, n control.Need) string {
	who := rankList(peers(n))
	switch {
	case n.Peer < 0 && len(n.Peers) == 0:
		who = "any rank"
	case n.Peer < 0 && len(n.Peers) > 1:
		who = "any of " + who
	}
	var text string
	switch {
	case n.What == control.NeedSave:
		return fmt.Sprintf("for %s to save its state: what is kept for it until then has filled the log (--log-bytes, --log-disk)", who)
	case n.What == control.NeedTurn:
		return fmt.Sprintf("for its turn to send to %s: before its process died it sent something else first", who)
	case n.What == control.NeedDelivery && n.Collective != "":
		text = fmt.Sprintf("for the arrival of what it sends to %s in %s", who, n.Collective)
	case n.What == control.NeedArrival && n.Collective != "":
		text = fmt.Sprintf("for the rest of what %s sends in %s", who, n.Collective)
	case n.What == control.NeedDelivery:
		text = fmt.Sprintf("for the arrival of its message to %s, %s", who, tagPhrase(n.Tag))
	case n.What == control.NeedArrival:
		text = fmt.Sprintf("for the rest of a message from %s, %s", who, tagPhrase(n.Tag))
	case n.Collective != "":
		text = fmt.Sprintf("for %s to take part in %s", who, n.Collective)
	case n.What == control.NeedGoroutine:
		return "for another goroutine"
	case n.What == control.NeedEvent:
		return "for another goroutine or a timer"
	case n.What == control.NeedReceive:
		text = fmt.Sprintf("for %s to receive its message, %s", who, tagPhrase(n.Tag))
	default:
		text = fmt.Sprintf("for a message from %s, %s", who, tagPhrase(n.Tag))
	}
	if n.Comm != "" {
		if n.Collective == "" {
			text += ","
		}
		text += " on " + n.Comm
	}
	if n.Where != "" && n.Where != w.Where {
		text += " (begun at " + n.Where + ")"
	}
	return text
}

func tagPhrase(tag int) string {
	if tag < 0 {
		return "any tag"
	}
	return "tag " + strconv.Itoa(tag)
}

func inBrackets(where string) string {
	if where == "" {
		return ""
	}
	return " (" + where + ")"
}

// duration is d for people, to two digits or so.
func duration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 100*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// rankList names ranks: "rank 3", "ranks 0, 2-5".
func rankList(ranks []int) string {
	if len(ranks) == 1 {
		return "rank " + strconv.Itoa(ranks[0])
	}
	ranks = slices.Clone(ranks)
	slices.Sort(ranks)
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		part := strconv.Itoa(ranks[i])
		if j > i {
			part += "-" + strconv.Itoa(ranks[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return "ranks " + strings.Join(parts, ", ")
}

func joinNumbers(ns []int) string {
	parts := make([]string, len(ns))
	for i, n := range ns {
		parts[i] = strconv.Itoa(n)
	}
	return strings.Join(parts, ", ")
}

func are(ranks []int) string {
	if len(ranks) == 1 {
		return "is"
	}
	return "are"
}

func have(ranks []int) string {
	if len(ranks) == 1 {
		return "has"
	}
	return "have"
}

// count is "1 more call", "3 more calls".
func count(n int, what string) string {
	if n != 1 && what != "more" {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}
