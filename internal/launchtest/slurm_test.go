//go:build linux

package launchtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// newSlurmSite has a Slurm of its own: a slurmd on each of four hosts, the
// controller on the first, and a munged with a socket of its own.
func newSlurmSite(t *testing.T) *site {
	t.Helper()
	needsRoot(t, "slurmd")
	for _, name := range []string{"slurmctld", "slurmd", "srun", "salloc", "sbatch", "scontrol", "scancel", "munged"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is not installed (Debian: apt-get install slurmctld slurmd slurm-client munge)", name)
		}
	}
	s := newSite(t, 4)
	for _, dir := range []string{"munge", "state", "spool"} {
		require.NoError(t, os.Mkdir(s.path(dir), 0o700))
	}
	s.write("munge/key", strings.Repeat("not a secret: it is for this test alone ", 4), 0o400)
	require.NoError(t, os.Chmod(s.path("munge"), 0o711))
	s.daemon("X", "munged", "--foreground", "--force", "--num-threads", "2", "--key-file", s.path("munge/key"), "--socket", s.path("munge/socket"),
		"--pid-file", s.path("munge/pid"), "--log-file", s.path("munge/log"), "--seed-file", s.path("munge/seed"))
	require.Eventually(t, func() bool { _, err := os.Stat(s.path("munge/socket")); return err == nil }, 20*time.Second, 5*time.Millisecond,
		"munged does not listen")

	var nodes strings.Builder
	for _, h := range s.Hosts() {
		fmt.Fprintf(&nodes, "NodeName=%s NodeAddr=%s NodeHostname=%s CPUs=4 State=UNKNOWN\n", h, s.addr(h), h)
	}
	s.write("cgroup.conf", "CgroupPlugin=cgroup/v1\nIgnoreSystemd=yes\n", 0o644)
	conf := s.write("slurm.conf", fmt.Sprintf(`ClusterName=lab
SlurmctldHost=X(%s)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=%s
CredType=cred/munge
StateSaveLocation=%s
SlurmdSpoolDir=%s/%%n
SlurmctldPidFile=%s/ctld.pid
SlurmdPidFile=%s/%%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0
ReturnToService=2
KillWait=2
InactiveLimit=0
MailProg=/bin/true
%sPartitionName=all Nodes=X,Y,Z,W Default=YES State=UP
`, s.addr("X"), s.path("munge/socket"), s.path("state"), s.path("spool"), s.dir, s.dir, nodes.String()), 0o644)
	s.env = append(s.env, "SLURM_CONF="+conf)
	s.daemon("X", "slurmctld", "-D", "-f", conf)
	for _, h := range s.Hosts() {
		s.daemon(h, "slurmd", "-D", "-N", h, "-f", conf)
	}
	require.Eventually(t, func() bool {
		r := s.command("scontrol", "show", "nodes", "--oneliner")
		return r.cmd.Run() == nil && strings.Count(r.out.String(), "State=IDLE ") == 4
	}, 20*time.Second, 50*time.Millisecond, "the nodes are not idle")
	s.settled()
	s.alien = "slurmstepd: " // stays until it has given up to reach an srun that was killed
	return s
}

// daemon runs a command of Slurm on a host until the end of the test.
func (s *site) daemon(host, name string, args ...string) {
	s.t.Helper()
	path, err := exec.LookPath(name)
	require.NoError(s.t, err)
	c := s.Command(context.Background(), host, path, args...)
	c.Env = append(c.Env, s.env...)
	log, err := os.Create(s.path(name + "." + host))
	require.NoError(s.t, err)
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	require.NoError(s.t, c.Start())
	s.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
}

// allocated is a command within an allocation of all four nodes.
func (s *site) allocated(options string, words ...string) *running {
	return s.command(append(append([]string{"salloc", "--quiet", "-N4"}, strings.Fields(options)...), words...)...)
}

func (r *running) run() result {
	r.s.t.Helper()
	require.NoError(r.s.t, r.cmd.Start())
	return r.wait()
}

// idle waits until Slurm has all nodes back, so that the next test finds them.
func (s *site) idle() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		r := s.command("squeue", "-h")
		return r.cmd.Run() == nil && strings.TrimSpace(r.out.String()) == ""
	}, 30*time.Second, 50*time.Millisecond, "jobs are left")
}

func TestSlurm(t *testing.T) {
	s := newSlurmSite(t)
	mpivrun := s.program("mpivrun")
	for _, c := range []struct {
		name    string
		options string
		words   []string
		code    int
		hosts   string // one for each line of the output
		says    string
	}{
		{"a rank for each task", "-n4 --ntasks-per-node=1", []string{"hostname"}, 0, "X Y Z W", ""},
		{"or for each core", "--exclusive", []string{"hostname"}, 0, strings.Repeat("X Y Z W ", 4), ""},
		{"as many as are asked for", "-n4 --ntasks-per-node=1", []string{"-n", "2", "hostname"}, 0, "W X", ""},
		{"and no more", "-n4 --ntasks-per-node=1", []string{"-n", "5", "hostname"}, 2, "", "5 processes do not fit 4 slots"},
		{"some of the nodes", "-n4 --ntasks-per-node=1", []string{"--host", "Z:2,W", "hostname"}, 0, "Z Z W", ""},
		{"none of the nodes", "-n4 --ntasks-per-node=1", []string{"--host", "X,nobody", "hostname"}, 2, "", "host nobody is not in the allocation of Slurm"},
		{"a rank's code", "-n4 --ntasks-per-node=1", on3("exit 7"), 7, "", "rank 3 on host Z exited with code 7"},
		{"a rank's signal", "-n4 --ntasks-per-node=1", on3("kill -KILL $$"), 137, "", "rank 3 on host Z was killed by signal 9"},
		{"no program", "-n4 --ntasks-per-node=1", []string{"--host", "Y,Z", "./none"}, 127, "", `program "./none" was not found`},
		{"no mpivrun", "-n4 --ntasks-per-node=1", []string{"--mpivrun", "/no/such/mpivrun", "hostname"}, 1, "", "hosts W, Y, Z: mpivrun was not found there ("},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.allocated(c.options, append([]string{mpivrun}, c.words...)...).run()
			require.Equal(t, c.code, r.code, "%v", r)
			if c.hosts != "" {
				require.ElementsMatch(t, strings.Fields(c.hosts), strings.Fields(r.out), "%v", r)
			}
			if c.says == "" {
				require.Empty(t, r.sentences(), "%v", r)
			} else {
				require.Len(t, r.sentences(), 1, "%v", r)
				require.Contains(t, r.sentences()[0], c.says)
			}
			s.idle()
			s.gone()
		})
	}

	t.Run("messages", func(t *testing.T) {
		r := s.allocated("-n8 --ntasks-per-node=2", mpivrun, s.program("ring")).run()
		require.Zero(t, r.code, "%v", r)
		require.Contains(t, r.out, "rounds of 8 ranks")
		s.idle()
		s.gone()
	})
	t.Run("one agent on each node", func(t *testing.T) {
		r := s.allocated("-n8 --ntasks-per-node=2", mpivrun, "-v", "sh", "-c", "echo $PPID").run()
		require.Zero(t, r.code, "%v", r)
		require.Equal(t, 3, strings.Count(r.errs, "its agent has joined"), "%v", r)
		agents := map[string]bool{}
		for _, pid := range strings.Fields(r.out) {
			agents[pid] = true
		}
		require.Len(t, agents, 4, "%v", r)
		s.idle()
	})
	t.Run("input", func(t *testing.T) {
		r := s.allocated("-n4 --ntasks-per-node=1", mpivrun, "--stdin", "2", "cat")
		text := bytes.Repeat([]byte("much to read\n"), 20_000)
		r.cmd.Stdin = bytes.NewReader(text)
		end := r.run()
		require.Zero(t, end.code, "%s", end.errs)
		require.Equal(t, len(text), len(end.out))
		s.idle()
	})
	t.Run("signals", func(t *testing.T) {
		r := s.allocated("-n4 --ntasks-per-node=1", mpivrun, "sh", "-c", `trap 'echo had; exit 0' USR1; echo ready; while :; do sleep 0.02; done`)
		require.NoError(t, r.cmd.Start())
		r.out.await(t, "ready", 4)
		pids := s.pids("X", mpivrun+" sh")
		require.Len(t, pids, 2, "salloc and mpivrun")
		require.NoError(t, syscall.Kill(pids[len(pids)-1], syscall.SIGUSR1))
		end := r.wait()
		require.Zero(t, end.code, "%v", end)
		require.Equal(t, 4, strings.Count(end.out, "had"))
		s.idle()
		s.gone()
	})
	t.Run("the end of srun", func(t *testing.T) {
		r := s.allocated("-n4 --ntasks-per-node=1", append([]string{mpivrun}, family...)...)
		require.NoError(t, r.cmd.Start())
		r.out.await(t, "ready", 4)
		killed(t, withoutChildren(t, s.pids("X", ": srun "))) // srun has one, and ends well if only that is killed
		end := r.wait()
		require.Equal(t, 1, end.code, "%v", end)
		require.Len(t, end.sentences(), 1, "%v", end)
		require.Equal(t, "srun, which started the agents of the other nodes, ended with code 137: was it killed?", end.sentences()[0])
		s.idle()
		s.gone()
	})
	t.Run("the end of mpivrun", func(t *testing.T) {
		r := s.allocated("-n4 --ntasks-per-node=1", append([]string{mpivrun}, family...)...)
		require.NoError(t, r.cmd.Start())
		r.out.await(t, "ready", 4)
		pids := s.pids("X", mpivrun+" sh")
		require.NoError(t, syscall.Kill(pids[len(pids)-1], syscall.SIGKILL))
		r.wait()
		s.gone("Y", "Z", "W")
		s.idle()
		s.gone()
	})
	t.Run("a batch job", func(t *testing.T) {
		s.write("job", "#!/bin/sh\nexec "+mpivrun+" hostname\n", 0o755)
		r := s.command("sbatch", "--quiet", "--wait", "-N4", "-n4", "--ntasks-per-node=1", "-o", s.path("batch"), s.path("job")).run()
		text, _ := os.ReadFile(s.path("batch"))
		require.Zero(t, r.code, "%v: %s", r, text)
		require.ElementsMatch(t, []string{"X", "Y", "Z", "W"}, strings.Fields(string(text)))
		s.idle()
		s.gone()
	})
	t.Run("a cancelled batch job", func(t *testing.T) {
		s.write("job", "#!/bin/sh\nexec "+mpivrun+" sh -c 'trap \"\" TERM; touch "+s.path("up")+".$MPIV_PROCESS; sleep 1000'\n", 0o755)
		require.NoError(t, s.command("sbatch", "--quiet", "-N4", "-n4", "--ntasks-per-node=1", "-o", s.path("batch"), s.path("job")).cmd.Run())
		require.Eventually(t, func() bool { up, _ := filepath.Glob(s.path("up.*")); return len(up) == 4 }, 30*time.Second, 20*time.Millisecond)
		require.NoError(t, s.command("scancel", "--name", "job").cmd.Run())
		s.idle()
		s.gone()
	})
}
