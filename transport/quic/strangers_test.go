package quic_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	quicgo "github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/internal/streams"
	"github.com/mpiv/mpiv/transport/quic"
)

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for: %s", what)
		}
	}
}

func member(t *testing.T, a *identity.Authority, index int) *identity.Identity {
	c, err := a.Issue(identity.Process, index)
	require.NoError(t, err)
	i, err := c.Open()
	require.NoError(t, err)
	return i
}

func authority(t *testing.T) *identity.Authority {
	a, err := identity.NewAuthority("job")
	require.NoError(t, err)
	return a
}

func TestMembersKnowEachOther(t *testing.T) {
	a := authority(t)
	x, y := member(t, a, 0), member(t, a, 1)
	near, far := pair(t, quic.Options{TLS: x.TLS()}, quic.Options{TLS: y.TLS()})
	for i, c := range []transport.Conn{near, far} {
		name, err := x.Verify(c.(transport.Authenticated).Certificate())
		require.NoError(t, err)
		require.Equal(t, 1-i, name.Index)
	}
	near, far = pair(t, quic.Options{}, quic.Options{})
	require.Nil(t, near.(transport.Authenticated).Certificate())
	require.Nil(t, far.(transport.Authenticated).Certificate())
}

func TestStrangersAreTurnedAway(t *testing.T) {
	a := authority(t)
	secret := [16]byte{1, 2, 3}
	none := member(t, authority(t), 1).TLS()
	none.VerifyConnection = nil // it does not mind who we are
	fenced := member(t, a, 1)
	tests := []struct {
		name string
		at   *tls.Config // of who is dialed
		by   quic.Options
	}{
		{"another authority", member(t, a, 0).TLS(), quic.Options{TLS: none, Secret: secret}},
		{"no certificate", member(t, a, 0).TLS(), quic.Options{Secret: secret}},
		{"another secret", nil, quic.Options{Secret: [16]byte{1, 2, 4}}},
		{"another secret, of a member", member(t, a, 0).TLS(), quic.Options{TLS: fenced.TLS()}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			e := listen(t, quic.Options{Secret: secret, TLS: tt.at})
			x := listen(t, tt.by)
			_, err := x.Dial(t.Context(), e.Addr())
			require.Error(t, err)
			require.ErrorContains(t, err, string(e.Addr()))
			eventually(t, "the stranger to be counted", func() bool { return e.Strangers() == 1 })
			ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
			defer stop()
			_, err = e.Accept(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")
			require.NoError(t, e.Close())
			require.NoError(t, x.Close())
			eventually(t, "all goroutines to end", func() bool { return runtime.NumGoroutine() <= before })
		})
	}
}

// call is a plain QUIC connection to e, of somebody without a certificate.
func call(ctx context.Context, t *testing.T, e *quic.Endpoint) (*quicgo.Conn, error) {
	q, err := quicgo.DialAddr(ctx, e.Addr().Local(),
		&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"mpiv/1"}}, &quicgo.Config{})
	if err == nil {
		t.Cleanup(func() { q.CloseWithError(0, "") })
	}
	return q, err
}

// Who begins to say Hello, and says no more, is waited for as long as others are.
func TestHalfAHelloIsNotWaitedFor(t *testing.T) {
	for lane := range 2 {
		e := listen(t, quic.Options{Patience: 500 * time.Millisecond})
		q, err := call(t.Context(), t, e)
		require.NoError(t, err)
		for i := range lane + 1 {
			s, err := q.OpenStream()
			require.NoError(t, err)
			hello := streams.Hello{Lane: i, Proof: shown(t, q), Addr: "quic:h:1"}.Append(nil)
			_, err = s.Write(hello[:len(hello)-1+lane-i])
			require.NoError(t, err)
		}
		eventually(t, "the connection to end", func() bool { return q.Context().Err() != nil })
		eventually(t, "the stranger to be counted", func() bool { return e.Strangers() == 1 && e.Unfinished() == 0 })
	}
}

// Who dials is not held up by who shakes hands, and then says nothing: neither an answer nor that it has given up.
func TestDialEndsWhereNobodyAnswersHello(t *testing.T) {
	a, err := identity.NewAuthority("job")
	require.NoError(t, err)
	conf := &tls.Config{Certificates: member(t, a, 0).TLS().Certificates, NextProtos: []string{"mpiv/1"}}
	l, err := quicgo.ListenAddr("127.0.0.1:0", conf, &quicgo.Config{MaxIncomingStreams: 2})
	require.NoError(t, err)
	defer l.Close()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	_, err = listen(t, quic.Options{Patience: 500 * time.Millisecond}).Dial(ctx, transport.Addr("quic:"+l.Addr().String()))
	require.ErrorContains(t, err, "it hung up during the handshake")
}

func TestWhoIsSilentHoldsNobodyUp(t *testing.T) {
	const crowd = 40
	const handshakes = 16
	e := listen(t, quic.Options{Handshakes: handshakes, Patience: 500 * time.Millisecond})
	var calls sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	defer calls.Wait()
	defer stop()
	for range crowd {
		calls.Go(func() { call(ctx, t, e) }) // says nothing after the handshake
	}
	garbage, err := net.Dial("udp", e.Addr().Local())
	require.NoError(t, err)
	defer garbage.Close()
	for range 100 {
		_, err := garbage.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 80)))
		require.NoError(t, err)
	}
	most := int64(0)
	eventually(t, "some to be refused", func() bool { most = max(most, e.Unfinished()); return e.Strangers() > 0 })
	// One more may have been counted that is being refused.
	require.LessOrEqual(t, most, int64(handshakes+1))
	friend := listen(t, quic.Options{Patience: 10 * time.Second})
	near, err := friend.Dial(t.Context(), e.Addr())
	require.NoError(t, err)
	far, err := e.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, friend.Addr(), far.Peer(), "a stranger was accepted")
	near.Close()
	start := time.Now()
	require.NoError(t, e.Close())
	require.Less(t, time.Since(start), 5*time.Second, "Close waits for silent strangers")
}

// member's proof that it knows the secret of e, which is that of no Options, in a connection that it has made.
func shown(t *testing.T, q *quicgo.Conn) proof.Proof {
	s := q.ConnectionState().TLS
	key, err := s.ExportKeyingMaterial("EXPORTER-mpiv", nil, 32)
	require.NoError(t, err)
	return proof.Of([16]byte{}, "quic dials", key)
}

// impostor is a member whose bytes are not those of this package.
func impostor(t *testing.T, e *quic.Endpoint) (lanes [2]*quicgo.Stream) {
	q, err := call(t.Context(), t, e)
	require.NoError(t, err)
	for i := range lanes {
		lanes[i], err = q.OpenStreamSync(t.Context())
		require.NoError(t, err)
		_, err = lanes[i].Write(streams.Hello{Lane: i, Proof: shown(t, q), Addr: "quic:h:1"}.Append(nil))
		require.NoError(t, err)
	}
	return lanes
}

func TestALieAboutALengthBreaksTheConnection(t *testing.T) {
	for lane := range 2 {
		e := listen(t, quic.Options{})
		lanes := impostor(t, e)
		c, err := e.Accept(t.Context())
		require.NoError(t, err)
		prefix := make([]byte, 4+transport.HeaderLen)
		binary.LittleEndian.PutUint32(prefix, uint32(c.MaxBody()+1))
		_, err = lanes[lane].Write(prefix)
		require.NoError(t, err)
		eventually(t, "the end", func() bool { _, err = c.Poll(new(numbers)); return err != nil })
		require.ErrorIs(t, err, transport.ErrBroken)
		_, err = io.Copy(io.Discard, lanes[lane])
		require.Error(t, err, "the liar's connection stays open")
	}
}

// Where an endpoint listened that is no more, anybody may listen: he learns nothing that others accept, and is not taken for it.
func TestWhoListensInAnothersPlaceIsAStranger(t *testing.T) {
	secret := [16]byte{1, 2, 3}
	x, y := listen(t, quic.Options{Secret: secret}), listen(t, quic.Options{Secret: secret})
	own, err := identity.NewAuthority("another")
	require.NoError(t, err)
	config := member(t, own, 0).TLS()
	config.ClientAuth, config.VerifyConnection, config.NextProtos = tls.NoClientCert, nil, []string{"mpiv/1"}
	rogue, err := quicgo.ListenAddr("127.0.0.1:0", config, nil)
	require.NoError(t, err)
	defer rogue.Close()
	said := make(chan []byte, 2)
	go func() {
		defer close(said)
		q, err := rogue.Accept(t.Context())
		if err != nil {
			return
		}
		for lane := range 2 {
			s, err := q.AcceptStream(t.Context())
			if err != nil {
				return
			}
			b := make([]byte, len(streams.Hello{Addr: x.Addr()}.Append(nil)))
			if _, err := io.ReadFull(s, b); err != nil {
				return
			}
			said <- b
			if lane == 0 {
				defer s.Write(b) // as if it were the answer
			}
		}
	}()
	ended := make(chan error, 1)
	go func() {
		_, err := x.Dial(t.Context(), transport.Addr("quic:"+rogue.Addr().String()))
		ended <- err
	}()
	q, err := call(t.Context(), t, y)
	require.NoError(t, err)
	heard := 0
	for b := range said {
		require.NotContains(t, string(b), string(secret[:]))
		s, err := q.OpenStreamSync(t.Context())
		if err == nil { // it may have been refused at the first
			s.Write(b)
		}
		heard++
	}
	require.Equal(t, 2, heard)
	require.ErrorIs(t, <-ended, streams.ErrHello)
	eventually(t, "the stranger to be counted", func() bool { return y.Strangers() == 1 })
}

// A member that gives up a dial, as it has found a better path meanwhile, is not refused.
func TestWhoGivesUpADialIsNoStranger(t *testing.T) {
	a := authority(t)
	// Nobody is asked to show where it is when it is half-way in, and no busy machine makes one time out.
	roomy := quic.Options{TLS: member(t, a, 0).TLS(), Handshakes: 1 << 12, Patience: time.Minute}
	e, x := listen(t, roomy), listen(t, quic.Options{TLS: member(t, a, 1).TLS(), Patience: time.Minute})
	go func() {
		for c, err := e.Accept(t.Context()); err == nil; c, err = e.Accept(t.Context()) {
			c.Close()
		}
	}()
	givenUp := 0
	for i := range 100 {
		ctx, stop := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		if c, err := x.Dial(ctx, e.Addr()); err != nil {
			givenUp++
		} else {
			c.Close()
		}
		stop()
	}
	require.Positive(t, givenUp)
	eventually(t, "all handshakes to end", func() bool { return e.Unfinished() == 0 })
	require.Zero(t, e.Strangers())
}

func TestLanesThatAreNotAPair(t *testing.T) {
	e := listen(t, quic.Options{Patience: 500 * time.Millisecond})
	for i, hellos := range [][2]streams.Hello{
		{{Lane: 0, Addr: "quic:h:1"}, {Lane: 0, Addr: "quic:h:1"}},
		{{Lane: 1, Addr: "quic:h:1"}, {Lane: 0, Addr: "quic:h:1"}},
		{{Lane: 0, Addr: "quic:h:1"}, {Lane: 1, Addr: "quic:h:2"}},
		{{Lane: 0, Addr: "tcp:h:1"}, {Lane: 1, Addr: "tcp:h:1"}},
		{{Lane: 0, Addr: "quic:h:1", Cert: []byte{1}}, {Lane: 1, Addr: "quic:h:1"}},
	} {
		q, err := call(t.Context(), t, e)
		require.NoError(t, err)
		var lanes []io.Writer // all of them first: the connection may be refused at the first hello
		for range hellos {
			s, err := q.OpenStreamSync(t.Context())
			require.NoError(t, err)
			lanes = append(lanes, s)
		}
		for k, h := range hellos {
			h.Proof = shown(t, q)
			lanes[k].Write(h.Append(nil)) // may be refused meanwhile
		}
		eventually(t, "the stranger to be counted", func() bool { return e.Strangers() == uint64(i+1) })
	}
}

func TestDialSaysWhy(t *testing.T) {
	x := listen(t, quic.Options{})
	_, err := x.Dial(t.Context(), "tcp:h:1")
	require.ErrorContains(t, err, "tcp:h:1")
	_, err = x.Dial(t.Context(), "quic:nonsense")
	require.ErrorContains(t, err, "quic:nonsense")
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer silent.Close()
	nobody := transport.Addr("quic:" + silent.LocalAddr().String())
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err = x.Dial(ctx, nobody)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	ended := make(chan error, 1)
	go func() {
		_, err := x.Dial(t.Context(), nobody)
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, x.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	_, err = quic.Listen(t.Context(), quic.Options{Listen: "0.0.0.0:0"})
	require.ErrorContains(t, err, "one host's address")
}
