package agent

import (
	"fmt"
	"strings"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/leader"
)

// decided tells of a decision, or of what is new about one.
func (a *Agent) decided(r leader.Record) {
	text := decisionLine(r)
	a.emit(events.Event{Kind: events.Decided, Text: text, Decision: &r})
	if o, waits := a.policy.refs[r.Ref]; waits && !adds(r) {
		delete(a.policy.refs, r.Ref)
		switch {
		case r.Chosen == "refused":
			o.reply <- Answer{Error: r.Why}
		case r.Chosen != leader.ChosenAdd:
			o.answer(text)
		case r.Plans[0].End != adapt.Finished:
			o.reply <- Answer{Error: r.Plans[0].Why}
		case r.Why != "":
			o.answer(text + "; " + r.Why)
		default:
			o.answer(text)
		}
	}
	before, again := a.policy.said[r.ID]
	if again {
		text = newsLine(before, r)
	}
	if len(a.policy.said) >= saidMost {
		clear(a.policy.said) // a line may then be said twice
	}
	a.policy.said[r.ID] = r
	switch {
	case text == "":
	case r.Chosen == "nothing" || len(r.Plans) == 0 && r.Ref != "":
		a.detail("%s", text)
	default:
		a.warn("%s", text)
	}
}

// adds tells whether r adds a host that is not there yet: who asked is told when it is.
func adds(r leader.Record) bool {
	return r.Chosen == leader.ChosenAdd && r.Plans[0].End == ""
}

// decisionLine is r in one line for people.
func decisionLine(r leader.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "decision %d: ", r.ID)
	if r.Blamed != "" {
		fmt.Fprintf(&b, "%s, %s", r.Blamed, r.Verdict)
		if len(r.Reasons) > 0 {
			fmt.Fprintf(&b, " (%s)", strings.Join(r.Reasons, "; "))
		}
	} else {
		b.WriteString(strings.Join(r.Seen, "; "))
	}
	fmt.Fprintf(&b, ": %s", r.Chosen)
	for _, p := range r.Plans {
		fmt.Fprintf(&b, "; %s", planText(p))
	}
	if len(r.Plans) == 0 && r.Why != "" {
		fmt.Fprintf(&b, ", for %s", r.Why)
	}
	if r.Measured != nil {
		fmt.Fprintf(&b, "; %v", *r.Measured)
	}
	return b.String()
}

// newsLine is what is in r and was not in before, the same decision; empty: nothing.
func newsLine(before, r leader.Record) string {
	var news []string
	if r.Chosen != before.Chosen {
		news = append(news, r.Chosen)
	}
	for i, p := range r.Plans {
		if i >= len(before.Plans) || before.Plans[i] != p {
			news = append(news, planText(p))
		}
	}
	if r.Why != "" && r.Why != before.Why {
		news = append(news, r.Why)
	}
	if r.Measured != nil && before.Measured == nil {
		news = append(news, r.Measured.String())
	}
	if news == nil {
		return ""
	}
	return fmt.Sprintf("decision %d: %s", r.ID, strings.Join(news, "; "))
}

// planText is a plan, and how it ended.
func planText(p leader.Planned) string {
	text := p.What
	if p.End != "" {
		text += fmt.Sprintf(": %s in %.2f s", p.End, p.Took)
	}
	if p.Stood > 0 {
		text += fmt.Sprintf(", it stood still for %.3f s", p.Stood)
	}
	if p.Why != "" {
		text += fmt.Sprintf(" (%s)", p.Why)
	}
	return text
}
