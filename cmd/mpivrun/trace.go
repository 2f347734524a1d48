package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/trace"
	"github.com/mpiv/mpiv/internal/whole"
)

const traceUsage = "say mpivrun trace --for SECONDS [-o FILE] [JOB]"

// traceFor has a running job traced for a while, and writes the trace to a file.
func traceFor(ctx context.Context, w io.Writer, args []string) error {
	var d time.Duration
	file, name := "", ""
	for i := 0; i < len(args); i++ {
		word, value, joined := strings.Cut(args[i], "=")
		if word == "--for" || word == "-for" || word == "-o" || word == "--output" {
			if !joined {
				if i++; i == len(args) {
					return usage("%s needs a value: %s", word, traceUsage)
				}
				value = args[i]
			}
			var err error
			if word == "--for" || word == "-for" {
				d, err = seconds(value)
			} else {
				err = text(&file, value)
			}
			if err != nil {
				return usage("%s %s: %v", word, value, err)
			}
			continue
		}
		switch {
		case strings.HasPrefix(word, "-"):
			return usage("mpivrun trace knows no option %s: %s", word, traceUsage)
		case name != "":
			return usage("mpivrun trace takes one job: %s", traceUsage)
		}
		name = args[i]
	}
	if d == 0 {
		return usage("for how long? %s", "S"+traceUsage[1:])
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	if file == "" {
		file = j.Name + ".trace.json"
	}
	var s trace.Summary
	err = whole.Write(file, 0o666, func(f *os.File) (err error) { // what is there stays if there is no trace
		s, err = agent.Trace(ctx, j.Dir, d, f)
		return err
	})
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("the trace cannot be written to %s: %w", file, why.Err)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "%s: %d calls, %d arrows; open it in ui.perfetto.dev or chrome://tracing\n", file, s.Slices, s.Flows)
	if text := s.String(); text != "" {
		fmt.Fprintln(w, text)
	}
	return nil
}
