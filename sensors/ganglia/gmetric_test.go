package ganglia

import (
	"bytes"
	"encoding/hex"
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
	r, err := Dial(t.Context(), "127.0.0.1:9")
	require.NoError(t, err)
	defer r.Close()
	for _, m := range []Metric{{}, {Name: strings.Repeat("x", 256)}, {Name: "a<b"}, {Name: "a", Units: "\n"}, {Name: "a", Value: 0 / zero}} {
		require.ErrorContains(t, r.Report(time.Now(), m), "metric")
	}
}

var zero float64

const example = `<?xml version="1.0" encoding="ISO-8859-1" standalone="yes"?>
<!DOCTYPE GANGLIA_XML [ <!ELEMENT GANGLIA_XML (GRID|CLUSTER|HOST)*> ]>
<GANGLIA_XML VERSION="3.7.2" SOURCE="gmond"><CLUSTER NAME="mpiv">
<HOST NAME="caf` + "\xe9" + `" IP="10.0.0.1"><METRIC NAME="load_one" VAL="0.5" TYPE="float" UNITS=" "></METRIC>
<METRIC NAME="os_name" VAL="Linux" TYPE="string" UNITS=""/><METRIC NAME="city" VAL="Nan" TYPE="string" UNITS=""/><METRIC NAME="temp" VAL="inf" TYPE="float" UNITS=""/></HOST></CLUSTER></GANGLIA_XML>`

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
