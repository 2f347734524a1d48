package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/mpiv/mpiv/internal/spelling"
)

// A form is one way to say a command.
type form struct {
	words string // behind mpivrun; the command, or several with bars between, comes first
	does  string
}

// forms is all but those that run programs, in the order of help.
var forms = []form{
	{"ps [--json] [JOB]", "running jobs, or the ranks of one"},
	{"ps [--json] --links [JOB]", "over what its processes talk to each other"},
	{"top [JOB]", "the same and more, as it changes"},
	{"events [JOB]", "what happens in a job, as lines of JSON"},
	{"explain [--json] [JOB]", `who waits for whom, since when, at which line; what was
decided, and how ranks went from process to process`},
	{"explain [--json] N [--job JOB | --from FILE]", "decision N alone; --from FILE reads what --events FILE wrote"},
	{"contracts [--json] [JOB]", "what the links of a job promise, and how they do"},
	{"contracts [--json] FILE [FILE]", `the same of a file of --contracts-file; what two files, or
a file and a job, do not have in common`},
	{"trace --for SECONDS [-o FILE] [JOB]", "what every rank does, for ui.perfetto.dev"},
	{"move RANK [--to HOST] [JOB]", "take a rank to a spare process"},
	{"drain [--wait] HOST [JOB]", `move all ranks off a host and use it no more; --wait ends
when none is there`},
	{"cordon|uncordon HOST [JOB]", "move nothing to a host; end that, and what drain began"},
	{"add HOST[:SLOTS] [JOB]", "have a host join a job, with as many spare processes"},
	{"attach [JOB]", "show a job that runs with --outlive, until it ends"},
	{"abort [JOB]", "end a job"},
	{"version [--json]", "which mpivrun this is"},
	{"help [COMMAND]", "this, or the same of one command, as COMMAND --help"},
}

// formsOf is those of a command; none if there is none of that name.
func formsOf(command string) (all []form) {
	for _, f := range forms {
		names, _, _ := strings.Cut(f.words, " ")
		if slices.Contains(strings.Split(names, "|"), command) {
			all = append(all, f)
		}
	}
	return all
}

// nearestCommand is the command that may have been meant by word; empty if there is none like it.
func nearestCommand(word string) string {
	var names []string
	for _, f := range forms {
		first, _, _ := strings.Cut(f.words, " ")
		names = append(names, strings.Split(first, "|")...)
	}
	return spelling.Nearest(word, names...)
}

// asksForHelp tells whether args, which follow a command, do.
func asksForHelp(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool { return a == "--help" || a == "-help" || a == "-h" })
}

// help prints what there is, or, if args name a command, what that does.
func help(w io.Writer, args []string) error {
	if len(args) == 0 || asksForHelp(args) {
		printHelp(w)
		return nil
	}
	all := formsOf(args[0])
	if len(args) > 1 || all == nil {
		hint := ": mpivrun help lists them"
		if nearest := nearestCommand(args[0]); len(args) == 1 && nearest != "" {
			hint = "; did you mean " + nearest + "?"
		}
		return usage("mpivrun help takes one command, and there is none called %q%s", strings.Join(args, " "), hint)
	}
	printForms(w, all)
	return nil
}

// printForms prints forms, what each does beside or below it.
func printForms(w io.Writer, all []form) {
	const column = 35
	indent := strings.Repeat(" ", column)
	for _, f := range all {
		text := "  mpivrun " + f.words
		if len(text) < column {
			text += indent[len(text):]
		} else {
			text += "\n" + indent
		}
		fmt.Fprintln(w, text+strings.ReplaceAll(f.does, "\n", "\n"+indent))
	}
}

// printHelp prints what there is.
func printHelp(w io.Writer) {
	fmt.Fprint(w, `mpivrun starts mpiv programs, on this host and others.

  mpivrun [options] program [args] [: [options] program [args]]…

`)
	printForms(w, forms)
	fmt.Fprint(w, `
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
