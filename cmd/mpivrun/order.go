package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
)

// giveOrder gives a running job an order about one of its hosts: drain, cordon or uncordon.
func giveOrder(w io.Writer, op string, args []string) error {
	form := "mpivrun " + op + " HOST [JOB]"
	if op == "drain" {
		form = "mpivrun drain [--wait] HOST [JOB]"
	}
	wait := false
	var words []string
	for _, word := range args {
		switch {
		case op == "drain" && (word == "--wait" || word == "-wait"):
			wait = true
		case strings.HasPrefix(word, "-"):
			return usage("mpivrun %s knows no option %s; say %s", op, word, form)
		default:
			words = append(words, word)
		}
	}
	name := ""
	switch len(words) {
	case 0:
		return usage("which host? Say %s", form)
	case 1:
	case 2:
		name = words[1]
	default:
		return usage("mpivrun %s takes one host and one job", op)
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	ans, err := agent.Ask(j.Dir, agent.Question{Op: op, Host: words[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, ans.Decision)
	if wait {
		return awaitEmpty(w, j, ans.Host)
	}
	return nil
}

// How often it is looked whether a host is empty, and said who is still there.
const (
	emptyLook = 100 * time.Millisecond
	emptySay  = 5 * time.Second
)

// awaitEmpty waits until no rank is on a host any more. A job that is gone from this host need not have ended: only its
// agent here may have, and where hosts share a file system others answer for it.
func awaitEmpty(w io.Writer, j rundir.Job, host string) error {
	for said := time.Now(); ; time.Sleep(emptyLook) {
		ans, err := agent.Ask(j.Dir, agent.Question{Op: "ps"})
		if _, gone := os.Stat(j.Dir); err != nil && errors.Is(gone, os.ErrNotExist) {
			again, found, err := rundir.Find(j.Name)
			if err != nil || !found {
				return fmt.Errorf("job %s is not on this host any more: it has ended, or only its agent here has; who is still on host %s is not known, mpivrun ps on another host of the job tells", j.Name, host)
			}
			j = again
			continue
		}
		still := ""
		if s := ans.State(); err != nil {
			still = fmt.Sprintf("who is still on host %s is not known: %v", host, err) // it may have another head soon
		} else if s != nil {
			left := ranksOn(s, host)
			if len(left) == 0 {
				fmt.Fprintf(w, "no rank is on host %s any more\n", host)
				return nil
			}
			still = fmt.Sprintf("still on host %s: ranks %s", host, ranksText(left))
		}
		if time.Since(said) >= emptySay && still != "" {
			said = time.Now()
			fmt.Fprintln(w, still)
		}
	}
}

// ranksOn is the ranks that live on a host, ascending.
func ranksOn(s *events.State, host string) (ranks []int) {
	for i := range s.Processes {
		p := &s.Processes[i]
		if p.Host != host || p.Exit != "" {
			continue
		}
		for _, r := range p.Ranks {
			if !p.Finished[r] {
				ranks = append(ranks, r)
			}
		}
	}
	slices.Sort(ranks)
	return ranks
}
