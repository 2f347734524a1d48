package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
)

const moveUsage = "say mpivrun move RANK [--to HOST] [JOB]"

// move takes a rank of a running job to a spare process.
func move(w io.Writer, args []string) error {
	q := agent.Question{Op: "move", Rank: -1}
	name := ""
	for i := 0; i < len(args); i++ {
		word, value, joined := strings.Cut(args[i], "=")
		switch {
		case word == "--to" || word == "-to":
			if !joined {
				if i++; i == len(args) {
					return usage("%s needs a value: %s", word, moveUsage)
				}
				value = args[i]
			}
			if value == "" {
				return usage("%s: the value is empty", word)
			}
			q.Host = value
		case strings.HasPrefix(word, "-"):
			return usage("mpivrun move knows no option %s; %s", word, moveUsage)
		case q.Rank < 0:
			n, err := strconv.Atoi(args[i])
			if err != nil || n < 0 {
				return usage("mpivrun move wants the number of a rank, not %q: %s", args[i], moveUsage)
			}
			q.Rank = n
		case name == "":
			name = args[i]
		default:
			return usage("mpivrun move takes one rank and one job")
		}
	}
	if q.Rank < 0 {
		return usage("which rank? S%s", moveUsage[1:])
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	ans, err := agent.Ask(j.Dir, q)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "rank %d goes on in process %d on host %s\n", q.Rank, ans.Moved.Process, ans.Moved.Host)
	return nil
}
