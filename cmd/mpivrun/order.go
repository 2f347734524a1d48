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
)

// giveOrder gives a running job an order about one of its hosts: drain, cordon or uncordon.
func giveOrder(w io.Writer, op string, args []string) error {
	wait := false
	words := slices.DeleteFunc(slices.Clone(args), func(word string) bool {
		wait = wait || op == "drain" && word == "--wait"
		return op == "drain" && word == "--wait"
	})
	form := "mpivrun " + op + " HOST [JOB]"
	if op == "drain" {
		form = "mpivrun drain [--wait] HOST [JOB]"
	}
	for _, word := range words {
		if strings.HasPrefix(word, "-") {
			return usage("mpivrun %s knows no option %s; say %s", op, word, form)
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
		return awaitEmpty(w, j, words[0])
	}
	return nil
}

// How often it is looked whether a host is empty, and said who is still there.
const (
	emptyLook = 100 * time.Millisecond
	emptySay  = 5 * time.Second
)

// awaitEmpty waits until no rank is on a host any more, or the job has ended.
func awaitEmpty(w io.Writer, j agent.Found, host string) error {
	for said := time.Now(); ; time.Sleep(emptyLook) {
		ans, err := agent.Ask(j.Dir, agent.Question{Op: "ps"})
		if _, gone := os.Stat(j.Dir); err != nil && errors.Is(gone, os.ErrNotExist) {
			fmt.Fprintf(w, "job %s has ended\n", j.Name)
			return nil
		}
		s := ans.State()
		switch {
		case errors.Is(err, agent.ErrNoHead), err == nil && s == nil:
			continue
		case err != nil:
			return fmt.Errorf("wait until no rank is on host %s: %w", host, err)
		}
		left := ranksOn(s, host)
		if len(left) == 0 {
			fmt.Fprintf(w, "no rank is on host %s any more\n", host)
			return nil
		}
		if time.Since(said) >= emptySay {
			said = time.Now()
			fmt.Fprintf(w, "still on host %s: ranks %s\n", host, ranksText(left))
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
