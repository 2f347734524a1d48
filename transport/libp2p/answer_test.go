package libp2p

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport/internal/streams"
)

// deaf is a peer that says Hello in one stream and takes nothing.
type deaf struct {
	network.Conn
	hello *bytes.Reader
	ended chan struct{}
	reset func()
}

func newDeaf(e *Endpoint, lane int) *deaf {
	h := streams.Hello{Lane: lane, Proof: e.proofOf("deaf", e.host.ID()), ID: [16]byte{1}, Addr: Name + ":/p2p/x"}
	d := &deaf{hello: bytes.NewReader(h.Append(nil)), ended: make(chan struct{})}
	d.reset = sync.OnceFunc(func() { close(d.ended) })
	return d
}

func (d *deaf) RemotePeer() peer.ID            { return "deaf" }
func (d *deaf) RemotePublicKey() crypto.PubKey { return nil }
func (d *deaf) Close() error                   { return nil }

// stream is that of a deaf peer.
type stream struct {
	network.Stream
	d *deaf
}

func (s stream) Conn() network.Conn         { return s.d }
func (s stream) Read(p []byte) (int, error) { return s.d.hello.Read(p) }
func (s stream) Write([]byte) (int, error)  { <-s.d.ended; return 0, io.ErrClosedPipe }
func (s stream) Reset() error               { s.d.reset(); return nil }

func TestAMemberThatTakesNoAnswerKeepsNoSeat(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1"})
	require.NoError(t, err)
	defer e.Close()
	ctx, stop := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer stop()
	first := make(chan bool, 1)
	lanes := [2]*deaf{newDeaf(e, 0), newDeaf(e, 1)}
	defer lanes[0].reset()
	life, end := context.WithCancel(t.Context()) // its own time would be over first
	defer end()
	go func() {
		_, ok := e.greet(life, stream{d: lanes[0]})
		first <- ok
	}()
	for halves := 0; halves == 0; time.Sleep(time.Millisecond) {
		e.mu.Lock()
		halves = len(e.halves)
		e.mu.Unlock()
	}
	greeted := make(chan bool, 1)
	go func() {
		_, ok := e.greet(ctx, stream{d: lanes[1]})
		greeted <- ok
	}()
	select {
	case ok := <-greeted:
		require.False(t, ok)
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a peer that takes no answer")
	}
	require.Empty(t, e.seats)
	<-first
}

// A member whose dial is given up after one lane, or whose process ends then, is no stranger.
func TestAMemberThatGivesUpIsNoStranger(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1", Patience: 100 * time.Millisecond})
	require.NoError(t, err)
	defer e.Close()
	for _, gone := range []bool{false, true} {
		d := newDeaf(e, 0)
		ended := make(chan struct{})
		go func() {
			e.knock(stream{d: d})
			close(ended)
		}()
		for !e.member("deaf") {
			time.Sleep(time.Millisecond)
		}
		if gone {
			(*watch)(e).Disconnected(e.host.Network(), d)
			require.False(t, e.member("deaf"))
		}
		<-ended
		require.Zero(t, e.Strangers())
	}
}
