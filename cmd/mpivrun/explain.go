package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
	"github.com/mpiv/mpiv/internal/waits"
)

const explainUsage = "say mpivrun explain [--json] [DECISION] [--job JOB | --from FILE]"

// An explaining is what mpivrun explain is asked.
type explaining struct {
	job      string
	from     string // a file of events
	asJSON   bool
	decision uint64 // 0: all
}

// An explanation is the answer as JSON. From a file there is but the audit.
type explanation struct {
	Explanation *waits.Explanation `json:"explanation,omitempty"`
	Proven      bool               `json:"proven"`           // the deadlock in it was seen twice
	Silent      []int              `json:"silent,omitempty"` // ranks whose process did not answer in time
	Audit       *events.Audit      `json:"audit"`
}

func parseExplain(args []string) (q explaining, err error) {
	for i := 0; i < len(args); i++ {
		word, value, joined := strings.Cut(args[i], "=")
		switch name := strings.TrimLeft(word, "-"); {
		case !strings.HasPrefix(word, "-"):
			n, err := strconv.ParseUint(args[i], 10, 64)
			switch {
			case err == nil && q.decision == 0 && n > 0:
				q.decision = n
			case err != nil && q.job == "":
				q.job = args[i]
			default:
				return q, usage("mpivrun explain takes one job and the number of one decision: %s", explainUsage)
			}
		case name == "json" && !joined:
			q.asJSON = true
		case name == "job" || name == "from":
			if !joined {
				if i++; i == len(args) {
					return q, usage("%s needs a value: %s", word, explainUsage)
				}
				value = args[i]
			}
			if value == "" {
				return q, usage("%s: the value is empty", word)
			}
			if name == "job" {
				q.job = value
			} else {
				q.from = value
			}
		default:
			return q, usage("mpivrun explain knows no option %s: %s", word, explainUsage)
		}
	}
	if q.from != "" && q.job != "" {
		return q, usage("--from is of a job that has ended or not, so no job is named beside it: %s", explainUsage)
	}
	return q, nil
}

// explain says who waits for whom, and why ranks are where they are.
func explain(w io.Writer, args []string) error {
	q, err := parseExplain(args)
	if err != nil {
		return err
	}
	var ans agent.Answer
	name := q.from
	if q.from != "" {
		ans.Audit, err = auditOf(q.from)
	} else {
		var j rundir.Job
		if j, err = choose(q.job); err == nil {
			name = "job " + j.Name
			ans, err = agent.Ask(j.Dir, agent.Question{Op: "explain"})
		}
	}
	if err != nil {
		return err
	}
	if ans.Audit == nil {
		return fmt.Errorf("%s did not say: mpivrun here and there are of different versions", name)
	}
	if q.decision > 0 {
		r := ans.Audit.Decision(q.decision)
		switch {
		case r == nil:
			return noDecision(name, ans.Audit, q.decision)
		case q.asJSON:
			return printJSON(w, r)
		}
		_, err := io.WriteString(w, ans.Audit.TextOf(r))
		return err
	}
	if q.asJSON {
		return printJSON(w, explanation{ans.Explanation, ans.Proven, ans.Silent, ans.Audit})
	}
	if ans.Explanation != nil {
		head := name
		if ans.Proven {
			head += " is in deadlock"
		}
		fmt.Fprintf(w, "%s:\n%s\n", head, ans.Explanation)
	}
	if len(ans.Silent) > 0 {
		fmt.Fprintf(w, "  no answer from the process of rank %s: is it stopped, or starved?\n", strings.Trim(fmt.Sprint(ans.Silent), "[]"))
	}
	text := ans.Audit.String()
	if text == "" && q.from != "" {
		text = "nothing was decided, and no rank has gone anywhere\n"
	}
	_, err = io.WriteString(w, text)
	return err
}

func noDecision(name string, a *events.Audit, id uint64) error {
	if len(a.Decisions) == 0 {
		return fmt.Errorf("%s has made no decision", name)
	}
	return fmt.Errorf("%s: there is no decision %d; there are %d to %d", name, id, a.Decisions[0].ID, a.Decisions[len(a.Decisions)-1].ID)
}

// auditOf reads what --events wrote.
func auditOf(path string) (*events.Audit, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the events: %w", err)
	}
	defer f.Close()
	a, in := &events.Audit{}, bufio.NewReaderSize(f, 64<<10)
	for n := 1; ; n++ {
		line, err := in.ReadBytes('\n')
		if err != nil {
			if !errors.Is(err, io.EOF) {
				return nil, fmt.Errorf("read the events: %w", err)
			}
			break // maybe with half a line: the job goes on, or mpivrun was killed
		}
		e, err := events.Parse(line)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, n, brief.Error(err))
		}
		a.Apply(e)
	}
	if a.Began.IsZero() {
		return nil, fmt.Errorf("%s has no events of a job: give mpivrun --events FILE", path)
	}
	return a, nil
}
