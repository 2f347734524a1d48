//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// processesIn returns the processes of the given namespaces, but not this one.
// Zombies are in no namespace.
func processesIn(ids map[string]bool) ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == os.Getpid() {
			continue
		}
		if isIn(pid, ids) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

func isIn(pid int, ids map[string]bool) bool {
	id, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err == nil && ids[id]
}

// signalIn sends sig to pid if that is, for sure, a process of the namespaces.
func signalIn(pid int, ids map[string]bool, sig syscall.Signal) error {
	p, err := os.FindProcess(pid) // held from here on: the number is not given to another
	if err != nil {
		return err
	}
	defer p.Release()
	if !isIn(pid, ids) {
		return nil
	}
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to process %d: %w", sig, pid, err)
	}
	return nil
}

// signalAll sends sig to every process of the namespaces once, and looks again
// until there is no new one: what one forks while it is looked for is found too. That one
// cannot be signalled keeps it from no other.
func signalAll(ids map[string]bool, sig syscall.Signal) error {
	const rounds = 100 // a program may fork faster than it can be looked at
	done := map[int]bool{}
	var errs []error
	for range rounds {
		pids, err := processesIn(ids)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		fresh := false
		for _, pid := range pids {
			if done[pid] {
				continue
			}
			done[pid], fresh = true, true
			errs = append(errs, signalIn(pid, ids, sig))
		}
		if !fresh || sig != syscall.SIGSTOP {
			return errors.Join(errs...)
		}
	}
	return errors.Join(append(errs, fmt.Errorf("signal %v: the processes multiply faster than they can be found", sig))...)
}

// killAll kills the processes of the namespaces, and returns when none is left.
func killAll(ids map[string]bool) error {
	const patience = 5 * time.Second
	for end := time.Now().Add(patience); ; {
		pids, err := processesIn(ids)
		if err != nil || len(pids) == 0 {
			return err
		}
		var errs []error
		for _, pid := range pids {
			errs = append(errs, signalIn(pid, ids, syscall.SIGKILL))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("processes %v do not end %v after they were killed", pids, patience)
		}
		time.Sleep(time.Millisecond)
	}
}
