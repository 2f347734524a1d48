//go:build linux

package fabric_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// inNamespace is set for the process that has a network of its own.
const inNamespace = "MPIV_TEST_OWN_NETWORK"

// TestBigMessageOverAPulledCable is TestBigMessageOverACutPath over TCP, encrypted,
// where the kernel drops all packets of the SAN: what it knows of the path is what
// is acted on.
func TestBigMessageOverAPulledCable(t *testing.T) {
	t.Parallel()
	if os.Getenv(inNamespace) == "" {
		inside(t)
		return
	}
	ip(t, "link set lo up")
	for _, a := range []string{"10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2"} {
		ip(t, "addr add "+a+"/24 dev lo")
	}
	if out, err := exec.Command("nft", "list", "ruleset").CombinedOutput(); err != nil {
		t.Skipf("this kernel has no nf_tables for a test's own network: %s", out)
	}
	authority, err := identity.NewAuthority("test")
	require.NoError(t, err)
	var ids [2]*identity.Identity
	for i := range ids {
		credentials, err := authority.Issue(identity.Process, i)
		require.NoError(t, err)
		ids[i], err = credentials.Open()
		require.NoError(t, err)
	}
	for _, from := range []int{0, 1} {
		t.Run(fmt.Sprintf("from process %d", from), func(t *testing.T) {
			san := newTrip(wire{t})
			w := newWorld(t, 2, func(p int) (s site) {
				for net, class := range []topology.Class{topology.SAN, topology.LAN} {
					ep, err := tcp.Listen(t.Context(), tcp.Options{Listen: fmt.Sprintf("10.%d.0.%d:0", net+1, p+1), TLS: ids[p].TLS()})
					require.NoError(t, err)
					s.networks = append(s.networks, fabric.Network{Class: class, Endpoint: ep})
				}
				s = san.on(s, plain)
				s.authenticate = func(cert *x509.Certificate) (int, error) {
					name, err := ids[p].Verify(cert)
					return name.Index, err
				}
				return s
			})
			w.say(0, 1)
			w.eventually(0, 1, topology.SAN)
			bigOverCut(t, w, san, from, 3*time.Second)
		})
	}
}

// inside runs the test in a network of its own.
func inside(t *testing.T) {
	for _, tool := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	self := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=3m")
	self.Env = append(os.Environ(), inNamespace+"=1")
	self.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := self.CombinedOutput()
	if _, ran := errors.AsType[*exec.ExitError](err); err != nil && !ran {
		t.Skipf("this system does not let a test have a network of its own: %v", err)
	}
	require.NoError(t, err, "%s", out)
	if bytes.Contains(out, []byte("--- SKIP")) {
		t.Skipf("%s", out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "cut after") {
			t.Log(strings.TrimSpace(line))
		}
	}
}

func ip(t *testing.T, args string) {
	t.Helper()
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	require.NoError(t, err, "ip %s: %s", args, out)
}

// A wire is the SAN of a network of one's own.
type wire struct{ t *testing.T }

func (w wire) nft(script string) {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		w.t.Errorf("nft: %v: %s", err, out)
	}
}

func (w wire) Pull() {
	w.nft("add table ip san; add chain ip san in { type filter hook input priority 0; }; add rule ip san in ip saddr 10.1.0.0/24 drop")
}

func (w wire) Plug() { w.nft("delete table ip san") }
