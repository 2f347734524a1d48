package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
)

// giveOrder gives a running job an order about one of its hosts: drain, cordon or uncordon.
func giveOrder(w io.Writer, op string, args []string) error {
	for _, word := range args {
		if strings.HasPrefix(word, "-") {
			return usage("mpivrun %s knows no option %s; say mpivrun %s HOST [JOB]", op, word, op)
		}
	}
	name := ""
	switch len(args) {
	case 0:
		return usage("which host? Say mpivrun %s HOST [JOB]", op)
	case 1:
	case 2:
		name = args[1]
	default:
		return usage("mpivrun %s takes one host and one job", op)
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	ans, err := agent.Ask(j.Dir, agent.Question{Op: op, Host: args[0]})
	if err != nil {
		return err
	}
	fmt.Fprintln(w, ans.Decision)
	return nil
}
