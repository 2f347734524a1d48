package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
)

const addUsage = "mpivrun add HOST[:SLOTS] [JOB]"

// add has a host join a running job.
func add(w io.Writer, args []string) error {
	for _, word := range args {
		if strings.HasPrefix(word, "-") {
			return usage("mpivrun add knows no option %s; say %s", word, addUsage)
		}
	}
	name := ""
	switch len(args) {
	case 0:
		return usage("which host? Say %s", addUsage)
	case 1:
	case 2:
		name = args[1]
	default:
		return usage("mpivrun add takes one host and one job; say %s", addUsage)
	}
	h, err := parseHost(args[0])
	if err != nil {
		return usage("%v; say %s", err, addUsage)
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	ans, err := agent.Ask(j.Dir, agent.Question{Op: "add", Host: h.Name, Slots: h.Slots})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, ans.Decision)
	return nil
}
