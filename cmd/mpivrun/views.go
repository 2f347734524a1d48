package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/rundir"
)

// view parses what the commands that look at a job take: [--json] [JOB].
func view(name string, args []string) (job string, asJSON bool, err error) {
	for _, w := range args {
		switch {
		case w == "--json" || w == "-json":
			asJSON = true
		case strings.HasPrefix(w, "-"):
			links := ""
			if name == "ps" {
				links = " [--links]"
			}
			return "", false, usage("mpivrun %s knows no option %s; say mpivrun %s [--json]%s [JOB]", name, w, name, links)
		case job != "":
			return "", false, usage("mpivrun %s takes one job; to run a program of that name: mpivrun -- %s …", name, name)
		default:
			job = w
		}
	}
	return job, asJSON, nil
}

func usage(format string, args ...any) error {
	return &exit.Error{Code: codeUsage, Err: fmt.Errorf(format, args...)}
}

// choose is the running job called name, or the only one.
func choose(name string) (rundir.Job, error) {
	if j, found, err := rundir.Find(name); err != nil || found {
		return j, err
	}
	jobs, err := rundir.Jobs()
	if err != nil {
		return rundir.Job{}, err
	}
	var names []string
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	switch {
	case len(jobs) == 0:
		return rundir.Job{}, errors.New("no job of yours is running on this host")
	case name != "":
		return rundir.Job{}, fmt.Errorf("no job is called %q; there is %s", name, strings.Join(names, ", "))
	case len(jobs) > 1:
		return rundir.Job{}, fmt.Errorf("several jobs are running; say which: %s", strings.Join(names, ", "))
	}
	return jobs[0], nil
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// abort ends a job.
func abort(w io.Writer, args []string) error {
	name, asJSON, err := view("abort", args)
	if err != nil {
		return err
	}
	if asJSON {
		return usage("mpivrun abort has no output for programs")
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	if _, err := agent.Ask(j.Dir, agent.Question{Op: "abort"}); err != nil {
		return err
	}
	fmt.Fprintf(w, "job %s is told to end\n", j.Name)
	return nil
}

// A build says which mpivrun this is.
type build struct {
	Version  string
	Revision string `json:",omitempty"`
	Go       string
	Protocol int // that mpivrun and programs speak
}

func printVersion(w io.Writer, args []string) error {
	asJSON := len(args) == 1 && (args[0] == "--json" || args[0] == "-json")
	if len(args) > 0 && !asJSON {
		return usage("mpivrun version takes --json or nothing")
	}
	b := build{Version: "(devel)", Go: runtime.Version(), Protocol: control.Version}
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			b.Version = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	if asJSON {
		return printJSON(w, b)
	}
	_, err := fmt.Fprintf(w, "mpivrun %s (%s, control protocol %d)\n", b.Version, b.Go, b.Protocol)
	return err
}
