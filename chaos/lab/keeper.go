//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// Words that this program is started with, as its first argument, to be something
// else than itself: see [Enter].
const (
	asKeeper = "lab:keeper"
	asInit   = "lab:init"
	asAgent  = "lab:exec"
)

// A keeper is a process that outlives the one that made a lab, by the moment it
// takes to remove what is left: processes, control groups, the directory. It
// waits for the end of a pipe, which the kernel closes however the maker ends.
type keeper struct {
	process *exec.Cmd
	pipe    *os.File // its end is the signal
}

// startKeeper starts one for l.
func startKeeper(l *Lab) (*keeper, error) {
	var held []*os.File
	for _, n := range l.all() {
		held = append(held, n.ns.net)
	}
	return newKeeper(l.dir, held)
}

// newKeeper starts a keeper of dir and of the namespaces. It holds them, so that
// their numbers mean no others when it looks for the processes in them.
func newKeeper(dir string, namespaces []*os.File) (*keeper, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd := exec.Command("/proc/self/exe", asKeeper, dir)
	cmd.ExtraFiles = append([]*os.File{r}, namespaces...)
	cmd.Env = []string{}
	if inside() {
		cmd.Env = append(cmd.Env, homeVariable+"="+home())
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the terminal's signals are not for it
	if len(namespaces) > 0 {
		// On no host: who ends the lab around this one kills all that is on its hosts.
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	if err := cmd.Start(); err != nil {
		w.Close()
		return nil, fmt.Errorf("start the keeper: %w", err)
	}
	return &keeper{process: cmd, pipe: w}, nil
}

// close makes the keeper do its work, of which there should be none, and waits.
func (k *keeper) close() error {
	k.pipe.Close()
	if err := k.process.Wait(); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	return nil
}

// keep is all that a keeper's process does.
func keep(dir string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if !strings.HasPrefix(filepath.Base(dir), dirPrefix) {
		return 2
	}
	ids := map[string]bool{}
	for fd := firstHeld + 1; ; fd++ {
		id, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		if err != nil || !strings.HasPrefix(id, "net:[") {
			break
		}
		ids[id] = true
	}
	// Nothing is ever written: a byte, an error or the end all mean the same.
	_, _ = os.NewFile(firstHeld, "pipe").Read(make([]byte, 1))

	var errs []error
	if len(ids) > 0 {
		errs = append(errs, killAll(ids))
	}
	c := cgroups{name: cgroupName(dir)}
	errs = append(errs, c.remove())
	errs = append(errs, os.RemoveAll(dir))
	if errors.Join(errs...) != nil {
		return 1
	}
	return 0
}

const firstHeld = 3 // the first of ExtraFiles
