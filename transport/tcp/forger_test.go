//go:build linux

package tcp

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
)

// Types of TLS records, and of one handshake message.
const (
	alertRecord     = 21
	handshakeRecord = 22
	dataRecord      = 23
	keyUpdate       = 24
)

// members makes the configurations of processes of a job.
func members(tb testing.TB) func() *tls.Config {
	a, err := identity.NewAuthority("job")
	require.NoError(tb, err)
	next := 0
	return func() *tls.Config {
		c, err := a.Issue(identity.Process, next)
		require.NoError(tb, err)
		next++
		i, err := c.Open()
		require.NoError(tb, err)
		return i.TLS()
	}
}

// A forger is a member that makes its own TLS records, so as to make wrong ones.
type forger struct {
	t    testing.TB
	sock net.Conn
	out  keys // of what it writes
	in   keys // of what it reads
}

// forge dials one lane of e, as a member, and says p.
func forge(t testing.TB, e *Endpoint, config *tls.Config, p preamble) *forger {
	sock, err := net.Dial("tcp", e.Addr().Local())
	require.NoError(t, err)
	t.Cleanup(func() { sock.Close() })
	sock.SetDeadline(time.Now().Add(20 * time.Second))
	var log bytes.Buffer
	config.KeyLogWriter = &log
	c := tls.Client(sock, config)
	_, err = c.Write(p.append(nil)) // the record of number 0
	require.NoError(t, err)
	require.Equal(t, tls.TLS_AES_128_GCM_SHA256, c.ConnectionState().CipherSuite)
	f := &forger{t: t, sock: sock}
	for line := range strings.Lines(log.String()) {
		words := strings.Fields(line)
		secret, err := hex.DecodeString(words[2])
		require.NoError(t, err)
		switch words[0] {
		case "CLIENT_TRAFFIC_SECRET_0":
			f.out = keys{secret: secret, next: 1}
		case "SERVER_TRAFFIC_SECRET_0":
			f.in = keys{secret: secret}
		}
	}
	return f
}

// forgers is a connection to a new endpoint, whose other end is two forgers. With the last of the handshake comes, in
// lane 0, what is first.
func forgers(t testing.TB, first ...byte) (c transport.Conn, lanes [2]*forger) {
	member := members(t)
	e, err := Listen(t.Context(), Options{TLS: member()})
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	config := member()
	p := preamble{id: id{9}, addr: "tcp:h:1", to: e.place}
	for i := range lanes {
		p.lane = uint8(i)
		lanes[i] = forge(t, e, config, p)
	}
	typ, b := lanes[0].read()
	require.EqualValues(t, dataRecord, typ)
	require.Len(t, b, answerLen)
	last := p.last(b[:nonceLen])
	lanes[0].write(lanes[0].seal(dataRecord, append(last[:], first...)))
	c, err = e.Accept(t.Context())
	require.NoError(t, err)
	return c, lanes
}

// write writes records: forged, or of seal.
func (f *forger) write(records ...[]byte) {
	_, err := f.sock.Write(bytes.Join(records, nil))
	require.NoError(f.t, err)
}

func (f *forger) seal(typ byte, b []byte) []byte { return f.out.seal(f.t, typ, b) }

// read reads one record.
func (f *forger) read() (typ byte, b []byte) {
	head := make([]byte, 5)
	_, err := io.ReadFull(f.sock, head)
	require.NoError(f.t, err)
	body := make([]byte, binary.BigEndian.Uint16(head[3:]))
	_, err = io.ReadFull(f.sock, body)
	require.NoError(f.t, err)
	aead, nonce := f.in.aead(f.t)
	body, err = aead.Open(body[:0], nonce, body, head)
	require.NoError(f.t, err)
	return body[len(body)-1], body[:len(body)-1]
}

// keys are those of one direction (RFC 8446, sections 5.2, 5.3 and 7).
type keys struct {
	secret []byte
	next   uint64 // record
}

func (k *keys) expand(t testing.TB, label string, n int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(n))
	info = append(info, byte(len("tls13 ")+len(label)))
	info = append(info, "tls13 "+label...)
	info = append(info, 0)
	b, err := hkdf.Expand(sha256.New, k.secret, string(info), n)
	require.NoError(t, err)
	return b
}

// aead is the cipher, and the nonce of the next record.
func (k *keys) aead(t testing.TB) (cipher.AEAD, []byte) {
	block, err := aes.NewCipher(k.expand(t, "key", 16))
	require.NoError(t, err)
	aead, err := cipher.NewGCM(block)
	require.NoError(t, err)
	nonce := k.expand(t, "iv", 12)
	binary.BigEndian.PutUint64(nonce[4:], binary.BigEndian.Uint64(nonce[4:])^k.next)
	k.next++
	return aead, nonce
}

func (k *keys) seal(t testing.TB, typ byte, b []byte) []byte {
	aead, nonce := k.aead(t)
	head := []byte{dataRecord, 3, 3}
	head = binary.BigEndian.AppendUint16(head, uint16(len(b)+1+aead.Overhead()))
	return aead.Seal(head, nonce, append(bytes.Clone(b), typ), head)
}

// update goes on with the next keys.
func (k *keys) update(t testing.TB) { *k = keys{secret: k.expand(t, "traffic upd", 32)} }
