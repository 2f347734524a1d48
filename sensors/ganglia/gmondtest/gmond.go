// Package gmondtest runs a real gmond for tests.
package gmondtest

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/sensors/ganglia"
)

// A Gmond runs on this host until the test ends.
type Gmond struct {
	UDP string // where it takes metrics
	tcp string

	said  bytes.Buffer
	ended chan struct{} // closed when it has
	err   error         // read after ended
}

// Start runs a gmond; without one installed it skips the test. What is sent before it listens
// is lost, or answered with a refusal.
func Start(t *testing.T) *Gmond {
	t.Helper()
	gmond, err := exec.LookPath("gmond")
	if err != nil {
		gmond = "/usr/sbin/gmond"
		if _, err := os.Stat(gmond); err != nil {
			t.Skip("there is no gmond: install ganglia-monitor")
		}
	}
	udp, tcp := freePort(t, "udp"), freePort(t, "tcp")
	conf := filepath.Join(t.TempDir(), "gmond.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, `
globals { daemonize = no setuid = no mute = no deaf = no max_udp_msg_len = 1472 cleanup_threshold = 300 }
cluster { name = "mpiv" }
udp_recv_channel { port = %s bind = 127.0.0.1 }
tcp_accept_channel { port = %s bind = 127.0.0.1 }
modules { module { name = "core_metrics" } }
`, udp, tcp), 0o600))
	g := &Gmond{UDP: net.JoinHostPort("127.0.0.1", udp), tcp: net.JoinHostPort("127.0.0.1", tcp), ended: make(chan struct{})}
	cmd := exec.Command(gmond, "-f", "-c", conf)
	cmd.Stdout, cmd.Stderr = &g.said, &g.said
	require.NoError(t, cmd.Start())
	go func() {
		defer close(g.ended)
		g.err = cmd.Wait()
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-g.ended
	})
	return g
}

// Metrics is what it knows now. An error may be that it does not listen yet; that it has
// ended fails the test.
func (g *Gmond) Metrics(t *testing.T) ([]ganglia.Metric, error) {
	t.Helper()
	select {
	case <-g.ended:
		t.Fatalf("gmond ended: %v: %s", g.err, g.said.String())
	default:
	}
	conn, err := net.DialTimeout("tcp", g.tcp, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	return ganglia.Read(conn)
}

func freePort(t *testing.T, network string) string {
	t.Helper()
	var addr net.Addr
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		addr = c.LocalAddr()
		defer c.Close()
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr = l.Addr()
		defer l.Close()
	}
	_, port, err := net.SplitHostPort(addr.String())
	require.NoError(t, err)
	return port
}
