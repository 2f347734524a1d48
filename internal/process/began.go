package process

import (
	"os"
	"runtime"

	"github.com/mpiv/mpiv/internal/control"
)

// procsAtFirst is before a program has changed it.
var procsAtFirst = runtime.GOMAXPROCS(0)

// setProcs sets how many goroutines of a process run at once, unless the program or its environment has.
func setProcs(own control.Process, ranked []control.Process) {
	if os.Getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == procsAtFirst {
		runtime.GOMAXPROCS(procs(own, ranked, runtime.NumCPU()))
	}
}

// procs is how many goroutines of a process are to run at once, of the processes with ranks that the job began
// with; usable is the cores that it may use. One more than the ranks that compute: with every P busy, nothing would look at the
// network for milliseconds (golang/go#51651). For ranks that compute with several goroutines it is the process's part of
// the host's cores, if that is more.
func procs(own control.Process, ranked []control.Process, usable int) int {
	onHost := 0
	for _, q := range ranked {
		if q.Host == own.Host {
			onHost++
		}
	}
	part := own.Cores / max(onHost, 1)
	return max(min(max(len(own.Ranks), 1), own.Cores)+1, min(part, usable))
}

// began is whether a host had more processes with ranks than cores when the job began, and whether there was one host
// alone: ranked are those processes. A spare one has nothing to do, and takes no core.
// Collectives choose by that how they divide their work, so it must be the same in all processes, those included that
// were started later: all ranks have to divide it alike, and one that computes again must send what it sent before.
func began(ranked []control.Process) (crowded, alone bool) {
	onHost := make(map[string]int)
	for _, q := range ranked {
		onHost[q.Host]++
		crowded = crowded || onHost[q.Host] > q.Cores
	}
	return crowded, len(onHost) == 1
}
