//go:build linux

package launchtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/control"
)

// on3 is a script in which process 3, on the last of four hosts, does something
// and the others wait to be ended.
func on3(do string) []string {
	return []string{"sh", "-c", `if [ $MPIV_PROCESS = 3 ]; then ` + do + `; fi; sleep 100`}
}

const four = "X,Y,Z,W"

func TestExamplesOverSSH(t *testing.T) {
	s := newSSHSite(t, 4)
	heat := []string{s.program("heat2d"), "--tolerance", "2e-4"}
	alone := s.run(heat...)
	require.Zero(t, alone.code, "%v", alone)
	input := bytes.Repeat([]byte("what is to be compressed, again and again; "), 100_000)
	require.NoError(t, os.WriteFile(s.path("text"), input, 0o644))
	for _, by := range []struct {
		name string
		args []string
	}{
		{"the default ssh", nil},
		{"ssh with a file", []string{"--launch-agent", "ssh -F " + s.path("ssh_config") + " -o BatchMode=yes"}},
	} {
		for name, c := range map[string]struct {
			says  string
			words []string
		}{
			"ring":     {"rounds of 8 ranks", []string{s.program("ring")}},
			"pi":       {"3.14159", []string{s.program("pi")}},
			"heat2d":   {alone.out[strings.Index(alone.out, "checksum"):], append([]string{"-n", "4", "--map-by", "node"}, heat...)},
			"compress": {"", []string{s.program("compress"), "-f", "--verify", "-o", s.path("text.zst"), s.path("text")}},
		} {
			t.Run(by.name+"/"+name, func(t *testing.T) {
				r := s.run(append(append(by.args, "--host", "X:2,Y:2,Z:2,W:2"), c.words...)...)
				require.Zero(t, r.code, "%v", r)
				require.Contains(t, r.out, c.says)
				require.Empty(t, r.sentences())
				s.gone()
			})
		}
	}
	info, err := os.Stat(s.path("text.zst"))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(len(input)/10))
}

func TestEndsOverSSH(t *testing.T) {
	s := newSSHSite(t, 4)
	for _, c := range []struct {
		name  string
		words []string
		code  int
		says  string
	}{
		{"a code of its own", on3("exit 7"), 7, "rank 3 on host W exited with code 7"},
		{"a signal", on3("kill -SEGV $$"), 128 + 11, "rank 3 on host W was killed by signal 11"},
		{"last words", on3("echo alas >&2; exit 3"), 3, "its last lines:"},
		{"not there", []string{"./no-such-program"}, 127, `program "./no-such-program" was not found`},
		{"no directory", []string{"--wdir", "/no/such", "true"}, 127, "working directory /no/such does not exist"},
		{"time", []string{"--timeout", "1", "sleep", "100"}, 110, "did not end within 1s"},
		{"well", []string{"true"}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.run(append([]string{"--host", four}, c.words...)...)
			require.Equal(t, c.code, r.code, "%v", r)
			if c.says == "" {
				require.Empty(t, r.errs)
			} else {
				require.Len(t, r.sentences(), 1, "%v", r)
				require.Contains(t, r.sentences()[0], c.says)
			}
			s.gone()
		})
	}
}

// A program that is on all hosts but one.
func TestAProgramIsMissingOnOneHost(t *testing.T) {
	s := newSSHSite(t, 4)
	s.write("only", "#!/bin/sh\n", 0o755)
	// The hosts share their files here, so the agent of Z looks into an empty place.
	only := s.fakeMpivrun(`if [ "$(hostname)" = Z ]; then cd / && exec unshare -m sh -c 'mount -t tmpfs none "$1" && shift && exec "$@"' sh ` +
		s.path("bin") + " " + s.program("mpivrun") + ` agent; fi; exec ` + s.program("mpivrun") + ` "$@"`)
	needs(t, "util-linux", "unshare")
	require.NoError(t, os.Mkdir(s.path("bin"), 0o755))
	require.NoError(t, os.Rename(s.path("only"), s.path("bin/only")))
	r := s.run("--mpivrun", only, "--host", four, "bin/only")
	require.Equal(t, 127, r.code, "%v", r)
	require.Equal(t, []string{`host Z: program "bin/only" was not found`}, r.sentences())
	s.gone()
}

func TestSignalsOverSSH(t *testing.T) {
	s := newSSHSite(t, 4)
	for _, c := range []struct {
		sig  syscall.Signal
		code int
	}{{syscall.SIGUSR1, 0}, {syscall.SIGTERM, 0}, {syscall.SIGINT, 0}} {
		r := s.start("--host", four, "sh", "-c",
			`n=0; trap 'n=$((n+1))' USR1 TERM INT; echo ready; while [ $n = 0 ]; do sleep 0.02; done; sleep 0.2; echo "had $n"; exit 0`)
		r.out.await(t, "ready", 4)
		r.signal(c.sig)
		end := r.wait()
		require.Equal(t, 4, strings.Count(end.out, "had 1\n"), "%v: %v", c.sig, end)
		require.Equal(t, c.code, end.code, "%v: %v", c.sig, end)
		s.gone()
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		r := s.start("--host", four, "sh", "-c", "echo ready; exec sleep 100")
		r.out.await(t, "ready", 4)
		r.signal(sig)
		end := r.wait()
		require.Equal(t, 128+int(sig), end.code, "%v", end)
		s.gone()
	}
}

func TestInputOverSSH(t *testing.T) {
	s := newSSHSite(t, 3)
	text := bytes.Repeat([]byte("0123456789abcde\n"), 40_000)
	for _, args := range [][]string{
		{"--host", four[:5]},                 // rank 0 is here
		{"--host", "Y,Z"},                    // and not here
		{"--host", four[:5], "--stdin", "2"}, // and another reads
	} {
		r := s.command(append(append([]string{s.program("mpivrun")}, args...), "sh", "-c", "cat | sum")...)
		r.cmd.Stdin = bytes.NewReader(text)
		require.NoError(t, r.cmd.Start())
		end := r.wait()
		require.Zero(t, end.code, "%v", end)
		want := exec.Command("sum")
		want.Stdin = bytes.NewReader(text)
		sum, err := want.Output()
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(end.out, string(sum)), "%v", end)
		require.Equal(t, strings.Count(args[1], ","), strings.Count(end.out, "00000 "), "the others read nothing: %v", end)
	}
	s.gone()
}

func TestDirectoriesVariablesAndOutputOverSSH(t *testing.T) {
	s := newSSHSite(t, 3)
	require.NoError(t, os.MkdirAll(s.path("sub/bin"), 0o755))
	s.write("sub/bin/show", "#!/bin/sh\necho \"$(pwd) $A $B\"\necho to err >&2\n", 0o755)
	s.env = append(s.env, "A=one", "C=three")
	r := s.run("--host", four[:5], "--wdir", "sub", "-x", "A", "-x", "B=it's two", "--tag-output", "bin/show")
	require.Zero(t, r.code, "%v", r)
	for _, rank := range []string{"0", "1", "2"} {
		require.Contains(t, r.out, "["+rank+"]<stdout>: "+s.path("sub")+" one it's two\n")
		require.Contains(t, r.errs, "["+rank+"]<stderr>: to err\n")
	}
	r = s.run("--host", four[:5], "--output", s.path("files"), "sub/bin/show")
	require.Equal(t, result{}, r)
	for _, rank := range []string{"0", "1", "2"} {
		text, err := os.ReadFile(s.path("files/rank." + rank + ".stdout"))
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(string(text), s.dir+" "), "%s", text)
		text, err = os.ReadFile(s.path("files/rank." + rank + ".stderr"))
		require.NoError(t, err)
		require.Equal(t, "to err\n", string(text))
	}
	s.gone()
}

// Hosts may be called by whatever name ssh knows, with a user, by address.
func TestNamesOfHostsOverSSH(t *testing.T) {
	s := newSSHSite(t, 3)
	r := s.run("--host", "X.example.org,root@Y.example.org,"+s.addr("Z"), "hostname")
	require.Zero(t, r.code, "%v", r)
	require.ElementsMatch(t, []string{"X", "Y", "Z"}, strings.Fields(r.out))
	s.gone()
}

func TestSentencesOverSSH(t *testing.T) {
	s := newSSHSite(t, 3)
	mpivrun := s.program("mpivrun")
	realSSH, err := exec.LookPath("ssh")
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"no such host", []string{"--host", "X,nobody.invalid"}, "host nobody.invalid cannot be reached by ssh: ssh: Could not resolve hostname nobody.invalid"},
		{"no sshd", []string{"--host", "X,Y", "--launch-agent", "ssh -p 23 -F " + s.path("ssh_config")}, "host Y cannot be reached by ssh: ssh: connect to host 10.1.0.2 port 23: Connection refused"},
		{"a key that is refused", []string{"--host", "X,Y", "--launch-agent", realSSH + " -F none -o BatchMode=yes -i " + s.path("other.key") + " -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -l root -o HostName=" + s.addr("Y")},
			"host Y cannot be reached by ssh: root@10.1.0.2: Permission denied (publickey)."},
		{"a host that is not known", []string{"--host", "X,Y", "--launch-agent", "ssh -F " + s.path("ssh_config") + " -o BatchMode=yes -o UserKnownHostsFile=/dev/null"},
			"host Y cannot be reached by ssh: Host key verification failed."},
		{"no mpivrun", []string{"--host", "X,Y", "--mpivrun", "/no/such/mpivrun"}, "host Y: mpivrun was not found there ("},
		{"an mpivrun that cannot run", []string{"--host", "X,Y", "--mpivrun", "/etc/passwd"}, "host Y: mpivrun was not found there ("},
		{"another version", []string{"--host", "X,Y", "--mpivrun", s.fakeMpivrun(fmt.Sprintf(`head -n 1 | sed 's/"Version":%d,/"Version":99,/' | `, control.AgentVersion) + mpivrun + ` "$@"`)},
			fmt.Sprintf("host Y: its mpivrun speaks version %d of the protocol of agents, the job's 99: install the same on all hosts", control.AgentVersion)},
		{"no ssh", []string{"--host", "X,Y", "--launch-agent", "no-such-ssh"}, "host Y: no-such-ssh cannot be run here to start an agent"},
		{"nothing happens", []string{"--host", "X,Y,Z", "--launch-agent", s.write("hang", "#!/bin/sh\nexec sleep 100\n", 0o755), "--launch-timeout", "0.3"},
			"no agent has joined from hosts Y, Z within 300ms: can it reach this host at one of "},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := s.run(append(c.args, "hostname")...)
			require.Equal(t, 1, r.code, "%v", r)
			require.Len(t, r.sentences(), 1, "%v", r)
			require.Contains(t, r.sentences()[0], c.says)
			require.NotContains(t, r.errs, "watched", "the banner")
			s.gone()
		})
	}
}

// The first host is behind a router: it reaches the others, and they do not
// reach it.
func TestAHeadThatCannotBeReached(t *testing.T) {
	s := newSiteOf(t, lab.Options{
		Networks: []lab.Network{{Name: "lan"}, {Name: "home", Behind: "lan"}},
		Hosts:    []lab.Host{{Name: "X", Networks: []string{"home"}}, {Name: "Y", Networks: []string{"lan"}}},
	})
	s.withSSH(true)
	r := s.run("--host", "X,Y", "--launch-timeout", "8", "hostname")
	require.Equal(t, 1, r.code, "%v", r)
	require.Len(t, r.sentences(), 1, "%v", r)
	require.Regexp(t, `^host Y: mpivrun cannot be reached from there at any of 10\.2\.0\.1:\d+ \(is there a firewall between\?\): `, r.sentences()[0])
	s.gone()
}

// Agents start agents; where the hosts may not do so, the first host starts all.
func TestTreeOverSSH(t *testing.T) {
	const n = 9
	for _, inner := range []bool{true, false} {
		s := newSite(t, n)
		s.withSSH(inner)
		r := s.run("-v", "--host", strings.Join(s.Hosts(), ","), "hostname")
		require.Zero(t, r.code, "%v", r)
		require.ElementsMatch(t, s.Hosts(), strings.Fields(r.out))
		fallen := strings.Count(r.errs, "it is started from here")
		if inner {
			require.Zero(t, fallen, "%v", r)
		} else {
			require.Equal(t, 2, fallen, "8 agents, 6 from the first: %v", r)
		}
		s.gone()
	}
}

// An interrupt before the agents have joined ends the job at once.
func TestInterruptWhileAgentsStart(t *testing.T) {
	s := newSite(t, 3)
	s.settled()
	r := s.start("-v", "--host", four[:5], "--launch-agent", s.write("hang", "#!/bin/sh\nexec sleep 100\n", 0o755), "hostname")
	r.errs.await(t, "agents start", 1)
	r.signal(syscall.SIGINT)
	end := r.wait()
	require.Equal(t, 130, end.code, "%v", end)
	require.Contains(t, end.errs, "interrupted by signal 2 (interrupt) before agents had joined from hosts Y, Z")
	s.gone()
}
