package ganglia

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPackets(t *testing.T) {
	m := Metric{Name: "net_X", Value: 1.5e6, Units: "B/s"}
	require.Equal(t, "00000080"+"00000000"+"00000005"+hex.EncodeToString([]byte("net_X"))+"000000"+"00000000"+
		"00000006"+hex.EncodeToString([]byte("double"))+"0000"+
		"00000005"+hex.EncodeToString([]byte("net_X"))+"000000"+
		"00000003"+hex.EncodeToString([]byte("B/s"))+"00"+
		"00000003"+"0000003c"+"00000e10"+"00000000", hex.EncodeToString(m.nature()))
	require.Equal(t, "00000085"+"00000000"+"00000005"+hex.EncodeToString([]byte("net_X"))+"000000"+"00000000"+
		"00000002"+hex.EncodeToString([]byte("%s"))+"0000"+
		"00000007"+hex.EncodeToString([]byte("1.5e+06"))+"00", hex.EncodeToString(m.value()))
	m.Host, m.Group = "10.0.0.1:X", "mpiv"
	require.True(t, bytes.HasSuffix(m.nature(), []byte("\x00\x00\x00\x01\x00\x00\x00\x05GROUP\x00\x00\x00\x00\x00\x00\x04mpiv")))
	require.Equal(t, []byte{0, 0, 0, 1}, m.value()[32:36], "a host of its own is said to be one")
}

func TestReportRefuses(t *testing.T) {
	r, err := Dial("127.0.0.1:9")
	require.NoError(t, err)
	defer r.Close()
	for _, m := range []Metric{{}, {Name: strings.Repeat("x", 256)}, {Name: "a<b"}, {Name: "a", Units: "\n"}, {Name: "a", Value: 0 / zero}} {
		require.ErrorContains(t, r.Report(time.Now(), m), "metric")
	}
}

var zero float64

// The real thing: what is reported to a gmond is in its XML.
func TestGmond(t *testing.T) {
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
	cmd := exec.Command(gmond, "-f", "-c", conf)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer func() { cmd.Process.Kill(); <-ended }()

	r, err := Dial("127.0.0.1:" + udp)
	require.NoError(t, err)
	defer r.Close()
	want := []Metric{
		{Name: "mpiv_X_Y", Value: 1.5e6, Units: "bytes/sec", Group: "mpiv", Host: "127.0.0.1:X"},
		{Name: "mpiv_Y_X", Value: -0.25, Units: "", Host: "127.0.0.2:Y"},
	}
	var got []Metric
	for start := time.Now(); time.Since(start) < 15*time.Second; time.Sleep(50 * time.Millisecond) {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("gmond ended: %v: %s", err, said.String())
		default:
		}
		for i := range want {
			// What is sent before gmond listens is lost, or answered with a refusal.
			r.told = map[string]time.Time{}
			if r.Report(time.Now(), want[i]) != nil {
				continue
			}
		}
		if got, err = dump("127.0.0.1:" + tcp); err == nil && len(got) >= len(want) {
			break
		}
	}
	require.NoError(t, err)
	want[0].Group = "" // Read leaves groups out
	for _, m := range want {
		require.Contains(t, got, m)
	}
}

func dump(address string) ([]Metric, error) {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
	return Read(conn)
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

const example = `<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>
<!DOCTYPE GANGLIA_XML [ <!ELEMENT GANGLIA_XML (GRID|CLUSTER|HOST)*> ]>
<GANGLIA_XML VERSION="3.7.2" SOURCE="gmond"><CLUSTER NAME="mpiv">
<HOST NAME="caf` + "\xe9" + `" IP="10.0.0.1"><METRIC NAME="load_one" VAL="0.5" TYPE="float" UNITS=" "></METRIC>
<METRIC NAME="os_name" VAL="Linux" TYPE="string" UNITS=""/></HOST></CLUSTER></GANGLIA_XML>`

func TestRead(t *testing.T) {
	got, err := Read(strings.NewReader(example))
	require.NoError(t, err)
	require.Equal(t, []Metric{{Name: "load_one", Value: 0.5, Units: " ", Host: "10.0.0.1:café"}}, got)
	for _, text := range []string{"", "<HTML></HTML>", example[:300]} {
		_, err := Read(strings.NewReader(text))
		require.Error(t, err, text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(example))
	f.Fuzz(func(t *testing.T, data []byte) {
		all, err := Read(bytes.NewReader(data))
		require.True(t, err == nil || all == nil, "an error comes alone")
	})
}
