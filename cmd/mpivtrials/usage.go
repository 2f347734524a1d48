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

// usage is how many descriptors, and how many MB of memory, the processes of a host
// hold.
func usage(l *lab.Lab, host string) (files int, mem float64, err error) {
	pids, err := l.Pids(host)
	if err != nil {
		return 0, 0, err
	}
	for _, pid := range pids {
		n, m, err := usageOf(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, 0, err
		}
		files, mem = files+n, mem+m
	}
	return files, mem, nil
}

func usageOf(pid int) (files int, mem float64, err error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	mem, err = parseRSS(string(text))
	return len(entries), mem, err
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
