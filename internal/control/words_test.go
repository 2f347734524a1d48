package control

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A pipe is a connection that says again what was said to it.
type pipe struct {
	net.Conn
	bytes.Buffer
}

func (p *pipe) Read(b []byte) (int, error)  { return p.Buffer.Read(b) }
func (p *pipe) Write(b []byte) (int, error) { return p.Buffer.Write(b) }

func TestAProgramsWordsNeedNotBeText(t *testing.T) {
	s := Spawn{Index: 3, Ranks: []int{1}, Path: "./caf\xe9", Args: []string{"\xff\xfe", "ordinary", "", "é\x80"}, Env: []string{"NAME=\xe9t\xe9"}, Dir: "/tmp/\xc3"}
	c := NewConn[ToAgent](&pipe{})
	require.NoError(t, c.Send(ToAgent{Run: &Run{Processes: []Spawn{s}}}))
	require.NoError(t, c.Send(ToAgent{Spawn: &s}))
	m, err := c.Receive()
	require.NoError(t, err)
	require.Equal(t, []Spawn{s}, m.Run.Processes)
	m, err = c.Receive()
	require.NoError(t, err)
	require.Equal(t, &s, m.Spawn)
}

func FuzzWords(f *testing.F) {
	f.Add("caf\xe9 é")
	f.Add("\xff\x00\x80")
	f.Fuzz(func(t *testing.T, word string) {
		text := Spell(word)
		require.True(t, utf8.ValidString(text), "%q", text)
		require.Equal(t, word, Word(text))
		if utf8.ValidString(word) && !bytes.ContainsRune([]byte(word), 0) {
			require.Equal(t, word, text, "what is text stays as it is")
		}
	})
}

func TestAnAddressNeedNotBeText(t *testing.T) {
	a := Addr{Addr: "shm:/tmp/\xff\"\n\x00/p1.sock"}
	text, err := json.Marshal(a)
	require.NoError(t, err)
	var b Addr
	require.NoError(t, json.Unmarshal(text, &b))
	require.Equal(t, a, b)
}
