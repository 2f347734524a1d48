package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// A contender is one implementation that can run a setting.
type contender struct {
	id, name string
	// command gives the words to run and what to add to the environment.
	command func(s setting) (argv, env []string)
	// only lists the tests that it knows; empty: all.
	only []string
	// share divides the iterations of a setting; see [setting.flags].
	share func(s setting) int
}

// mpiv is our side: words is the launch command, where these are replaced:
// {n} by the number of ranks, {transport} by shm or tcp, {test} by the test's
// name, {flags} by its options, {placement} by what places the ranks as the
// peers place theirs: a core for each where there are enough, except for the
// test with threads, and --oversubscribe otherwise.
func mpiv(words string, cores int) contender {
	return contender{
		id: "mpiv", name: "mpiv",
		share: func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) {
			placement := []string{"--bind-to", "core"}
			switch {
			case s.crowded(cores):
				placement = append(placement, "--oversubscribe")
			case s.name == "latency_mt":
				placement = nil
			}
			return expand(words, map[string][]string{
				"{n}":         {strconv.Itoa(s.ranks)},
				"{transport}": {s.transport},
				"{test}":      {s.name},
				"{flags}":     s.flags(1),
				"{placement}": placement,
			}), nil
		},
	}
}

// expand splits at blanks and replaces each word, or part of a word, that is in with.
// A word that is replaced by nothing goes away.
func expand(words string, with map[string][]string) []string {
	var argv []string
next:
	for _, word := range strings.Fields(words) {
		for key, by := range with {
			if word == key {
				argv = append(argv, by...)
				continue next
			}
			word = strings.ReplaceAll(word, key, strings.Join(by, " "))
		}
		argv = append(argv, word)
	}
	return argv
}

// openMPI runs program with Open MPI 4.1, each time with the settings that suit
// it best:
//
//   - pml ob1 with its own shared memory transport (vader, which picks the
//     kernel's single copy by itself) or its TCP transport on the loopback
//     interface; with the UCX layer it was slower.
//   - each rank on one core, where there are fewer with mpi_yield_when_idle,
//     without which a rank that waits keeps the core from the one it waits for.
//     That holds for latency_mt too, although its threads then share a core:
//     unbound, some of its sizes took a thousand times as long.
//   - the variables without which it does not start for root.
func openMPI(program string, cores int) contender {
	return contender{
		id: "openmpi", name: "Open MPI",
		share: func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) {
			argv := []string{"mpirun.openmpi", "-n", strconv.Itoa(s.ranks)}
			if s.crowded(cores) {
				argv = append(argv, "--oversubscribe", "--bind-to", "core:overload-allowed", "--mca", "mpi_yield_when_idle", "1")
			} else {
				argv = append(argv, "--bind-to", "core")
			}
			argv = append(argv, "--mca", "pml", "ob1")
			if s.transport == "tcp" {
				argv = append(argv, "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo")
			} else {
				argv = append(argv, "--mca", "btl", "self,vader")
			}
			argv = append(append(argv, program, s.name), s.flags(1)...)
			return argv, []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
		},
	}
}

// mpich runs program with MPICH 4.0, built by Debian as ch4:ucx:
//
//   - shared memory: its default, the posix module of ch4. UCX's shared memory
//     instead was not faster.
//   - TCP: NOLOCAL takes ch4's shared memory away, UCX_TLS leaves UCX nothing
//     but TCP and UCX_NET_DEVICES names the loopback interface, which it would
//     not choose. With UCX_LOG_LEVEL=info it says "tag(tcp/lo)".
//   - binding as for Open MPI, but none for latency_mt, which was faster. A rank that waits never yields its core: the
//     variable MPIR_CVAR_POLLS_BEFORE_YIELD is left over from an older device,
//     and strace sees no sched_yield with it. With more ranks than cores a call
//     takes as long as the scheduler's time slices, so it runs a hundredth of
//     the iterations then.
func mpich(program string, cores int) contender {
	share := func(s setting) int {
		if s.crowded(cores) {
			return 100
		}
		return 1
	}
	return contender{
		id: "mpich", name: "MPICH",
		share: share,
		command: func(s setting) ([]string, []string) {
			bind := "core"
			if s.crowded(cores) || s.name == "latency_mt" {
				bind = "none"
			}
			argv := []string{"mpirun.mpich", "-n", strconv.Itoa(s.ranks), "-bind-to", bind, program, s.name}
			var env []string
			if s.transport == "tcp" {
				env = []string{"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"}
			}
			return append(argv, s.flags(share(s))...), env
		},
	}
}

// A need is a command that a peer is built or run with, and the Debian package that has it.
type need struct{ command, pkg string }

// peerNeeds are the packages of each peer. The -dev packages depend on those with
// the compiler commands and bring mpi.h.
var peerNeeds = map[string][]need{
	"openmpi": {{"mpirun.openmpi", "openmpi-bin"}, {"mpicc.openmpi", "libopenmpi-dev"}},
	"mpich":   {{"mpirun.mpich", "mpich"}, {"mpicc.mpich", "libmpich-dev"}},
}

// missing returns an error that names the packages to install for these peers,
// or nil.
func missing(peers []string, look func(string) (string, error)) error {
	var commands, packages []string
	for _, peer := range peers {
		for _, n := range peerNeeds[peer] {
			if _, err := look(n.command); err != nil {
				commands = append(commands, n.command)
				packages = append(packages, n.pkg)
			}
		}
	}
	if len(commands) == 0 {
		return nil
	}
	return fmt.Errorf("not found: %s; on Debian: apt-get install gcc %s",
		strings.Join(commands, ", "), strings.Join(packages, " "))
}

// build compiles source for the peer into dir and returns the program.
func build(peer, source, dir string) (string, error) {
	program := filepath.Join(dir, "osu."+peer)
	if !filepath.IsAbs(program) {
		program = "." + string(filepath.Separator) + program // or a launcher looks along PATH
	}
	// MPICH's MPI_STATUSES_IGNORE makes gcc 12 warn of an overflow that is none.
	cmd := exec.Command("mpicc."+peer, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror",
		"-Wno-stringop-overflow", "-pthread", "-o", program, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return program, nil
}
