package process

import "github.com/mpiv/mpiv/internal/control"

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
