//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// LaunchAgent returns the beginning of a command line that runs a program on a
// host, as ssh would: HOST program args… are appended. The process that is
// started becomes the program, so that its standard streams, the signals sent to
// it, its end and its exit code are the program's.
func (l *Lab) LaunchAgent() ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return []string{exe, asAgent, l.Path()}, nil
}

// Exit codes of shells.
const (
	codeCannot   = 126
	codeNotFound = 127
)

// runAgent is what the process of LaunchAgent does until it is the program.
func runAgent(args []string) int {
	if len(args) < 3 {
		fmt.Fprintln(os.Stderr, "lab: say the host, the program and its arguments")
		return codeCannot
	}
	err := Exec(args[0], args[1], args[2:])
	fmt.Fprintf(os.Stderr, "lab: %v\n", err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return codeNotFound
	}
	return codeCannot
}

// directoryVariable is the working directory of a program that is run by way of
// other mount namespaces.
const directoryVariable = "MPIV_LAB_DIRECTORY"

// Exec makes this process a program on a host of the lab that listens at path. It
// returns only if it cannot.
func Exec(path, host string, args []string) error {
	procs, files, pid, err := ask(path, []string{"enter", host})
	if err != nil {
		return err
	}
	if len(files) != 2 {
		return fmt.Errorf("the lab sent %d descriptors instead of 2", len(files))
	}
	if dir := os.Getenv(directoryVariable); dir != "" {
		os.Unsetenv(directoryVariable)
		if err := os.Chdir(dir); err != nil {
			return err
		}
	}
	runtime.LockOSThread() // and never unlocked: this thread becomes the program
	ns := &namespace{net: files[0], uts: files[1]}
	if err := ns.enter(); errors.Is(err, unix.EPERM) && os.Getenv(homeVariable) == "" {
		return enterFromOutside(path, host, args, pid)
	} else if err != nil {
		return fmt.Errorf("enter %s: %w", host, err)
	}
	program, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	if procs != "" {
		if err := os.WriteFile(procs, []byte("0"), 0o644); err != nil {
			return fmt.Errorf("join the control group of %s: %w", host, err)
		}
	}
	os.Setenv(Variable, path)
	return os.NewSyscallError("exec", unix.Exec(program, args, os.Environ()))
}

// enterFromOutside does what Exec does for a lab in a user namespace that this
// process is not in. A program in Go has threads, and cannot go there itself.
func enterFromOutside(path, host string, args []string, pid int) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return fmt.Errorf("from outside, a lab that was made without root is entered by nsenter (of util-linux): %w", err)
	}
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	os.Setenv(directoryVariable, dir)
	os.Setenv(homeVariable, filepath.Dir(filepath.Dir(path))) // the directory that Enter made has the lab's in it
	words := append([]string{nsenter, "--preserve-credentials", "-U", "-m", "-p", "-t", strconv.Itoa(pid), exe, asAgent, path, host}, args...)
	return os.NewSyscallError("exec nsenter", unix.Exec(nsenter, words, os.Environ()))
}
