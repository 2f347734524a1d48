package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func commandOf(c contender, s setting) string {
	argv, env := c.command(s)
	return strings.Join(append(env, argv...), " ")
}

func atRanks(ranks int, transport, name string) setting {
	return setting{test: test{name: name, sizes: []int{8}, iters: 200, warmup: 100}, ranks: ranks, transport: transport}
}

func TestCommands(t *testing.T) {
	const root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
	const tcp = "MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self UCX_NET_DEVICES=lo "
	const launch = "run -n {n} {placement} --transport={transport} bench {test} {flags}"
	for name, c := range map[string]struct {
		contender
		setting
		want string
	}{
		"Open MPI, a core each, shared memory": {openMPI("./osu", 2), atRanks(2, "shm", "bw"),
			root + "mpirun.openmpi -n 2 --bind-to core --mca pml ob1 --mca btl self,vader ./osu bw -s 8 -i 200 -x 100"},
		"Open MPI, crowded, TCP": {openMPI("./osu", 2), atRanks(4, "tcp", "bcast"),
			root + "mpirun.openmpi -n 4 --oversubscribe --bind-to core:overload-allowed --mca mpi_yield_when_idle 1 --mca pml ob1 --mca btl self,tcp --mca btl_tcp_if_include lo ./osu bcast -s 8 -i 200 -x 100"},
		"MPICH, a core each, shared memory": {mpich("./osu", 2), atRanks(2, "shm", "bw"),
			"mpirun.mpich -n 2 -bind-to core ./osu bw -s 8 -i 200 -x 100"},
		"MPICH, a core each, TCP": {mpich("./osu", 2), atRanks(2, "tcp", "bw"),
			tcp + "mpirun.mpich -n 2 -bind-to core ./osu bw -s 8 -i 200 -x 100"},
		"MPICH, crowded, does a hundredth": {mpich("./osu", 2), atRanks(4, "shm", "bcast"),
			"mpirun.mpich -n 4 -bind-to none ./osu bcast -s 8 -i 2 -x 1"},
		"MPICH, threads unbound": {mpich("./osu", 2), atRanks(2, "shm", "latency_mt"),
			"mpirun.mpich -n 2 -bind-to none ./osu latency_mt -s 8 -i 200 -x 100"},
		"mpiv, a core each": {mpiv(launch, 2), atRanks(2, "shm", "bw"),
			"run -n 2 --bind-to core --transport=shm bench bw -s 8 -i 200 -x 100"},
		"mpiv, crowded": {mpiv(launch, 2), atRanks(4, "tcp", "bw"),
			"run -n 4 --bind-to core --oversubscribe --transport=tcp bench bw -s 8 -i 200 -x 100"},
		"mpiv, a test without options": {mpiv(launch, 4), setting{test: test{name: "init"}, ranks: 4, transport: "shm"},
			"run -n 4 --bind-to core --transport=shm bench init"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, commandOf(c.contender, c.setting))
		})
	}
}

func TestMissingNamesThePackages(t *testing.T) {
	all := func(string) (string, error) { return "/usr/bin/x", nil }
	require.NoError(t, missing([]string{"openmpi", "mpich"}, all))
	noMPICH := func(command string) (string, error) {
		if strings.HasSuffix(command, ".mpich") {
			return "", errors.New("no")
		}
		return "/usr/bin/x", nil
	}
	require.NoError(t, missing([]string{"openmpi"}, noMPICH))
	require.ErrorContains(t, missing([]string{"openmpi", "mpich"}, noMPICH), "apt-get install gcc mpich libmpich-dev")
}
