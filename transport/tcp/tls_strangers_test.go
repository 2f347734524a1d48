//go:build linux

package tcp

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// hello is what config says first.
func hello(t *testing.T, config *tls.Config) []byte {
	a, b := net.Pipe()
	defer a.Close()
	go tls.Client(b, config).Handshake()
	first := make([]byte, 16<<10)
	n, err := a.Read(first)
	require.NoError(t, err)
	return first[:n]
}

// endless is a hello of 64 KiB, within a limit of crypto/tls, but for its end.
func endless() (b []byte) {
	body := append([]byte{1, 0, 0xff, 0xff}, make([]byte, 60_000)...)
	for ; len(body) > 0; body = body[min(len(body), 1000):] {
		b = append(b, 22, 3, 1, 1000>>8, 1000&0xff)
		b = append(b, body[:min(len(body), 1000)]...)
	}
	return b[:50_000]
}

func TestStrangersToTLSAreTurnedAway(t *testing.T) {
	member, other := members(t), members(t)
	changed := func(change func(c *tls.Config)) *tls.Config {
		c := member()
		c.VerifyConnection = nil // it does not mind who we are
		change(c)
		return c
	}
	good := preamble{secret: [16]byte{1}, id: id{7}, addr: "tcp:h:1"}
	bytesOf := func(b []byte) func(preamble) []byte { return func(preamble) []byte { return b } }
	whole := func(p preamble) []byte { return p.append(nil) }
	first := hello(t, member())
	tests := []struct {
		name   string
		config *tls.Config // nil: no TLS
		writes func(good preamble) []byte
		atOnce bool // before its time is up
	}{
		{"silence", nil, bytesOf(nil), false},
		{"garbage", nil, bytesOf([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))), true},
		{"a preamble in clear", nil, whole, true},
		{"half a hello", nil, bytesOf(first[:len(first)/2]), false},
		{"a hello and no more", nil, bytesOf(first), false},
		{"a hello, damaged", nil, bytesOf(append(bytes.Clone(first[:60]), bytes.Repeat([]byte{0xff}, len(first)-60)...)), true},
		{"a handshake without end", nil, bytesOf(endless()), true},
		{"a key of another job", func() *tls.Config { c := other(); c.VerifyConnection = nil; return c }(), whole, true},
		{"no certificate", changed(func(c *tls.Config) { c.Certificates = nil }), whole, true},
		{"TLS 1.2", changed(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }), bytesOf(nil), true},
		{"a member that is silent", member(), bytesOf(nil), false},
		{"a member with half a preamble", member(), func(p preamble) []byte { return p.append(nil)[:30] }, false},
		{"a member with another secret", member(), func(p preamble) []byte { p.secret[15]++; return p.append(nil) }, true},
		{"a member with one lane of two", member(), whole, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			patience := 500 * time.Millisecond
			if tt.atOnce {
				patience = time.Minute
			}
			e := listenHere(t, Options{TLS: member(), Secret: good.secret, Patience: patience})
			friend := listenHere(t, Options{TLS: member(), Secret: good.secret})
			var sock net.Conn = knock(t, e, nil)
			plain := sock
			plain.SetDeadline(time.Now().Add(10 * time.Second))
			if tt.config != nil {
				sock = tls.Client(sock, tt.config)
				sock.(*tls.Conn).Handshake() // the stranger may learn here or later
			}
			p := good
			p.to = e.place
			sock.Write(tt.writes(p))

			near, err := friend.Dial(t.Context(), e.Addr())
			require.NoError(t, err)
			far, err := e.Accept(t.Context())
			require.NoError(t, err)
			require.Equal(t, friend.Addr(), far.Peer(), "a stranger was accepted")
			near.Close()

			if tt.config != nil && !tt.atOnce {
				n, _ := io.Copy(io.Discard, sock)
				require.Zero(t, n, "it was answered")
			}
			_, err = io.Copy(io.Discard, plain)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "the stranger's socket stays open")
			eventually(t, "the stranger to be counted", func() bool { return e.Strangers() == 1 })
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer stop()
			_, err = e.Accept(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")

			require.NoError(t, e.Close())
			require.NoError(t, friend.Close())
			eventually(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
		})
	}
}

// Two members may not share a connection, though both know its id.
func TestTheLanesOfTwoMembersAreNoConnection(t *testing.T) {
	member := members(t)
	e := listenHere(t, Options{TLS: member(), Patience: 200 * time.Millisecond})
	for lane := range 2 {
		forge(t, e, member(), preamble{lane: uint8(lane), id: id{9}, addr: "tcp:h:1", to: e.place})
	}
	eventually(t, "both to be turned away", func() bool { return e.Strangers() == 2 })
	require.Empty(t, e.backlog)
}

func TestAThousandStrangersAtOnce(t *testing.T) {
	const handshakes, crowd = 64, 1000
	member := members(t)
	e := listenHere(t, Options{TLS: member(), Handshakes: handshakes, Patience: time.Minute})
	friend := listenHere(t, Options{TLS: member()})
	first := hello(t, member())
	goroutines, files := runtime.NumGoroutine(), descriptors(t)
	socks := make([]net.Conn, crowd)
	for i := range socks {
		socks[i] = knock(t, e, first[:i%2*len(first)]) // every other says hello
	}
	var dials sync.WaitGroup
	dialed := make(chan error, 4)
	for range cap(dialed) {
		dials.Go(func() {
			_, err := friend.Dial(t.Context(), e.Addr())
			dialed <- err
		})
	}
	most, mostFiles := 0, 0
	eventually(t, "the members to be in", func() bool {
		most, mostFiles = max(most, runtime.NumGoroutine()), max(mostFiles, descriptors(t))
		return len(dialed) == cap(dialed)
	})
	dials.Wait()
	for range cap(dialed) {
		require.NoError(t, <-dialed)
	}
	const dialing = 3 * 4 // goroutines: a dial and its two lanes
	require.LessOrEqual(t, most, goroutines+handshakes+dialing+16)
	const batch = 64 // the gate looks at so many at a time, and hands over those whose first bytes are there
	require.LessOrEqual(t, mostFiles, files+crowd+2*handshakes+batch+2*2*4+16)
	eventually(t, "strangers to be counted", func() bool { return e.Strangers() >= crowd-2*handshakes })
	start := time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(start), 5*time.Second, "Close waits for silent strangers")
}

func TestDialSaysWhyTLSFailed(t *testing.T) {
	member, other := members(t), members(t)
	e := listenHere(t, Options{TLS: member()})
	clear := listenHere(t, Options{})

	_, err := clear.Dial(t.Context(), e.Addr())
	require.ErrorIs(t, err, errHungUp)
	_, err = e.Dial(t.Context(), clear.Addr())
	require.ErrorIs(t, err, errHungUp)

	_, err = listenHere(t, Options{TLS: other()}).Dial(t.Context(), e.Addr())
	require.ErrorContains(t, err, "no certificate of this job")
	trusting := other()
	trusting.VerifyConnection = nil
	_, err = listenHere(t, Options{TLS: trusting}).Dial(t.Context(), e.Addr())
	require.ErrorContains(t, err, "does not accept this process")

	web, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer web.Close()
	var server sync.WaitGroup
	server.Go(func() {
		for range 2 {
			if s, err := web.Accept(); err == nil {
				s.Write([]byte("SSH-2.0-OpenSSH\r\n"))
				defer s.Close()
			}
		}
	})
	_, err = e.Dial(t.Context(), transport.Addr("tcp:"+web.Addr().String()))
	require.ErrorContains(t, err, "it has no TLS")
	server.Wait()
}

func TestBothEndsKnowThePeer(t *testing.T) {
	member := members(t)
	x, y := member(), member()
	a, b := listenHere(t, Options{TLS: x}), listenHere(t, Options{TLS: y})
	near, err := a.Dial(t.Context(), b.Addr())
	require.NoError(t, err)
	far, err := b.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, y.Certificates[0].Leaf.Raw, near.(transport.Authenticated).Certificate().Raw)
	require.Equal(t, x.Certificates[0].Leaf.Raw, far.(transport.Authenticated).Certificate().Raw)

	near, _ = connected(t)
	require.Nil(t, near.(transport.Authenticated).Certificate(), "in clear nobody is asked")
}
