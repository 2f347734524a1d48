//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A use is what processes hold, and what they have used.
type use struct {
	files int
	mem   float64 // MB
	cpu   float64 // s, since they began
}

// usage is that of the processes of host X.
func usage(l *lab.Lab) (all use, err error) {
	pids, err := l.Pids("X")
	if err != nil {
		return use{}, err
	}
	for _, pid := range pids {
		u, err := usageOf(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return use{}, err
		}
		all.files += u.files
		all.mem += u.mem
		all.cpu += u.cpu
	}
	return all, nil
}

func usageOf(pid int) (u use, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return u, err
	}
	u.files = len(entries)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, err
	}
	if u.mem, err = parseRSS(string(text)); err != nil {
		return u, err
	}
	if text, err = os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil {
		return u, err
	}
	u.cpu, err = parseCPU(string(text))
	return u, err
}

// ticks is how many of /proc's units of CPU time a second has, on every machine
// that Go runs on.
const ticks = 100

// parseCPU reads /proc/PID/stat: seconds in the program and in the kernel.
func parseCPU(text string) (float64, error) {
	i := strings.LastIndexByte(text, ')') // a name may have spaces and brackets
	f := strings.Fields(text[i+1:])
	if i < 0 || len(f) < 13 {
		return 0, fmt.Errorf("/proc/PID/stat: %q has too few columns", strings.TrimSpace(text))
	}
	user, err := strconv.ParseUint(f[11], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/PID/stat: %w", err)
	}
	system, err := strconv.ParseUint(f[12], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/PID/stat: %w", err)
	}
	return float64(user+system) / ticks, nil
}

// parseRSS reads /proc/PID/status: MB in memory; 0 of a process that has ended.
func parseRSS(text string) (float64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			return kb / 1000, err
		}
	}
	return 0, nil
}
