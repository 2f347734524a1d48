//go:build linux

package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
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

// begun is the two sockets of a member that has shown the secret in both, and has its last proof still to give.
func begun(t *testing.T, e *Endpoint) (lanes [2]net.Conn, p preamble) {
	p = preamble{secret: e.opt.Secret, id: id{9}, addr: "tcp:h:1", to: e.place}
	for i := range lanes {
		p.lane = uint8(i)
		lanes[i] = knock(t, e, p.append(nil))
	}
	return lanes, p
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
	with := func(change func(p *preamble)) func(p preamble) []byte {
		return func(p preamble) []byte {
			change(&p)
			return p.append(nil)
		}
	}
	tests := []struct {
		name   string
		writes func(good preamble) []byte
		atOnce bool // before its time is up
	}{
		{"silence", func(preamble) []byte { return nil }, false},
		{"garbage", func(preamble) []byte { return []byte(strings.Repeat("GET / HTTP/1.1\r\n", 100)) }, true},
		{"half a preamble", func(p preamble) []byte { return p.append(nil)[:30] }, false},
		{"a preamble that lacks its address", func(p preamble) []byte { return p.append(nil)[:preambleLen] }, false},
		{"another secret", with(func(p *preamble) { p.secret[15]++ }), true},
		{"no secret", with(func(p *preamble) { p.secret = [16]byte{} }), true},
		{"what was meant for another endpoint", with(func(p *preamble) { p.to = "tcp:127.0.0.1:1" }), true},
		{"another version", func(p preamble) []byte { b := p.append(nil); b[4] ^= 0x40; return b }, true},
		{"a third lane", with(func(p *preamble) { p.lane = 2 }), true},
		{"an address of another network", with(func(p *preamble) { p.addr = "quic:h:1" }), true},
		{"an address with a line end", with(func(p *preamble) { p.addr = "tcp:h\n" }), true},
		{"one lane of two", with(func(*preamble) {}), false},
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
			p := good
			p.to = e.place
			s := knock(t, e, tt.writes(p))

			near, err := friend.Dial(t.Context(), e.Addr())
			require.NoError(t, err)
			far, err := e.Accept(t.Context())
			require.NoError(t, err)
			require.Equal(t, friend.Addr(), far.Peer(), "a stranger was accepted")
			if !tt.atOnce {
				require.Less(t, time.Since(start), patience, "a friend waited for a stranger")
			}
			near.Close()

			s.SetDeadline(time.Now().Add(10 * time.Second))
			n, err := io.Copy(io.Discard, s)
			require.False(t, errors.Is(err, context.DeadlineExceeded), "the stranger's socket stays open")
			require.Zero(t, n, "a stranger was answered")
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

// Where an endpoint listened that is no more, anybody may listen: he learns nothing that others accept, and is not taken for it.
func TestWhoListensInAnothersPlaceIsAStranger(t *testing.T) {
	secret := [16]byte{1, 2, 3}
	x, y := listenHere(t, Options{Secret: secret}), listenHere(t, Options{Secret: secret, Patience: 300 * time.Millisecond})
	rogue, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer rogue.Close()
	said := make(chan []byte, 2)
	go func() {
		for range cap(said) {
			s, err := rogue.Accept()
			if err != nil {
				return
			}
			b := make([]byte, preambleLen+len(x.Addr()))
			io.ReadFull(s, b)
			s.Write(b[8:][:answerLen]) // as if it were the answer
			said <- b
			defer s.Close()
		}
	}()
	_, err = x.Dial(t.Context(), transport.Addr("tcp:"+rogue.Addr().String()))
	require.ErrorContains(t, err, "no endpoint of this job")
	for range cap(said) {
		b := <-said
		require.NotContains(t, string(b), string(secret[:]))
		s := knock(t, y, b)
		s.SetDeadline(time.Now().Add(10 * time.Second))
		n, err := io.Copy(io.Discard, s)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Zero(t, n, "it was answered")
	}
	eventually(t, "both to be counted", func() bool { return y.Strangers() == 2 })
}

// Who says again what a member has said is asked for more than that.
func TestWhatWasHeardIsNoConnection(t *testing.T) {
	for name, then := range map[string]func(s net.Conn, p preamble){
		"and no more": func(net.Conn, preamble) {},
		"and what else was heard": func(s net.Conn, p preamble) {
			old := p.last(make([]byte, nonceLen))
			s.Write(old[:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := listenHere(t, Options{Secret: [16]byte{1}, Patience: 300 * time.Millisecond})
			lanes, p := begun(t, e)
			then(lanes[0], p)
			for i, want := range []int64{answerLen, 0} {
				lanes[i].SetDeadline(time.Now().Add(10 * time.Second))
				n, err := io.Copy(io.Discard, lanes[i])
				require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "lane %d stays open", i)
				require.Equal(t, want, n, "in lane %d", i)
			}
			require.Empty(t, e.backlog)
			eventually(t, "its seat to be free", func() bool { return len(e.seats) == 0 })
		})
	}
}

// A member that hangs up, as it has found a better path meanwhile, is not refused.
func TestWhoHangsUpIsNoStranger(t *testing.T) {
	e := listenHere(t, Options{Secret: [16]byte{1}, Patience: 300 * time.Millisecond})
	p := preamble{secret: [16]byte{1}, id: id{7}, addr: "tcp:h:1", to: e.place}
	knock(t, e, p.append(nil)[:30]).Close()
	knock(t, e, p.append(nil)).Close() // one lane of two
	lanes, _ := begun(t, e)
	lanes[0].Close() // its last proof does not come
	lanes[1].Close()
	wrong := p
	wrong.secret[0]++
	wrong.id[0]++
	knock(t, e, wrong.append(nil)).Close()
	eventually(t, "all to have left", func() bool { e.mu.Lock(); defer e.mu.Unlock(); return len(e.guests)+len(e.halves)+len(e.seats) == 0 })
	eventually(t, "who was wrong to be counted", func() bool { return e.Strangers() == 1 })
	time.Sleep(50 * time.Millisecond)
	require.EqualValues(t, 1, e.Strangers())
}

func TestTheSameLaneTwiceIsNoConnection(t *testing.T) {
	e := listenHere(t, Options{Patience: 100 * time.Millisecond})
	b := preamble{id: id{7}, addr: "tcp:h:1", to: e.place}.append(nil)
	knock(t, e, b)
	knock(t, e, b)
	eventually(t, "both to be turned away", func() bool { return e.Strangers() == 2 })
	require.Empty(t, e.backlog)
}

func TestACrowdOfSilentStrangersIsBounded(t *testing.T) {
	const handshakes, crowd = 8, 60
	e := listenHere(t, Options{Handshakes: handshakes, Patience: time.Minute})
	good := preamble{id: id{7}, addr: "tcp:h:1", to: e.place}.append(nil)
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

// The last proof of a member far away comes later than a crowd lets strangers stay.
func TestACrowdEndsNoMembersHandshake(t *testing.T) {
	const handshakes, crowd = 8, 40
	e := listenHere(t, Options{Handshakes: handshakes, Patience: 10 * time.Second})
	lanes, p := begun(t, e)
	var b [answerLen]byte
	_, err := io.ReadFull(lanes[0], b[:])
	require.NoError(t, err)
	other := preamble{id: id{7}, addr: "tcp:h:1", to: e.place}.append(nil)
	for range crowd {
		knock(t, e, other[:len(other)-1])
	}
	eventually(t, "some to be turned away", func() bool { return e.Strangers() > handshakes })
	last := p.last(b[:nonceLen])
	_, err = lanes[0].Write(last[:])
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Second)
	defer stop()
	_, err = e.Accept(ctx)
	require.NoError(t, err)
}

// Who has shown the secret and says no more keeps Close from nothing.
func TestCloseEndsAHandshakeThatWaitsForTheLastProof(t *testing.T) {
	e := listenHere(t, Options{Patience: time.Minute})
	lanes, _ := begun(t, e)
	var b [answerLen]byte
	_, err := io.ReadFull(lanes[0], b[:])
	require.NoError(t, err)
	start := time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(start), 5*time.Second)
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
