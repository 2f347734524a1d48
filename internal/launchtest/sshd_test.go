//go:build linux

package launchtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// withSSH has an sshd on every host of s, with keys of its own, and a program
// "ssh" first in PATH that is the real one with a configuration of its own: the
// real one takes its user's from the home directory in /etc/passwd, which is not
// ours to change. inner: a host may reach the others so, too, not only the first.
func (s *site) withSSH(inner bool) {
	s.t.Helper()
	needs(s.t, "openssh-client openssh-server", "ssh", "ssh-keygen")
	sshd, err := exec.LookPath("sshd")
	if err != nil {
		sshd = "/usr/sbin/sshd" // not in everybody's PATH
	}
	if _, err := os.Stat(sshd); err != nil {
		s.t.Skip("sshd is not installed (Debian: apt-get install openssh-server)")
	}
	needsRoot(s.t, "sshd, which changes its user,")
	if _, err := os.Stat("/run/sshd"); err != nil {
		s.t.Skip("sshd wants the directory /run/sshd, which is not there (mkdir -m 755 /run/sshd)")
	}
	ssh, err := exec.LookPath("ssh")
	require.NoError(s.t, err)
	for _, key := range []string{"host", "user", "other"} {
		out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", s.path(key+".key")).CombinedOutput()
		require.NoError(s.t, err, "%s", out)
	}
	public := func(key string) string {
		text, err := os.ReadFile(s.path(key + ".key.pub"))
		require.NoError(s.t, err)
		return strings.TrimSpace(string(text))
	}
	var config, known strings.Builder
	for _, h := range s.Hosts() {
		fmt.Fprintf(&config, "Host %s %s.example.org\n  HostName %s\n", h, h, s.addr(h))
		fmt.Fprintf(&known, "%s %s\n", s.addr(h), public("host"))
	}
	fmt.Fprintf(&config, `Host *
  User root
  IdentityFile %s
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile %s
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
`, s.path("user.key"), s.write("known", known.String(), 0o600))
	s.write("ssh_config", config.String(), 0o600)
	require.NoError(s.t, os.Mkdir(s.path("path"), 0o755))
	s.write("path/ssh", fmt.Sprintf("#!/bin/sh\nexec %s -F %s \"$@\"\n", ssh, s.path("ssh_config")), 0o755)
	s.env = append(s.env, "PATH="+s.path("path")+":"+os.Getenv("PATH"))

	path := os.Getenv("PATH")
	if inner {
		path = s.path("path") + ":" + path
	}
	s.write("banner", "Use of this host is watched.\nDo no harm.\n", 0o644)
	s.write("authorized", public("user")+"\n", 0o600)
	s.write("sshd_config", fmt.Sprintf(`HostKey %s
AuthorizedKeysFile %s
Banner %s
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PidFile none
MaxStartups 100
PrintMotd no
LogLevel ERROR
SetEnv "PATH=%s" "XDG_RUNTIME_DIR=%s" SHLVL=2
`, s.path("host.key"), s.path("authorized"), s.path("banner"), path, s.path("run")), 0o600)
	for _, h := range s.Hosts() {
		c := s.Command(s.t.Context(), h, sshd, "-D", "-e", "-f", s.path("sshd_config"))
		log, err := os.Create(s.path("sshd." + h))
		require.NoError(s.t, err)
		defer log.Close()
		c.Stderr = log
		require.NoError(s.t, c.Start())
		s.t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	}
	for _, h := range s.Hosts() {
		require.Eventually(s.t, func() bool {
			c, err := s.Dial(s.t.Context(), h, "tcp", "127.0.0.1:22")
			if err == nil {
				c.Close()
			}
			return err == nil
		}, 20*time.Second, 5*time.Millisecond, "no sshd answers on %s", h)
	}
	require.Eventually(s.t, func() bool { // those that the dials began have ended
		s.settled()
		for _, h := range s.Hosts() {
			if len(s.quiet[h]) != 1 {
				return false
			}
		}
		return true
	}, 20*time.Second, 10*time.Millisecond)
}

func (s *site) addr(host string) string {
	s.t.Helper()
	a, err := s.Addr(host, s.networkOf(host))
	require.NoError(s.t, err)
	return a.String()
}

// networkOf is the first network of a host.
func (s *site) networkOf(host string) string {
	for line := range strings.Lines(s.Hostfile(1)) {
		if f := strings.Fields(line); f[0] == host {
			name, _, _ := strings.Cut(f[2], "=")
			return name
		}
	}
	s.t.Fatalf("no host %s", host)
	return ""
}

func newSSHSite(t testing.TB, n int) *site {
	t.Helper()
	s := newSite(t, n)
	s.withSSH(true)
	return s
}

// fakeMpivrun is an mpivrun for other hosts: a script.
func (s *site) fakeMpivrun(script string) string {
	return s.write("mpivrun."+filepath.Base(s.t.Name()), "#!/bin/sh\n"+script+"\n", 0o755)
}
