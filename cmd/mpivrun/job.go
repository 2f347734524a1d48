package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/internal/control"
)

// processesPerCore is how many processes for each core start without being
// asked for. Telling people off for four ranks on a laptop's two cores, as
// where slots are given, would be hostile; a few thousand processes by a slip
// of the finger would be worse.
const processesPerCore = 16

// level is what ranks outlive.
func (r *run) level() string {
	if r.Survive == "" && r.Spares > 0 {
		return "crashes"
	}
	return r.Survive
}

// job is what r asks for, on m. Hosts are those of r's hostfile and --host.
func (r *run) job(m machine, hosts []host) (agent.Job, error) {
	j := agent.Job{
		RanksPerProcess: max(r.RanksPerProcess, 1), Host: m.Names[0], ByNode: r.MapBy == "node",
		Tag: r.Tag, Timestamp: r.Timestamp, OutputDir: r.Output,
		Events: r.Events, Trace: r.Trace, Metrics: r.Metrics, Targets: r.Targets,
		Timeout: r.Timeout, Silence: r.Silence, Grace: r.Grace, Bind: r.Bind == "core", Deadlock: r.Deadlock,
		Chaos: r.Chaos, ChaosHistory: r.ChaosHistory,
		Spares: r.Spares, Contracts: r.Contracts, ContractsFile: r.ContractsFile, Thresholds: r.Thresholds, Ganglia: r.Ganglia,
		Quiet: r.Quiet, Verbose: r.Verbose,
		Options: control.Options{Survive: r.level(), Snapshot: r.Snapshot, Transports: r.Transports, LogBytes: r.LogBytes, LogDisk: int64(r.LogDisk), Ready: int64(r.SpareMemory), Check: r.Check, Insecure: r.Insecure},
		Launch:  agent.Launch{Command: r.LaunchAgent, Mpivrun: r.Mpivrun, Patience: r.LaunchTimeout, Slurm: inSlurm() && len(r.LaunchAgent) == 0},
	}
	if r.Targets != "" && r.Metrics == "" {
		return j, errors.New("--metrics-targets says where metrics are served; --metrics has them served")
	}
	if level := r.level(); r.Spares > 0 && (level == "none" || level == "report") {
		return j, fmt.Errorf("--spares are for ranks that go on in them; with --survive %s no rank does", level)
	}
	if r.ChaosHistory != "" && len(r.Chaos) == 0 {
		return j, errors.New("--chaos-history is of faults; --chaos orders some")
	}
	var err error
	if j.Breaker, err = breakerFor(r.Chaos); err != nil {
		return j, err
	}
	for i := range hosts {
		if r.PerNode > 0 {
			hosts[i].Slots = r.PerNode
		}
	}
	j.Hosts = jobHosts(hosts, m)
	slots := slotsOf(hosts, m)
	if len(hosts) == 0 {
		slots = r.PerNode
	}
	ranks, processes := 0, 0
	for _, p := range r.Programs {
		n := p.Ranks
		if n == 0 && len(r.Programs) > 1 {
			return j, fmt.Errorf("with several programs each needs its number of ranks: -n N before %s", p.Words[0])
		}
		if n == 0 {
			if n = m.Cores; slots > 0 {
				n = slots
			}
			n = max(n, r.RanksPerProcess)
		}
		ranks += n
		processes += (n + j.RanksPerProcess - 1) / j.RanksPerProcess
		j.Programs = append(j.Programs, agent.Program{Ranks: n, Path: p.Words[0], Args: p.Words[1:], Env: exported(p.Env), Dir: p.Dir})
	}
	switch {
	case r.Oversubscribe:
	case slots > 0 && processes > slots:
		return j, fmt.Errorf("%d processes do not fit %d slots; --oversubscribe allows it, --ranks-per-process needs fewer", processes, slots)
	case slots == 0 && processes > processesPerCore*m.Cores:
		return j, fmt.Errorf("%d processes on %d cores are more than %d for each; --oversubscribe allows it, --ranks-per-process needs fewer", processes, m.Cores, processesPerCore)
	case slots == 0 && processes+r.Spares > processesPerCore*m.Cores:
		return j, fmt.Errorf("%d processes and %d spare ones on %d cores are more than %d for each; --oversubscribe allows it", processes, r.Spares, m.Cores, processesPerCore)
	}
	if r.Stdin == "none" {
		j.StdinRank = -1
	} else if r.Stdin != "" {
		if j.StdinRank, _ = strconv.Atoi(r.Stdin); j.StdinRank >= ranks {
			return j, fmt.Errorf("--stdin %s: the job has ranks 0 to %d", r.Stdin, ranks-1)
		}
	}
	return j, nil
}

// slotsOf is how many processes hosts take; 0 where that is not said.
func slotsOf(hosts []host, m machine) int {
	if len(hosts) == 1 && hosts[0].Slots == 0 && hosts[0].isLocal(m) {
		return m.Cores
	}
	slots := 0
	for _, h := range hosts {
		slots += max(h.Slots, 1)
	}
	return slots
}

// jobHosts is hosts for the agent. A host that is named several times has the
// slots of all, as with mpirun.
func jobHosts(hosts []host, m machine) []agent.Host {
	var once []host
	at := map[string]int{}
	for _, h := range hosts {
		key := h.Name
		if h.isLocal(m) {
			key = "" // whatever it is called
		}
		if i, again := at[key]; again {
			once[i].add(h)
			continue
		}
		at[key] = len(once)
		once = append(once, h)
	}
	here, isHere := at[""]
	var all []agent.Host
	for i, h := range once {
		all = append(all, agent.Host{
			Name: h.Name, Slots: max(h.Slots, 1), MaxSlots: h.MaxSlots, Here: isHere && i == here, Networks: h.Networks, Distrusted: h.Distrusted,
		})
	}
	return all
}

// exported gives the variables that are only named the values that they have
// here. Processes of this host would get them anyway; those of others do not.
func exported(env []string) []string {
	var set []string
	for _, v := range env {
		if strings.Contains(v, "=") {
			set = append(set, v)
		} else if value, ok := os.LookupEnv(v); ok {
			set = append(set, v+"="+value)
		}
	}
	return set
}

// hosts is those of r's hostfile, or else of the allocation that this runs in; of
// them those that --host names. Without either it is what --host names.
func (r *run) hosts() ([]host, error) {
	if r.Hostfile != "" {
		text, err := os.ReadFile(r.Hostfile)
		if err != nil {
			return nil, fmt.Errorf("--hostfile: %w", err)
		}
		more, err := parseHostfile(string(text))
		if err != nil {
			return nil, fmt.Errorf("--hostfile %s: %w", r.Hostfile, brief.Error(err))
		}
		if len(r.Hosts) == 0 {
			return more, nil
		}
		return chosenOf(more, r.Hosts, "--hostfile "+r.Hostfile)
	}
	if inSlurm() && len(r.LaunchAgent) == 0 {
		all, err := slurmHosts()
		if err != nil || len(r.Hosts) == 0 {
			return all, err
		}
		return chosenOf(all, r.Hosts, "the allocation of Slurm")
	}
	return r.Hosts, nil
}
