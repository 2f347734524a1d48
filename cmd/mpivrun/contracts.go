package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/sensors"
)

const contractsUsage = "say mpivrun contracts [--json] [JOB], or mpivrun contracts [--json] FILE [FILE]"

// contracts says what the links of a job, or of a file, promise, or what two of these do
// not have in common.
func contracts(w io.Writer, args []string) error {
	var words []string
	asJSON := false
	for _, a := range args {
		switch {
		case a == "--json" || a == "-json":
			asJSON = true
		case strings.HasPrefix(a, "-"):
			return usage("mpivrun contracts knows no option %s; %s", a, contractsUsage)
		default:
			words = append(words, a)
		}
	}
	switch {
	case len(words) > 2:
		return usage("mpivrun contracts takes two files at most; %s", contractsUsage)
	case len(words) == 2:
		return compareContracts(w, words[0], words[1], asJSON)
	case len(words) == 1 && isFile(words[0]):
		c, err := loadContract(words[0])
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(w, c.Promises)
		}
		return printPromises(w, c)
	}
	name := ""
	if len(words) == 1 {
		name = words[0]
	}
	c, err := contractsOf(name)
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(w, c)
	}
	return printStandings(w, c, time.Now())
}

// isFile tells a file from the name of a job.
func isFile(word string) bool {
	_, err := os.Stat(word)
	return err == nil || strings.Contains(word, "/")
}

func loadContract(path string) (sensors.Contract, error) {
	f, err := os.Open(path)
	if err != nil {
		return sensors.Contract{}, err
	}
	defer f.Close()
	c, err := sensors.Load(f)
	if err != nil {
		return c, fmt.Errorf("%s: %w", path, brief.Error(err))
	}
	return c, nil
}

// contractsOf asks the job called name, which is no file, or the only one.
func contractsOf(name string) (*agent.Contracts, error) {
	j, err := choose(name)
	if err != nil && name != "" {
		err = fmt.Errorf("%s is no file here, and %w", name, err)
	}
	if err != nil {
		return nil, err
	}
	ans, err := agent.Ask(j.Dir, agent.Question{Op: "contracts"})
	if err != nil {
		return nil, err
	}
	if ans.Contracts == nil {
		return nil, fmt.Errorf("job %s gives no answer to that: mpivrun here and there are of different versions", j.Name)
	}
	return ans.Contracts, nil
}

func printPromises(w io.Writer, c sensors.Contract) error {
	if len(c.Promises) == 0 {
		_, err := fmt.Fprintln(w, "nothing is promised")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "LINK\tSIZE\tPROMISED\tROUND TRIP\tSURE\tLEARNED\tDOUBT")
	for _, p := range c.Promises {
		learned, doubt := "-", "-"
		if !p.Learned.IsZero() {
			learned = p.Learned.Local().Format(time.DateTime)
		}
		if p.Doubt != "" {
			doubt = printable(p.Doubt)
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%s\t%s\t%s\n", printable(p.Link.String()), p.Size, rate(p.Rate), roundTrip(p), orDash(p.Sure()), learned, doubt)
	}
	return t.Flush()
}

func printStandings(w io.Writer, c *agent.Contracts, now time.Time) error {
	if len(c.Links) == 0 {
		_, err := fmt.Fprintln(w, "no ranks of different hosts have talked to each other yet")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "LINK\tSIZE\tPROMISED\tTOLERATED\tSEEN\tROUND TRIP\tSURE\tSINCE\tCONTRACT IS")
	for _, s := range c.Links {
		since := "-"
		if !s.Learned.IsZero() {
			since = span(now.Sub(s.Learned))
		}
		fmt.Fprintf(t, "%s\t%v\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", printable(s.Link.String()), s.Size, rate(s.Rate), rate(s.Least), rate(s.Seen),
			roundTrip(s.Promise), orDash(s.Sure()), since, standing(s, now))
	}
	return t.Flush()
}

// seenLately is for how long what was seen of a link is how it is. Its ranks may have moved away.
const seenLately = 5 * time.Second

// standing says how a contract stands, in few words.
func standing(s sensors.Standing, now time.Time) string {
	var is string
	switch {
	case !s.Broken.IsZero():
		is = "broken for " + span(now.Sub(s.Broken))
		if ago := now.Sub(s.SeenAt); !s.SeenAt.IsZero() && ago >= seenLately {
			is = "broken when it was seen last, " + span(ago) + " ago"
		}
	case s.Rate == 0 && s.Learning == 0:
		is = "not known: too little was sent"
	case s.Rate == 0:
		is = fmt.Sprintf("learned, from %d readings so far", s.Learning)
	case s.ByHand && s.SeenAt.IsZero():
		is = "not judged yet: it was never the limit"
	case s.Breaches > 0:
		is = "kept again, after " + count(s.Breaches, "breach")
	default:
		is = "kept"
	}
	if s.ByHand {
		is += ", set by hand"
	}
	if s.Doubt != "" {
		is += "; in doubt: " + printable(s.Doubt)
	}
	return is
}

// compareContracts says what two files, or jobs, do not promise alike.
func compareContracts(w io.Writer, first, second string, asJSON bool) error {
	before, err := contractCalled(first)
	if err != nil {
		return err
	}
	after, err := contractCalled(second)
	if err != nil {
		return err
	}
	all := sensors.Compare(before, after)
	if asJSON {
		if all == nil {
			all = []sensors.Difference{}
		}
		return printJSON(w, all)
	}
	for _, d := range all {
		fmt.Fprintln(w, printable(d.String()))
	}
	same := len(before.Promises)
	for _, d := range all {
		if d.Before != nil {
			same--
		}
	}
	are := "are"
	if same == 1 {
		are = "is"
	}
	_, err = fmt.Fprintf(w, "%s %s the same, within what each scatters\n", count(same, "promise"), are)
	return err
}

// contractCalled is that of a file, or what a job has learned so far.
func contractCalled(word string) (sensors.Contract, error) {
	if isFile(word) {
		return loadContract(word)
	}
	c, err := contractsOf(word)
	if err != nil {
		return sensors.Contract{}, err
	}
	var learned sensors.Contract
	for _, s := range c.Links {
		if s.Rate > 0 && !s.ByHand {
			learned.Promises = append(learned.Promises, s.Promise)
		}
	}
	return learned, nil
}

func rate(r float64) string {
	if r == 0 {
		return "-"
	}
	return ofBytes(r) + "/s"
}

func roundTrip(p sensors.Promise) string {
	if p.RTT == 0 {
		return "-"
	}
	return span(p.Usual())
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
