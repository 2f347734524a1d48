package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
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
	// What is there stays if there is no trace. CreateTemp would keep it from all others.
	f, err := os.OpenFile(filepath.Join(filepath.Dir(file), ".trace-"+rand.Text()), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if why, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("the trace cannot be written to %s: %w", file, why.Err)
	}
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if old, was := os.Stat(file); was == nil {
		err = f.Chmod(old.Mode().Perm()) // for whom it was
	}
	if err != nil {
		f.Close()
		return err
	}
	s, err := agent.Trace(ctx, j.Dir, d, f)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), file)
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
