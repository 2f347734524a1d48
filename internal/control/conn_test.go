package control

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stream is a connection on which all has been said.
type stream struct {
	net.Conn
	io.Reader
}

func (s stream) Read(p []byte) (int, error)  { return s.Reader.Read(p) }
func (s stream) Write(p []byte) (int, error) { return len(p), nil }

func TestLongMessages(t *testing.T) {
	long := `{"Stop":{"Reason":"` + strings.Repeat("x", 100_000) + `"}}` + "\n"
	c := NewConn[Message](stream{Reader: strings.NewReader(long + long)})
	m, err := c.Receive()
	require.NoError(t, err)
	require.Len(t, m.Stop.Reason, 100_000)
	c.Limit(50_000)
	_, err = c.Receive()
	require.ErrorContains(t, err, "a message of more than 50000 bytes")
}

// FuzzReceive: lines are taken apart as they were put together, whatever the
// reader gives at a time; what is too long, unended or not a message is an error,
// and takes no more memory than the limit.
func FuzzReceive(f *testing.F) {
	f.Add([]byte(`{"Alive":{}}`+"\n"+`{"Output":{"Process":3,"Data":"AAAA"}}`+"\n"), 7)
	f.Add([]byte("\n\n{}\nnull\n"), 1)
	f.Add([]byte(`{"Said":{"Process":-1,"Message":{"Hello":{}}}}`), 100)
	f.Add(append(bytes.Repeat([]byte{'x'}, 9000), '\n'), 4096)
	const limit = 6000
	f.Fuzz(func(t *testing.T, text []byte, piece int) {
		c := NewConn[FromAgent](stream{Reader: &pieces{text, max(1, piece)}})
		c.Limit(limit)
		for {
			line, rest, ended := bytes.Cut(text, []byte{'\n'})
			var want FromAgent
			wrong := !ended || len(line) >= limit || json.Unmarshal(line, &want) != nil
			got, err := c.Receive()
			if err != nil {
				require.True(t, wrong, "%q: %v", line, err)
				return
			}
			require.False(t, wrong, "%q was taken", line)
			require.Equal(t, want, got)
			text = rest
		}
	})
}

// pieces reads text some bytes at a time.
type pieces struct {
	text []byte
	n    int
}

func (p *pieces) Read(to []byte) (int, error) {
	if len(p.text) == 0 {
		return 0, io.EOF
	}
	n := copy(to[:min(len(to), p.n)], p.text)
	p.text = p.text[n:]
	return n, nil
}
