// Package pages finds memory for state that comes from elsewhere: before the variables are
// there that it is for, in few steps, or before anything has come at all.
package pages

import (
	"bufio"
	"fmt"
	"os"
)

// Available is how much memory the host could give a process now, in bytes, as the system
// estimates it. It is false where the system does not.
func Available() (n int64, known bool) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if _, err := fmt.Sscanf(lines.Text(), "MemAvailable: %d kB", &n); err == nil {
			return n << 10, true
		}
	}
	return 0, false
}
