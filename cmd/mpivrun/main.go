// Command mpivrun starts mpiv programs, and is what one looks at them with
// while they run. See docs/mpivrun.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/orphans"
)

// codeUsage is the exit code for a command line that makes no sense.
const codeUsage = 2

func main() { os.Exit(command(os.Args[1:], os.Stdout, os.Stderr)) }

// command does what args say and returns the exit code.
func command(args []string, stdout, stderr *os.File) int {
	var err error
	word := ""
	if len(args) > 0 {
		word = args[0]
		if all := formsOf(word); all != nil && asksForHelp(args[1:]) {
			printForms(stdout, all)
			return 0
		} else if all != nil && slices.Contains(args[1:], "") { // it would be taken for no word: abort "$JOB" is not abort
			return report(stderr, usage("mpivrun %s: one of the words is empty; is it a variable that is not set?", word))
		}
	}
	switch word {
	case "help", "--help", "-help", "-h":
		err = help(stdout, args[1:])
	case "version", "--version", "-V":
		err = printVersion(stdout, args[1:])
	case "agent":
		return deputy(args[1:], stderr)
	case "guard":
		crew.GuardLife(os.Stdin)
	case "ps":
		err = ps(stdout, args[1:])
	case "top":
		err = interruptible(func(ctx context.Context) error { return top(ctx, os.Stdin, stdout, args[1:]) })
	case "events":
		err = interruptible(func(ctx context.Context) error { return stream(ctx, stdout, args[1:]) })
	case "explain":
		err = explain(stdout, args[1:])
	case "contracts":
		err = contracts(stdout, args[1:])
	case "trace":
		err = interruptible(func(ctx context.Context) error { return traceFor(ctx, stdout, args[1:]) })
	case "move":
		err = move(stdout, args[1:])
	case "drain", "cordon", "uncordon":
		err = giveOrder(stdout, word, args[1:])
	case "add":
		err = add(stdout, args[1:])
	case "attach":
		return attach(args[1:], stdout, stderr)
	case "abort":
		err = abort(stdout, args[1:])
	default:
		return launch(args, stdout, stderr)
	}
	return report(stderr, err)
}

// interruptible runs f with a context that an interrupt ends. A pipe that nobody
// reads any more is an error of who writes.
func interruptible(f func(context.Context) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return f(ctx)
}

// report prints err, and returns the exit code that it stands for.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "mpivrun: %v\n", err)
	if ee, ok := errors.AsType[*exit.Error](err); ok {
		return ee.Code
	}
	return 1
}

// deputy is the agent of another host's job, here. Its orders are on its
// standard input.
func deputy(args []string, stderr *os.File) int {
	if len(args) > 0 {
		return report(stderr, usage("mpivrun agent takes no arguments; to run a program of that name: mpivrun -- agent …"))
	}
	guard, err := startGuard()
	if err == nil {
		err = orphans.Adopt()
	}
	if err != nil {
		return report(stderr, err)
	}
	return agent.Deputy(agent.Orders{In: os.Stdin, Out: os.Stdout, Errs: stderr, Guard: guard, Log: true, Breaker: breakerFor})
}

// startGuard starts this program as a guard; none if it cannot tell where it is.
func startGuard() (*crew.Guard, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil
	}
	return crew.StartGuard(self, "guard")
}

// misspelt is err, with the command that may have been meant by the first word of the command line where
// that is a program that there is not.
func misspelt(word string, err error) error {
	ee, ok := errors.AsType[*exit.Error](err)
	nearest := nearestCommand(word)
	if _, here := os.Stat(word); !ok || ee.Code != exit.NotFound || nearest == "" || strings.HasPrefix(word, "-") || here == nil {
		return err
	}
	return &exit.Error{Code: ee.Code, Err: fmt.Errorf("%w; did you mean mpivrun %s?", ee.Err, nearest)}
}

// launch is the run form.
func launch(args []string, stdout, stderr *os.File) int {
	r, err := parseRun(args)
	var j agent.Job
	if err == nil {
		var hosts []host
		if hosts, err = r.hosts(); err == nil {
			j, err = r.job(thisMachine(), hosts)
		}
	}
	if err != nil {
		return report(stderr, &exit.Error{Code: codeUsage, Err: err})
	}
	if !r.Outlive {
		j.Reaper = true
		if j.Guard, err = startGuard(); err != nil {
			return report(stderr, err)
		}
	}
	if r.Insecure && !r.Quiet {
		fmt.Fprintln(stderr, "mpivrun: --insecure: whoever can listen to the networks between the hosts can read the messages, and join")
	}
	if !r.Quiet {
		for _, sentence := range r.idle(max(len(j.Hosts), 1), !slices.ContainsFunc(j.Hosts, func(h agent.Host) bool { return !h.Here })) {
			fmt.Fprintln(stderr, "mpivrun:", sentence)
		}
		for _, p := range r.Programs {
			for _, v := range p.Env {
				if _, ok := os.LookupEnv(v); !ok && !strings.Contains(v, "=") {
					fmt.Fprintf(stderr, "mpivrun: -x %s: it is not set here\n", v)
				}
			}
		}
	}
	j.Stdout, j.Stderr = stdout, stderr
	if j.StdinRank >= 0 {
		j.Stdin = os.Stdin
	}
	if r.Outlive {
		return outlive(j, stdout, stderr)
	}
	if err := orphans.Adopt(); err != nil {
		return report(stderr, err)
	}

	// Who is to ignore hang-ups (nohup) goes on doing so. A closed pipe is seen
	// where it is written to, and its writer learns of it.
	passed := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2}
	if !signal.Ignored(syscall.SIGHUP) {
		passed = append(passed, syscall.SIGHUP)
	}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, passed...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)

	var a *agent.Agent
	begun, ended := make(chan error), make(chan int)
	go func() { // it may take its time: a file of the job's may be on a host that does not answer
		var err error
		a, err = agent.Start(j)
		begun <- err
	}()
	var n interrupts
	var early []os.Signal
	var late <-chan time.Time // it was interrupted, and has not begun yet
	var why syscall.Signal
	for starting := true; starting; {
		select {
		case err := <-begun:
			if err != nil {
				return report(stderr, misspelt(args[0], err))
			}
			starting = false
		case s := <-signals:
			if n.enough(s) {
				return exit.Signal + int(s.(syscall.Signal))
			}
			early = append(early, s)
			if late == nil && s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
				late, why = time.After(startTime), s.(syscall.Signal)
			}
		case <-late:
			fmt.Fprintf(stderr, "mpivrun: interrupted by signal %d (%v) before the job had begun: a file of the job's is on a host that does not answer, or a pipe that nobody reads\n", why, why)
			return exit.Signal + int(why)
		}
	}
	go func() { ended <- a.Wait() }()
	for _, s := range early {
		a.Signal(s.(syscall.Signal))
	}
	for {
		select {
		case s := <-signals:
			if n.enough(s) {
				return exit.Signal + int(s.(syscall.Signal))
			}
			a.Signal(s.(syscall.Signal))
		case <-children:
			a.Bury()
		case code := <-ended:
			return code
		}
	}
}

// startTime is how long a job that was interrupted while it begins has for that.
const startTime = 2 * time.Second

// interrupts is how many signals have asked for the end.
type interrupts int

// enough tells whether s is the third: mpivrun ends with it, since who does not read its output would hold it
// up for ever.
func (n *interrupts) enough(s os.Signal) bool {
	if s == syscall.SIGINT || s == syscall.SIGTERM {
		*n++
	}
	return *n > 2
}
