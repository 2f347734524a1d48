// Package pages finds memory for state that comes from elsewhere: before the variables are
// there that it is for, in few steps, or before anything has come at all.
package pages

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Available is how much memory this process could be given now, in bytes: by the host, as the
// system estimates it, and within the limits of the control groups that it is in. It is false where the system does not
// estimate it.
func Available() (n int64, known bool) { return available(os.DirFS("/")) }

func available(root fs.FS) (n int64, known bool) {
	host, known := sumOf(root, "proc/meminfo", "MemAvailable:")
	if !known {
		return 0, false
	}
	n = host << 10
	for _, dir := range groups(root) {
		for _, f := range [...]struct {
			limit, used string
			files       [2]string
		}{
			{"memory.max", "memory.current", [2]string{"inactive_file", "active_file"}},
			{"memory.limit_in_bytes", "memory.usage_in_bytes", [2]string{"total_inactive_file", "total_active_file"}},
		} {
			limit, limited := number(root, path.Join(dir, f.limit))
			used, ok := number(root, path.Join(dir, f.used))
			if !limited || !ok {
				continue
			}
			files, _ := sumOf(root, path.Join(dir, "memory.stat"), f.files[:]...) // the system takes these back
			n = min(n, max(0, limit-used+files))
		}
	}
	return n, true
}

// groups is the directories of the control groups of memory that this process is in, of version 1
// and 2, and of those around them.
func groups(root fs.FS) (dirs []string) {
	all, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(all)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3) // number:controllers:path
		var tops []string
		switch {
		case len(parts) != 3:
		case parts[0] == "0" && parts[1] == "":
			tops = []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"}
		case slices.Contains(strings.Split(parts[1], ","), "memory"):
			tops = []string{"sys/fs/cgroup/memory"}
		}
		for _, top := range tops {
			for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) { // a container sees the last of them alone
				dirs = append(dirs, path.Join(top, group))
				if group == "/" {
					break
				}
			}
		}
	}
	return dirs
}

// number is that in a file; false if there is none, as in "max".
func number(root fs.FS, name string) (int64, bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64)
	return n, err == nil
}

// sumOf is of the numbers that stand after some names in a file; false if there is none.
func sumOf(root fs.FS, name string, names ...string) (sum int64, some bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); len(words) > 1 && slices.Contains(names, words[0]) {
			if n, err := strconv.ParseInt(words[1], 10, 64); err == nil {
				sum, some = sum+n, true
			}
		}
	}
	return sum, some
}
