package host

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/mem"
	"github.com/shirou/gopsutil/v3/net"

	"github.com/mpiv/mpiv/internal/plain"
)

// root is the file system, for what gopsutil does not read.
var root fs.FS = plain.Root{}

// machine is this host, or its network namespace, by gopsutil.
type machine struct{}

func (machine) CPU() (CPUTimes, error) {
	all, err := cpu.Times(false)
	if err != nil {
		return CPUTimes{}, fmt.Errorf("read processor times: %w", err)
	}
	if len(all) == 0 {
		return CPUTimes{}, errors.New("read processor times: there are none")
	}
	t := all[0]
	// User and Nice contain what guests took.
	return CPUTimes{t.User + t.Nice + t.System + t.Irq + t.Softirq, t.Steal, t.Idle + t.Iowait}, nil
}

func (machine) Memory() (free uint64, err error) {
	m, err := mem.VirtualMemory()
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	return min(m.Available, m.Total), nil
}

func (machine) Traffic() (map[string]Bytes, error) {
	all, err := net.IOCounters(true)
	if err != nil {
		return nil, fmt.Errorf("read interfaces: %w", err)
	}
	counts := map[string]Bytes{}
	for _, i := range all {
		if i.Name != "lo" && i.Name != "lo0" {
			counts[i.Name] = Bytes{i.BytesRecv, i.BytesSent}
		}
	}
	return counts, nil
}

// procPressure is /proc/pressure/cpu, which Linux has since 4.20 when it is configured.
type procPressure struct{ root fs.FS }

func (p procPressure) Pressure() (waited time.Duration, err error) {
	text, err := fs.ReadFile(p.root, "proc/pressure/cpu")
	if err == nil {
		waited, err = parsePressure(text)
	}
	if err != nil {
		return 0, fmt.Errorf("read pressure: %w", err)
	}
	return waited, nil
}

// parsePressure returns the total of the line that begins with some.
func parsePressure(text []byte) (time.Duration, error) {
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line))
		if len(words) == 0 || words[0] != "some" {
			continue
		}
		for _, word := range words[1:] {
			if total, ok := strings.CutPrefix(word, "total="); ok {
				return microseconds(total, time.Microsecond)
			}
		}
	}
	return 0, errors.New("there is no total of some")
}

func microseconds(text string, of time.Duration) (time.Duration, error) {
	n, err := strconv.ParseUint(text, 10, 63)
	if err != nil || n > uint64(1<<63-1)/uint64(of) {
		return 0, fmt.Errorf("%q is no time", text)
	}
	return time.Duration(n) * of, nil
}

// controlGroups is cpu.stat of this process's group and of those around it.
type controlGroups struct {
	root  fs.FS
	group string   // of this process, as /proc has it, when dirs were found
	dirs  []string // found once for a group; a process rarely changes it
}

// Throttled is the most that any of the groups was held up: who is in one is held up
// with it.
func (c *controlGroups) Throttled() (most time.Duration, err error) {
	group, err := fs.ReadFile(c.root, "proc/self/cgroup")
	if err == nil && (c.dirs == nil || c.group != string(group)) {
		c.group = string(group)
		c.dirs, err = cpuGroups(c.root, group)
	}
	if err != nil {
		return 0, fmt.Errorf("find the control group: %w", err)
	}
	found := false
	for _, dir := range c.dirs {
		text, err := fs.ReadFile(c.root, path.Join(dir, "cpu.stat"))
		if err != nil {
			continue // the topmost group has none, and groups go
		}
		held, ok, err := parseCPUStat(text)
		if err != nil {
			return 0, fmt.Errorf("read %s/cpu.stat: %w", dir, err)
		}
		found = found || ok
		most = max(most, held)
	}
	if !found {
		return 0, errors.New("no control group of this process tells how long it was held up")
	}
	return most, nil
}

// parseCPUStat reads version 1, in nanoseconds, and 2, in microseconds.
func parseCPUStat(text []byte) (held time.Duration, ok bool, err error) {
	for line := range bytes.Lines(text) {
		words := strings.Fields(string(line))
		if len(words) != 2 {
			continue
		}
		switch words[0] {
		case "throttled_time":
			held, err = microseconds(words[1], time.Nanosecond)
			return held, err == nil, err
		case "throttled_usec":
			held, err = microseconds(words[1], time.Microsecond)
			return held, err == nil, err
		}
	}
	return 0, false, nil
}

// cpuGroups are the directories of this process's group and of all around it, for
// the controller of processors. groups is what /proc/self/cgroup says.
func cpuGroups(root fs.FS, groups []byte) (dirs []string, err error) {
	mounts, err := fs.ReadFile(root, "proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(groups) {
		parts := strings.SplitN(strings.TrimSpace(string(line)), ":", 3) // number:controllers:path
		if len(parts) != 3 {
			continue
		}
		unified := parts[0] == "0" && parts[1] == ""
		if !unified && !slices.Contains(strings.Split(parts[1], ","), "cpu") {
			continue
		}
		top, base := cpuMount(mounts, unified)
		if top == "" {
			continue
		}
		// The mount shows what is below base; a container's paths begin there.
		group := path.Clean("/" + parts[2])
		if base != "/" {
			if rest, ok := strings.CutPrefix(group, base); ok {
				group = path.Clean("/" + rest)
			}
		}
		for {
			dirs = append(dirs, strings.TrimPrefix(path.Join(top, group), "/"))
			if group == "/" {
				break
			}
			group = path.Dir(group)
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("no controller of processors is mounted")
	}
	return dirs, nil
}

// cpuMount finds where the hierarchy is mounted, and which group is at its top.
func cpuMount(mounts []byte, unified bool) (top, base string) {
	for line := range bytes.Lines(mounts) {
		front, back, ok := strings.Cut(string(line), " - ")
		at, what := strings.Fields(front), strings.Fields(back) // … … … root point …; type source options
		if !ok || len(at) < 5 || len(what) < 3 {
			continue
		}
		if unified && what[0] == "cgroup2" || !unified && what[0] == "cgroup" && slices.Contains(strings.Split(what[2], ","), "cpu") {
			return at[4], at[3]
		}
	}
	return "", ""
}
