// Package orphans ends what processes of a job leave behind to this operating-system process.
package orphans

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Adopt makes this operating-system process the parent of whatever its
// descendants leave behind, so that End can end it.
func Adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the reaper of what processes leave behind: %w", err)
	}
	return nil
}

// patient is for how long those that are about to end by themselves are waited for.
const patient = 100 * time.Millisecond

// End kills the children of this process, and theirs as they become
// ours, but for some. Those that are about to end by themselves are given a moment.
// It returns when none is left.
func End(but ...int) {
	patience := time.Now().Add(patient)
	for {
		orphans := slices.DeleteFunc(children(), func(pid int) bool { return slices.Contains(but, pid) })
		if len(orphans) == 0 {
			return
		}
		late := time.Now().After(patience)
		for _, pid := range orphans {
			options := unix.WNOHANG
			if late {
				unix.Kill(pid, unix.SIGKILL)
				options = 0
			}
			unix.Wait4(pid, nil, options, nil)
		}
		if !late {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// children is the children of all threads of this process. None, on a kernel
// that does not tell.
func children() []int {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	var all []int
	for _, l := range lists {
		text, err := os.ReadFile(l)
		if err != nil {
			continue // the thread has ended
		}
		for pid := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// Bury reaps the children of this process that have ended, but for commands of Start and
// those that are known to the caller, who starts no other meanwhile.
func Bury(known func(pid int) bool) {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	for _, pid := range children() {
		if !known(pid) && !owned.pids[pid] {
			unix.Wait4(pid, nil, unix.WNOHANG, nil)
		}
	}
}

// owned is the commands of this process, which are no orphans: who started one waits for it.
var owned = commands{pids: map[int]bool{}}

type commands struct {
	mu   sync.Mutex
	pids map[int]bool
}

// Start starts cmd, which Bury leaves to Wait. The caller must Wait.
func Start(cmd *exec.Cmd) error {
	owned.mu.Lock()
	defer owned.mu.Unlock()
	err := cmd.Start()
	if err == nil {
		owned.pids[cmd.Process.Pid] = true
	}
	return err
}

// Wait waits for a cmd that Start has started.
func Wait(cmd *exec.Cmd) error {
	err := cmd.Wait()
	owned.mu.Lock()
	defer owned.mu.Unlock()
	delete(owned.pids, cmd.Process.Pid)
	return err
}
