package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"text/tabwriter"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
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
	return &agent.ExitError{Code: codeUsage, Err: fmt.Errorf(format, args...)}
}

// choose is the running job called name, or the only one.
func choose(name string) (agent.Found, error) {
	if j, found, err := agent.Find(name); err != nil || found {
		return j, err
	}
	jobs, err := agent.Jobs()
	if err != nil {
		return agent.Found{}, err
	}
	var names []string
	for _, j := range jobs {
		names = append(names, j.Name)
	}
	switch {
	case len(jobs) == 0:
		return agent.Found{}, errors.New("no job of yours is running on this host")
	case name != "":
		return agent.Found{}, fmt.Errorf("no job is called %q; there is %s", name, strings.Join(names, ", "))
	case len(jobs) > 1:
		return agent.Found{}, fmt.Errorf("several jobs are running; say which: %s", strings.Join(names, ", "))
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

// printHelp prints what there is.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `mpivrun starts mpiv programs, on this host and others.

  mpivrun [options] program [args] [: [options] program [args]]…

  mpivrun ps [--json] [JOB]        running jobs, or the ranks of one
  mpivrun ps --links [JOB]         over what its processes talk to each other
  mpivrun top [JOB]                the same and more, as it changes
  mpivrun events [JOB]             what happens in a job, as lines of JSON
  mpivrun explain [--json] [JOB]   who waits for whom, since when, at which line; what was
                                   decided, and how ranks went from process to process
  mpivrun explain N [--job JOB]    decision N; --from FILE reads what --events FILE wrote
  mpivrun contracts [--json] [JOB] what the links of a job promise, and how they do
  mpivrun contracts [--json] FILE [FILE]
                                   the same of a file of --contracts-file; what two files, or
                                   a file and a job, do not have in common
  mpivrun trace --for SECONDS [-o FILE] [JOB]
                                   what every rank does, for ui.perfetto.dev
  mpivrun move RANK [--to HOST] [JOB]
                                   take a rank to a spare process
  mpivrun drain [--wait] HOST [JOB]
                                   move all ranks off a host and use it no more
  mpivrun cordon|uncordon HOST [JOB]
                                   move nothing to a host; end that, and what drain began
  mpivrun add HOST[:SLOTS] [JOB]   have a host join a job, with as many spare processes
  mpivrun attach [JOB]             show a job that runs with --outlive, until it ends
  mpivrun abort [JOB]              end a job
  mpivrun version [--json]
  mpivrun help

JOB may be left out when one job is running. Options:

`)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, o := range options {
		var forms []string
		for _, n := range o.names {
			forms = append(forms, dashed(n))
		}
		value := o.value
		if value != "" {
			value = " " + value
		}
		fmt.Fprintf(t, "  %s%s\t%s\n", strings.Join(forms, ", "), value, o.help)
	}
	t.Flush()
	fmt.Fprint(w, `
The exit code is that of the first rank that failed; 128+N if signal N killed
it, 110 after --timeout, 126 if the program cannot be executed, 127 if it is
not there, 2 if the command line makes no sense.
`)
}
