package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
)

// move takes a rank of a running job to a spare process.
func move(w io.Writer, args []string) error {
	q := agent.Question{Op: "move", Rank: -1}
	name := ""
	for i := 0; i < len(args); i++ {
		switch word := args[i]; {
		case word == "--to" && i+1 < len(args):
			i++
			q.Host = args[i]
		case strings.HasPrefix(word, "-"):
			return usage("mpivrun move knows no option %s; say mpivrun move RANK [--to HOST] [JOB]", word)
		case q.Rank < 0:
			n, err := strconv.Atoi(word)
			if err != nil || n < 0 {
				return usage("mpivrun move wants the number of a rank, not %q: say mpivrun move RANK [--to HOST] [JOB]", word)
			}
			q.Rank = n
		case name == "":
			name = word
		default:
			return usage("mpivrun move takes one rank and one job")
		}
	}
	if q.Rank < 0 {
		return usage("which rank? Say mpivrun move RANK [--to HOST] [JOB]")
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
