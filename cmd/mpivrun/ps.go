package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A jobStatus is a job at a glance: what ps says as JSON.
type jobStatus struct {
	Name      string          `json:"name"`
	PID       int             `json:"pid"`     // of the agent
	Host      string          `json:"host"`    // where the agent is
	Program   string          `json:"program"` // the first one's command line
	Since     time.Time       `json:"since"`
	State     string          `json:"state"` // "starting", "running" or "ending"
	Ranks     int             `json:"ranks"`
	Processes []processStatus `json:"processes"`
}

// A processStatus is one process of a job at a glance.
type processStatus struct {
	Host  string         `json:"host"`
	PID   int            `json:"pid"`
	Ranks []int          `json:"ranks"`           // empty: it is a spare, be it that a rank has left it, or has exited
	State string         `json:"state"`           // "starting", "running", "finished" or "exited"
	Exit  string         `json:"exit,omitempty"`  // how it ended
	Doing map[int]string `json:"doing"`           // what each rank does, as far as is known
	Links []linkStatus   `json:"links,omitempty"` // with --links
}

// A linkStatus is how a process talks to another, and what the link between their hosts promises.
type linkStatus struct {
	events.LinkReading
	Promised float64 `json:"promised,omitempty"` // bytes a second, for the largest messages for which it does
	Broken   bool    `json:"broken,omitempty"`   // the promise
}

// statusOf is the job of s at a glance, which is called name here. promised may be nil.
func statusOf(name string, s *events.State, links bool, promised *agent.Contracts) jobStatus {
	j := jobStatus{Name: name, PID: s.Job.PID, Host: s.Job.Host, Program: s.Job.Programs[0], Since: s.Began,
		State: string(s.Phase), Ranks: s.Job.Ranks}
	if s.Phase == events.PhaseStarting && allRun(s) {
		j.State = string(events.PhaseRunning) // no mpiv programs, so far
	}
	for i := range s.Processes {
		p := &s.Processes[i]
		ps := processStatus{Host: p.Host, PID: p.PID, Ranks: append([]int{}, p.Ranks...), State: string(p.Phase), Exit: p.Exit, Doing: map[int]string{}}
		for _, r := range p.Ranks {
			if text := doing(p, r); text != "" {
				ps.Doing[r] = text
			}
		}
		if links && p.Reading != nil {
			for _, l := range p.Reading.Links {
				is := linkStatus{LinkReading: l}
				if l.Peer >= 0 && l.Peer < len(s.Processes) {
					is.Promised, is.Broken = promise(promised, p.Host, s.Processes[l.Peer].Host)
				}
				ps.Links = append(ps.Links, is)
			}
		}
		j.Processes = append(j.Processes, ps)
	}
	return j
}

func allRun(s *events.State) bool {
	return !slices.ContainsFunc(s.Processes, func(p events.Process) bool { return p.Phase == events.PhaseStarting })
}

// doing is what a rank of p does; empty if that is not known.
func doing(p *events.Process, rank int) string {
	k := p.Rank(rank)
	switch {
	case p.Failed[rank] != "":
		return "failed: " + printable(p.Failed[rank])
	case p.Finished[rank]:
		return "finished"
	case k == nil:
		return ""
	case k.Op == "":
		return printable(k.State)
	}
	text := "in " + printable(k.Op)
	if k.Where != "" {
		text += " (" + printable(k.Where) + ")"
	}
	if k.Waits > 0 {
		text += " for " + span(time.Duration(k.Waits))
	}
	return text
}

// ps lists the running jobs, or the ranks or links of one.
func ps(w io.Writer, args []string) error {
	links := slices.Contains(args, "--links") || slices.Contains(args, "-links")
	args = slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "--links" || a == "-links" })
	name, asJSON, err := view("ps", args)
	if err != nil {
		return err
	}
	if name != "" || links {
		return psJob(w, name, asJSON, links)
	}
	jobs, err := rundir.Jobs()
	if err != nil {
		return err
	}
	all := askAll(jobs)
	if asJSON {
		return printJSON(w, all)
	}
	return psJobs(w, all)
}

// psJobs lists jobs.
func psJobs(w io.Writer, all []jobStatus) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tRANKS\tPROCESSES\tSTATE\tTIME\tPID\tPROGRAM")
	for _, s := range all {
		ended := 0
		for _, p := range s.Processes {
			if p.State == string(events.PhaseExited) {
				ended++
			}
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%v\t%d\t%s\n", s.Name, s.Ranks, livingText(len(s.Processes), ended), s.State,
			time.Since(s.Since).Round(time.Second), s.PID, printable(s.Program))
	}
	return t.Flush()
}

// livingText is how many of n processes live, and how many have ended: "4", "4, 1 ended".
func livingText(n, ended int) string {
	text := fmt.Sprint(n - ended)
	if ended > 0 {
		text += fmt.Sprintf(", %d ended", ended)
	}
	return text
}

// askAll is how jobs are, but for those that end meanwhile. They are asked at once: one that
// does not answer takes its time.
func askAll(jobs []rundir.Job) []jobStatus {
	answers := make([]*jobStatus, len(jobs))
	var asking sync.WaitGroup
	for i, j := range jobs {
		asking.Go(func() {
			s := jobStatus{Name: j.Name, Since: j.Made, State: "does not answer"}
			ans, err := agent.Ask(j.Dir, agent.Question{Op: "ps"})
			if _, gone := os.Stat(rundir.AskSocket(j.Dir)); err != nil && errors.Is(gone, os.ErrNotExist) {
				return // before its directory, in which there may be much
			}
			if state := ans.State(); err == nil && state != nil {
				s = statusOf(j.Name, state, false, nil)
			}
			answers[i] = &s
		})
	}
	asking.Wait()
	all := []jobStatus{}
	for _, s := range answers {
		if s != nil {
			all = append(all, *s)
		}
	}
	return all
}

func psJob(w io.Writer, name string, asJSON, links bool) error {
	j, err := choose(name)
	if err != nil {
		return err
	}
	ans, err := agent.Ask(j.Dir, agent.Question{Op: "ps"})
	if err != nil {
		return err
	}
	s := ans.State()
	if s == nil {
		return fmt.Errorf("job %s has not begun, or mpivrun here and there are of different versions", j.Name)
	}
	var promised *agent.Contracts
	if links {
		promised, _ = contractsOf(j.Name) // where nothing watches the links there are none
	}
	if asJSON {
		return printJSON(w, statusOf(j.Name, s, links, promised))
	}
	if links {
		return psLinks(w, s, promised)
	}
	return psRanks(w, s, ans.Silent)
}

// psRanks lists what each rank does, of which those of silent do not answer, and then the
// processes that have none.
func psRanks(w io.Writer, s *events.State, silent []int) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RANK\tHOST\tPID\tPROCESS\tRANK IS")
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, r := range p.Ranks {
			is := doing(p, r)
			switch {
			case p.Exit != "":
				is = p.Exit
			case slices.Contains(silent, r):
				is = "(does not answer)"
			case is == "":
				is = "-"
			}
			fmt.Fprintf(t, "%d\t%s\t%d\t%s\t%s\n", r, p.Host, p.PID, p.Phase, is)
		}
	}
	for i := range s.Processes {
		if p := &s.Processes[i]; len(p.Ranks) == 0 {
			is := "spare"
			if p.Exit != "" {
				is = p.Exit
			}
			fmt.Fprintf(t, "-\t%s\t%d\t%s\t%s: %s\n", p.Host, p.PID, p.Phase, whose(p), is)
		}
	}
	return t.Flush()
}

// whose names a process by its ranks, or, where it has none, by its number.
func whose(p *events.Process) string {
	if len(p.Ranks) == 0 {
		return fmt.Sprintf("process %d", p.Index)
	}
	return ranksText(p.Ranks)
}

// linksOf is the links of p, as last read, between processes that run.
func linksOf(s *events.State, p *events.Process) []events.LinkReading {
	if p.Reading == nil || p.Phase == events.PhaseExited {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.Reading.Links), func(l events.LinkReading) bool {
		return l.Peer < 0 || l.Peer >= len(s.Processes) || s.Processes[l.Peer].Phase == events.PhaseExited
	})
}

// psLinks lists over what each process talks to others, and what it exchanged.
func psLinks(w io.Writer, s *events.State, promised *agent.Contracts) error {
	var all, whys strings.Builder
	t := tabwriter.NewWriter(&all, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "RANKS\tWITH\tPATH\tSENT\t\tRECEIVED\t\tRESENT\tQUEUE\tLOG\tRTT\tRATE\tPROMISED")
	n := 0
	for i := range s.Processes {
		p := &s.Processes[i]
		for _, l := range linksOf(s, p) {
			n++
			with := whose(&s.Processes[l.Peer])
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%s\t%s\t%s\n", whose(p), with, pathOf(l),
				amount(float64(l.SentMessages)), ofBytes(float64(l.SentBytes)), amount(float64(l.ReceivedMessages)), ofBytes(float64(l.ReceivedBytes)),
				l.Resent, l.Queued, ofBytes(float64(l.Log)), rttOf(l), rateOf(l), promiseOf(promised, p.Host, s.Processes[l.Peer].Host))
			whys.WriteString(whyOf(s, whose(p), with, l))
		}
	}
	t.Flush()
	if n == 0 {
		_, err := fmt.Fprintln(w, "no process has talked to another")
		return err
	}
	_, err := io.WriteString(w, all.String()+whys.String())
	return err
}

// whyOf says why the path in use is in use, and what else there is.
func whyOf(s *events.State, from, to string, l events.LinkReading) string {
	if l.Why == "" && len(l.Candidates) < 2 && l.Network != "" {
		return ""
	}
	text := fmt.Sprintf("%s with %s: %s", from, to, pathOf(l))
	if !l.Since.IsZero() {
		text += " for " + span(s.At.Sub(l.Since))
	}
	if l.Switches > 0 {
		text += ", after " + count(l.Switches, "switch")
	}
	if l.Why != "" {
		text += ": " + printable(l.Why)
	}
	text += "\n"
	for _, c := range l.Candidates {
		text += fmt.Sprintf("  %s %s %s: %s\n", c.Network, c.Class, printable(c.Remote), printable(c.State))
	}
	return text
}

func pathOf(l events.LinkReading) string {
	if l.Network == "" {
		return "none"
	}
	return l.Network + " " + l.Class
}

// promise is what the link from one host to another promises, for the largest messages
// for which it does, and whether that is broken; 0: nothing.
func promise(c *agent.Contracts, from, to string) (rate float64, broken bool) {
	if c == nil {
		return 0, false
	}
	for _, s := range c.Links {
		if s.Link.From == from && s.Link.To == to && s.Rate != 0 {
			rate, broken = s.Rate, !s.Broken.IsZero()
		}
	}
	return rate, broken
}

func promiseOf(c *agent.Contracts, from, to string) string {
	r, broken := promise(c, from, to)
	switch {
	case r == 0:
		return "-"
	case broken:
		return rate(r) + ", broken"
	}
	return rate(r)
}

func rttOf(l events.LinkReading) string {
	if l.RTT == 0 {
		return "-"
	}
	return span(time.Duration(l.RTT))
}

func rateOf(l events.LinkReading) string {
	if l.Rate == 0 {
		return "-"
	}
	return ofBytes(l.Rate) + "/s"
}
