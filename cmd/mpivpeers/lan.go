package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// "lan" is TCP between two hosts, X and Y: those of a lab (docs/lab.md), within
// which this command then runs, on X. The network between them is called lan,
// and so is each host's interface to it.
const lan = "lan"

// lanNetwork is the addresses of that network.
const lanNetwork = "10.1.0.0/16"

// tls13 ends the id of a contender with encryption, which no peer has: it is
// shown, and no peer of mpiv without.
const tls13 = "-tls"

// inLab is an error if there are no such hosts.
func inLab() error {
	if os.Getenv("MPIV_LAB") == "" {
		return fmt.Errorf("-transports %s is for two hosts of a lab: mpivlab --hosts X,Y --lan 0 -- mpivpeers -transports %s …", lan, lan)
	}
	return nil
}

// ownSys shows the interfaces of the host in /sys, where UCX looks for them, to
// who has a mount namespace of its own.
const ownSys = "mount -t sysfs sysfs /sys"

// writeRemoteShell makes what launchers take for ssh: the host comes first, after
// options that there is no use for, and the rest is for a shell there.
func writeRemoteShell(dir string) (path string, err error) {
	if path, err = filepath.Abs(filepath.Join(dir, "lab-rsh")); err != nil {
		return "", err
	}
	script := "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\nexec mpivlab exec \"$host\" unshare -m sh -c \"" + ownSys + "; $*\"\n"
	return path, os.WriteFile(path, []byte(script), 0o755)
}

// mpivLAN is our side between two hosts, encrypted or not.
func mpivLAN(id, name string, more ...string) contender {
	return contender{
		id: id, name: name,
		share: func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) {
			argv := append([]string{"bin/mpivrun", "-q", "-n", strconv.Itoa(s.ranks), "--host", "X,Y", "--map-by", "node", "--oversubscribe",
				"--launch-agent", "mpivlab exec", "--transport", "tcp", "--bind-to", "none"}, more...)
			return append(append(argv, "bin/mpivbench", s.name), s.flags(1)...), nil
		},
	}
}

// openMPILAN and mpichLAN are the peers with the settings of openMPI and mpich,
// started through rsh.
func openMPILAN(program, rsh string) contender {
	return contender{
		id: "openmpi", name: "Open MPI",
		share: func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) {
			argv := []string{"mpirun.openmpi", "-n", strconv.Itoa(s.ranks), "--host", "X:8,Y:8", "--map-by", "node", "--bind-to", "none",
				"--mca", "plm_rsh_agent", rsh, "--mca", "oob_tcp_if_include", lanNetwork,
				"--mca", "pml", "ob1", "--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", lanNetwork, program, s.name}
			return append(argv, s.flags(1)...), []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
		},
	}
}

func mpichLAN(program, rsh string) contender {
	return contender{
		id: "mpich", name: "MPICH",
		share: func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) {
			argv := []string{"unshare", "-m", "sh", "-c", ownSys + `; exec "$@"`, "sh", "mpirun.mpich", "-n", strconv.Itoa(s.ranks), "-hosts", "X,Y", "-ppn", "1", "-bind-to", "none",
				"-launcher", "ssh", "-launcher-exec", rsh, "-localhost", "10.1.0.1", "-iface", lan, program, s.name}
			return append(argv, s.flags(1)...), []string{"MPIR_CVAR_NOLOCAL=1", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=" + lan}
		},
	}
}

// contendersLAN is contenders between two hosts: mpiv without encryption, as the
// peers are, and with.
func (o options) contendersLAN() ([]contender, error) {
	if err := inLab(); err != nil {
		return nil, err
	}
	rsh, err := writeRemoteShell(o.out)
	if err != nil {
		return nil, err
	}
	all := []contender{mpivLAN("mpiv", "mpiv", "--insecure"), mpivLAN("mpiv"+tls13, "mpiv, TLS 1.3")}
	if self, err := os.Executable(); err == nil {
		all = append(all, stream(self))
	}
	makers := map[string]func(program, rsh string) contender{"openmpi": openMPILAN, "mpich": mpichLAN}
	for _, peer := range o.against {
		program, err := build(peer, o.source, o.out)
		if err != nil {
			return nil, err
		}
		if program, err = filepath.Abs(program); err != nil {
			return nil, err
		}
		all = append(all, makers[peer](program, rsh))
	}
	return all, nil
}
