package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// inSlurm is true within an allocation of Slurm.
func inSlurm() bool { return os.Getenv("SLURM_JOB_ID") != "" && os.Getenv("SLURM_JOB_NODELIST") != "" }

// slurmHosts is the nodes of the allocation, each with as many slots as the
// allocation has tasks there, or cores where it has none.
func slurmHosts() ([]host, error) {
	out, err := exec.Command("scontrol", "show", "hostnames", os.Getenv("SLURM_JOB_NODELIST")).Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok && len(failed.Stderr) > 0 {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(failed.Stderr)))
		}
		return nil, fmt.Errorf("ask scontrol for the nodes of the allocation (--hostfile names them instead): %w", err)
	}
	nodes := strings.Fields(string(out))
	counts := os.Getenv("SLURM_TASKS_PER_NODE")
	if os.Getenv("SLURM_NTASKS") == "" || counts == "" {
		counts = os.Getenv("SLURM_JOB_CPUS_PER_NODE")
	}
	slots, err := perNode(counts)
	if err != nil || len(slots) != len(nodes) {
		return nil, fmt.Errorf("the allocation has nodes %v and %q tasks on them, which cannot be matched (--hostfile names them instead)", nodes, counts)
	}
	hosts := make([]host, len(nodes))
	for i, n := range nodes {
		if hosts[i], err = parseHost(n); err != nil {
			return nil, err
		}
		hosts[i].Slots = slots[i]
	}
	return hosts, nil
}

// perNode parses "2(x3),1": 2, 2, 2 and 1.
func perNode(text string) ([]int, error) {
	var all []int
	for word := range strings.SplitSeq(text, ",") {
		count, times, repeated := strings.Cut(word, "(x")
		n, err := number(count, 1, maxSlots)
		if err != nil {
			return nil, err
		}
		k := 1
		if repeated {
			times, closed := strings.CutSuffix(times, ")")
			if k, err = strconv.Atoi(times); err != nil || !closed || k < 1 || k > maxSlots {
				return nil, errors.New("want N(xTIMES)")
			}
		}
		if len(all)+k > maxSlots {
			return nil, errors.New("too many nodes")
		}
		for range k {
			all = append(all, n)
		}
	}
	return all, nil
}
