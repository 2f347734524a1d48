package pages

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// Own tells whether all of b is memory that this process alone has: no file's, and not shared.
// Only of that does the book of its page table tell all that is written, and only that may get
// other pages: of others there is a second mapping, here or in another process.
func Own(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	f, err := os.Open("/proc/self/maps")
	if err != nil {
		return false
	}
	defer f.Close()
	next, end := uint64(at(b)), uint64(at(b)+len(b))
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var from, to, off, inode uint64
		var mode, device string
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %d", &from, &to, &mode, &off, &device, &inode); err != nil {
			return false
		}
		if to <= next {
			continue
		}
		if from > next || inode != 0 || !strings.HasSuffix(mode, "p") {
			return false
		}
		if next = to; next >= end {
			return true
		}
	}
	return false
}
