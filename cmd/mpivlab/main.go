//go:build linux

// Command mpivlab makes several hosts on this machine, runs a command on the first
// of them, and breaks them when it is told to. See docs/lab.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/spelling"
)

// Exit codes of mpivlab itself; otherwise it exits as the command does.
const (
	codeFailed   = 1
	codeUsage    = 2
	codeCannot   = 126
	codeNotFound = 127
)

func main() { os.Exit(command(os.Args[1:])) }

// command does what args say and returns the exit code.
func command(args []string) int {
	if len(args) == 0 {
		fmt.Fprint(os.Stderr, help)
		return codeUsage
	}
	switch word := args[0]; {
	case slices.Contains([]string{"help", "--help", "-help", "-h"}, word):
		fmt.Print(help)
		return 0
	case word == "exec":
		return execute(args[1:])
	case word == "flood":
		return floods(args[1:])
	case word == asServer && len(args) == 4:
		return done(serveFlood(args[1:]))
	case word == asAttacker && len(args) == 5:
		return done(attackFlood(args[1:]))
	case slices.Contains(verbs, word):
		return control(args)
	}
	return run(args)
}

// verbs are what a running lab is asked to do.
var verbs = []string{"show", "hostfile", "cut", "heal", "rate", "impair", "partition", "stop", "continue", "kill", "throttle", "cpu"}

// misspelt is err, of a command that there is not, with what may have been meant by the first word.
func misspelt(word string, err error) error {
	nearest := spelling.Nearest(word, append([]string{"exec", "flood", "help"}, verbs...)...)
	if nearest == "" || strings.HasPrefix(word, "-") {
		return err
	}
	return fmt.Errorf("%w; did you mean mpivlab %s?", err, nearest)
}

func report(code int, err error) int {
	fmt.Fprintf(os.Stderr, "mpivlab: %v\n", err)
	return code
}

func done(err error) int {
	if err != nil {
		return report(codeFailed, err)
	}
	return 0
}

// run makes a lab and runs a command on its first host.
func run(args []string) int {
	unable := lab.Enter()
	o, words, err := parse(args)
	if err == nil {
		err = o.Check()
	}
	if err != nil {
		return report(codeUsage, err)
	}
	if unable != nil {
		return report(codeFailed, unable)
	}
	l, err := lab.New(o)
	if err != nil {
		return report(codeFailed, err)
	}
	c := l.Command(context.Background(), l.Hosts()[0], words[0], words[1:]...)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	code, err := c.Relay()
	if err != nil {
		if code = codeOf(err); code == codeNotFound {
			err = misspelt(args[0], err)
		}
		report(code, err)
	}
	if err := l.Close(); err != nil {
		report(code, err)
	}
	return code
}

// execute becomes a command on a host of a running lab.
func execute(args []string) int {
	if len(args) < 2 {
		return report(codeUsage, errors.New("usage: mpivlab exec HOST command [args]"))
	}
	path, err := lab.Find()
	if err == nil {
		err = lab.Exec(path, args[0], args[1:])
	}
	return report(codeOf(err), err)
}

// codeOf is what a shell exits with for a command that could not be started; codeFailed if
// that was not the command's doing.
func codeOf(err error) int {
	if e, ok := errors.AsType[*exec.Error](err); ok && (errors.Is(e, exec.ErrNotFound) || errors.Is(e, os.ErrNotExist)) {
		return codeNotFound
	} else if ok {
		return codeCannot // it is found, and not executable
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Op == "fork/exec" {
		return codeCannot
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok && e.Syscall == "exec" {
		return codeCannot
	}
	return codeFailed
}

// control asks a running lab to do something.
func control(words []string) int {
	if err := lab.Check(words...); err != nil {
		return report(codeUsage, err)
	}
	path, err := lab.Find()
	if err != nil {
		return report(codeFailed, err)
	}
	text, err := lab.Control(path, words...)
	if err != nil {
		return report(codeFailed, err)
	}
	fmt.Print(text)
	return 0
}
