package crew

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// coreSets gives each process as many cores as it has ranks, and one if it has none, all hardware
// threads of each, and begins again at the first when all are given away.
func coreSets(ms []*child) ([]unix.CPUSet, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("find the cores to bind to: %w", err)
	}
	var cores [][]int
	for cpu := range len(allowed) * 64 {
		if !allowed.IsSet(cpu) {
			continue
		}
		siblings := siblingsOf(cpu)
		if siblings[0] < cpu && allowed.IsSet(siblings[0]) {
			continue // counted with its sibling
		}
		cores = append(cores, siblings)
	}
	sets := make([]unix.CPUSet, len(ms))
	next := 0
	for i, m := range ms {
		for range max(len(m.Ranks), 1) { // one that is spare may get a rank
			for _, cpu := range cores[next%len(cores)] {
				if allowed.IsSet(cpu) {
					sets[i].Set(cpu)
				}
			}
			next++
		}
	}
	return sets, nil
}

// siblingsOf is the hardware threads of cpu's core, ascending.
func siblingsOf(cpu int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return []int{cpu}
	}
	var all []int
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := strconv.Atoi(lo)
		last, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil {
			return []int{cpu}
		}
		for c := first; c <= last; c++ {
			all = append(all, c)
		}
	}
	return all
}
