//go:build linux

package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

func listenHere(t *testing.T, o Options) *Endpoint {
	e, err := Listen(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

// knock opens a socket to e and writes what a stranger writes.
func knock(t *testing.T, e *Endpoint, b []byte) net.Conn {
	s, err := net.Dial("tcp", e.Addr().Local())
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	_, err = s.Write(b)
	require.NoError(t, err)
	return s
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for: %s", what)
		}
	}
}

func TestStrangersAreTurnedAwayAndHoldNobodyUp(t *testing.T) {
	secret := [16]byte{1, 2, 3}
	good := preamble{secret: secret, id: id{7}, addr: "tcp:h:1"}
	with := func(change func(p *preamble)) []byte {
		p := good
		change(&p)
		return p.append(nil)
	}
	damaged := func(at int) []byte {
		b := good.append(nil)
		b[at] ^= 0x40
		return b
	}
	tests := []struct {
		name   string
		writes [][]byte // one for each socket
		atOnce bool     // before its time is up
	}{
		{"silence", [][]byte{nil}, false},
		{"garbage", [][]byte{[]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))}, true},
		{"half a preamble", [][]byte{good.append(nil)[:30]}, false},
		{"a preamble that lacks its address", [][]byte{good.append(nil)[:preambleLen]}, false},
		{"another secret", [][]byte{with(func(p *preamble) { p.secret[15]++ })}, true},
		{"no secret", [][]byte{with(func(p *preamble) { p.secret = [16]byte{} })}, true},
		{"another version", [][]byte{damaged(4)}, true},
		{"a third lane", [][]byte{with(func(p *preamble) { p.lane = 2 })}, true},
		{"an address of another network", [][]byte{with(func(p *preamble) { p.addr = "quic:h:1" })}, true},
		{"an address with a line end", [][]byte{with(func(p *preamble) { p.addr = "tcp:h\n" })}, true},
		{"one lane of two", [][]byte{good.append(nil)}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			patience := 300 * time.Millisecond
			if tt.atOnce {
				patience = time.Minute
			}
			e := listenHere(t, Options{Secret: secret, Patience: patience})
			friend := listenHere(t, Options{Secret: secret})
			start := time.Now()
			var socks []net.Conn
			for _, b := range tt.writes {
				socks = append(socks, knock(t, e, b))
			}

			near, err := friend.Dial(t.Context(), e.Addr())
			require.NoError(t, err)
			far, err := e.Accept(t.Context())
			require.NoError(t, err)
			require.Equal(t, friend.Addr(), far.Peer(), "a stranger was accepted")
			if !tt.atOnce {
				require.Less(t, time.Since(start), patience, "a friend waited for a stranger")
			}
			near.Close()

			for _, s := range socks {
				s.SetDeadline(time.Now().Add(10 * time.Second))
				n, err := io.Copy(io.Discard, s)
				require.False(t, errors.Is(err, context.DeadlineExceeded), "the stranger's socket stays open")
				require.Zero(t, n, "a stranger was answered")
			}
			eventually(t, "the strangers to be counted", func() bool { return e.Strangers() == uint64(len(socks)) })
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

func TestTheSameLaneTwiceIsNoConnection(t *testing.T) {
	e := listenHere(t, Options{Patience: 100 * time.Millisecond})
	b := preamble{id: id{7}, addr: "tcp:h:1"}.append(nil)
	knock(t, e, b)
	knock(t, e, b)
	eventually(t, "both to be turned away", func() bool { return e.Strangers() == 2 })
	require.Empty(t, e.backlog)
}

func TestACrowdOfSilentStrangersIsBounded(t *testing.T) {
	const handshakes, crowd = 8, 60
	good := preamble{id: id{7}, addr: "tcp:h:1"}.append(nil)
	e := listenHere(t, Options{Handshakes: handshakes, Patience: time.Minute})
	friend := listenHere(t, Options{})
	for range crowd {
		knock(t, e, good[:len(good)-1]) // all that is looked at before there is a goroutine
	}
	guests := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.guests)
	}
	eventually(t, "the first to be in", func() bool { return guests() == handshakes })
	dialed := make(chan error, 1)
	start := time.Now()
	go func() {
		_, err := friend.Dial(t.Context(), e.Addr())
		dialed <- err
	}()
	most := 0
	for done := false; !done; {
		most = max(most, guests())
		select {
		case err := <-dialed:
			require.NoError(t, err)
			done = true
		case <-time.After(time.Millisecond):
			require.Less(t, time.Since(start), 20*time.Second, "the friend waits for silent strangers")
		}
	}
	require.LessOrEqual(t, most, handshakes)
	require.NotZero(t, e.Strangers())
	start = time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(start), 5*time.Second, "Close waits for silent strangers")
}

func TestDialSaysWhy(t *testing.T) {
	e := listenHere(t, Options{Secret: [16]byte{1}})
	friend := listenHere(t, Options{})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, says nothing
	require.NoError(t, err)
	defer silent.Close()
	nobody := transport.Addr("tcp:" + silent.Addr().String())

	_, err = friend.Dial(t.Context(), e.Addr())
	require.ErrorIs(t, err, errHungUp)
	require.ErrorContains(t, err, string(e.Addr()))

	_, err = friend.Dial(t.Context(), "quic:h:1")
	require.ErrorContains(t, err, "quic:h:1")

	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err = friend.Dial(ctx, nobody)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, string(nobody))

	ended := make(chan error, 1)
	go func() {
		_, err := friend.Dial(t.Context(), nobody)
		ended <- err
	}()
	eventually(t, "the dial to be under way", func() bool {
		friend.mu.Lock()
		defer friend.mu.Unlock()
		return len(friend.open) == 2
	})
	require.NoError(t, friend.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
}

func TestListenRefusesAnAddressThatNobodyCanDial(t *testing.T) {
	_, err := Listen(t.Context(), Options{Listen: "0.0.0.0:0"})
	require.ErrorContains(t, err, "Advertise")
	e, err := Listen(t.Context(), Options{Listen: "0.0.0.0:0", Advertise: "h:1"})
	require.NoError(t, err)
	require.Equal(t, transport.Addr("tcp:h:1"), e.Addr())
	require.NoError(t, e.Close())
}
