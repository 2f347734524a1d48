//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// cgroups are the control groups of a lab: a directory of its name, and in it one
// for each host whose CPU time was ever limited.
type cgroups struct {
	name string

	mu    sync.Mutex // guards what follows
	tree  *hierarchy
	dir   string // empty until there is one
	hosts map[*node]string
}

// A hierarchy is where control groups for CPU time are made.
type hierarchy struct {
	v2    bool
	mount string
	own   string // path below mount of the group that this thread is in
}

// period is what quotas are a share of, in microseconds, as is Linux's habit.
const period = 100_000

// thisHierarchy finds the one of this machine.
func thisHierarchy() (*hierarchy, error) {
	mounts, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	return parseHierarchy(string(mounts), string(own))
}

// parseHierarchy reads a mountinfo and a cgroup file of /proc. Where both versions
// are mounted, CPU time is with the first if that has the controller.
func parseHierarchy(mounts, own string) (*hierarchy, error) {
	var found *hierarchy
	for line := range strings.Lines(mounts) {
		left, right, ok := strings.Cut(line, " - ")
		before, after := strings.Fields(left), strings.Fields(right)
		if !ok || len(before) < 5 || len(after) < 3 {
			continue
		}
		root, mount := before[3], before[4]
		switch {
		case after[0] == "cgroup" && slices.Contains(strings.Split(after[2], ","), "cpu"):
			return &hierarchy{mount: mount, own: ownGroup(own, root, "cpu")}, nil
		case after[0] == "cgroup2":
			found = &hierarchy{v2: true, mount: mount, own: ownGroup(own, root, "")}
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no control groups are mounted (%w)", ErrUnavailable)
	}
	return found, nil
}

// ownGroup is the path, below a mount of root, of the group that lines name for
// the controller.
func ownGroup(lines, root, controller string) string {
	for line := range strings.Lines(lines) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), controller) {
			if below, err := filepath.Rel(root, f[2]); err == nil && filepath.IsLocal(below) {
				return below
			}
		}
	}
	return "."
}

// parents are the groups that a lab's may be made in, the best first.
func (h *hierarchy) parents() []string {
	own := filepath.Join(h.mount, h.own)
	if !h.v2 {
		return []string{own, h.mount}
	}
	// A group with processes may not have controllers for its children, the root
	// excepted: the lab's group becomes a sibling of this process's, or of an
	// ancestor's.
	var parents []string
	for dir := own; ; dir = filepath.Dir(dir) {
		if dir != own || dir == h.mount {
			on, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
			if err == nil && slices.Contains(strings.Fields(string(on)), "cpu") {
				parents = append(parents, dir)
			}
		}
		if dir == h.mount || len(dir) <= len(h.mount) {
			return parents
		}
	}
}

// makeLocked makes the group of the lab, if there is none yet.
func (c *cgroups) makeLocked() error {
	if c.dir != "" {
		return nil
	}
	tree, err := thisHierarchy()
	if err != nil {
		return err
	}
	return c.makeInLocked(tree)
}

// makeInLocked makes it in the best place of tree that takes it.
func (c *cgroups) makeInLocked(tree *hierarchy) error {
	err := errors.New("none has the cpu controller")
	for _, parent := range tree.parents() {
		dir := filepath.Join(parent, c.name)
		if err = os.Mkdir(dir, 0o755); err != nil {
			continue
		}
		if tree.v2 {
			if err = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
				os.Remove(dir)
				continue
			}
		}
		c.tree, c.dir, c.hosts = tree, dir, map[*node]string{}
		return nil
	}
	return fmt.Errorf("control group for CPU time below %s: %w (%w)", tree.mount, err, ErrUnavailable)
}

// limit gives the processes of n so many cores, or, if that is zero, all.
func (c *cgroups) limit(n *node, cores float64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cores == 0 && c.hosts[n] == "" {
		return nil
	}
	if err := c.makeLocked(); err != nil {
		return err
	}
	dir := c.hosts[n]
	if dir == "" {
		dir = filepath.Join(c.dir, n.name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if err := c.tree.writeLimit(dir, cores); err != nil {
		return err
	}
	c.hosts[n] = dir // what starts from here on starts there
	return moveAll(n.id(), dir)
}

func (h *hierarchy) writeLimit(dir string, cores float64) error {
	quota := int64(math.Round(cores * period))
	write := func(name, value string) error {
		return os.WriteFile(filepath.Join(dir, name), []byte(value), 0o644)
	}
	if h.v2 {
		share := "max"
		if cores != 0 {
			share = strconv.FormatInt(quota, 10)
		}
		return write("cpu.max", share+" "+strconv.Itoa(period))
	}
	if cores == 0 {
		quota = -1
	}
	return errors.Join(write("cpu.cfs_period_us", strconv.Itoa(period)), write("cpu.cfs_quota_us", strconv.FormatInt(quota, 10)))
}

// moveAll moves the processes of the namespaces into the group dir, those included
// that they start meanwhile.
func moveAll(ids map[string]bool, dir string) error {
	moved := map[int]bool{}
	for fresh := true; fresh; {
		fresh = false
		pids, err := processesIn(ids)
		if err != nil {
			return err
		}
		for _, pid := range pids {
			if moved[pid] {
				continue
			}
			moved[pid], fresh = true, true
			err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o644)
			if err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// procs is the file to which a process of n writes 0 to join n's group, or "".
func (c *cgroups) procs(n *node) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.hosts[n] == "" {
		return ""
	}
	return filepath.Join(c.hosts[n], "cgroup.procs")
}

// start starts cmd in the group of n, if it has one. The calling thread is locked.
func (c *cgroups) start(n *node, cmd *exec.Cmd) error {
	c.mu.Lock()
	dir, tree := c.hosts[n], c.tree
	c.mu.Unlock()
	switch {
	case dir == "":
		return cmd.Start()
	case tree.v2:
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer f.Close()
		attr := syscall.SysProcAttr{}
		if cmd.SysProcAttr != nil {
			attr = *cmd.SysProcAttr
		}
		attr.UseCgroupFD, attr.CgroupFD = true, int(f.Fd())
		cmd.SysProcAttr = &attr
		return cmd.Start()
	}
	// A child begins in the group of the thread that forks it.
	join := func(dir string) error { return os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0o644) }
	if err := join(dir); err != nil {
		return err
	}
	defer func() {
		if err := join(filepath.Join(tree.mount, tree.own)); err != nil {
			panic(fmt.Sprintf("lab: a thread cannot return to the control group it came from: %v", err))
		}
	}()
	return cmd.Start()
}

// remove removes the group c.name, and those of labs that a keeper outside of their
// namespaces looks after: c.name, a dot and more. Their processes were killed; the kernel may need a moment.
func (c *cgroups) remove() error {
	tree, err := thisHierarchy()
	if err != nil {
		return nil // then there is no group either
	}
	const patience = 2 * time.Second
	for end := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		var errs []error
		for _, parent := range tree.parents() {
			dirs, _ := filepath.Glob(filepath.Join(parent, c.name+".*"))
			for _, dir := range append(dirs, filepath.Join(parent, c.name)) {
				hosts, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
				for _, h := range hosts {
					errs = append(errs, os.Remove(filepath.Dir(h)))
				}
				if err := os.Remove(dir); !errors.Is(err, fs.ErrNotExist) {
					errs = append(errs, err)
				}
			}
		}
		if err := errors.Join(errs...); err == nil || time.Now().After(end) {
			return err
		}
	}
}

// cgroupName is what the groups of the lab in dir are called.
func cgroupName(dir string) string {
	if inside() {
		return filepath.Base(home()) + "." + filepath.Base(dir)
	}
	return filepath.Base(dir)
}
