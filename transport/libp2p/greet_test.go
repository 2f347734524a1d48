package libp2p

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// lane is a stream of a peer that says one Hello, or with none nothing, and takes nothing.
type lane struct {
	stream
	hello io.Reader
}

func newLane(e *Endpoint, h streams.Hello) lane {
	h.Proof = e.proofOf("deaf", e.host.ID())
	return lane{stream{d: newDeaf(e, 0)}, bytes.NewReader(h.Append(nil))}
}

func (l lane) Conn() network.Conn { return closable{l.d} }

func (l lane) Read(p []byte) (int, error) {
	if l.hello == nil {
		<-l.d.ended
		return 0, io.ErrClosedPipe
	}
	return l.hello.Read(p)
}

func (l lane) wasReset() bool {
	select {
	case <-l.d.ended:
		return true
	default:
		return false
	}
}

type closable struct{ *deaf }

func (closable) Close() error { return nil }

func patient(t *testing.T, patience time.Duration) *Endpoint {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1", Patience: patience})
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

const someAddr transport.Addr = Name + ":/p2p/x"

// A lane belongs to no other connection than the one of its number and address, and is there once.
func TestALaneFindsItsOther(t *testing.T) {
	e := patient(t, 30*time.Second)
	first := newLane(e, streams.Hello{ID: [16]byte{1}, Addr: someAddr})
	ended := make(chan struct{})
	go func() {
		e.knock(first)
		close(ended)
	}()
	halves := func() int {
		e.mu.Lock()
		defer e.mu.Unlock()
		return len(e.halves)
	}
	for halves() == 0 {
		time.Sleep(time.Millisecond)
	}
	for _, h := range []streams.Hello{
		{ID: [16]byte{1}, Addr: someAddr},                   // the same lane
		{Lane: 1, ID: [16]byte{1}, Addr: someAddr + "/p2p"}, // of another address
	} {
		other := newLane(e, h)
		e.knock(other)
		require.True(t, other.wasReset())
		require.Equal(t, 1, halves())
	}
	e.stop()
	<-ended
	require.True(t, first.wasReset())
	require.Zero(t, halves())
	require.Empty(t, e.knocks)
	require.Empty(t, e.seats)
}

// Who opens a stream and is silent, or talks nonsense, has left nothing when its time is over.
func TestAStreamThatIsNoneIsForgotten(t *testing.T) {
	e := patient(t, 20*time.Millisecond)
	for _, hello := range []io.Reader{nil, bytes.NewReader(make([]byte, 1000))} {
		l := newLane(e, streams.Hello{})
		l.hello = hello
		ended := make(chan struct{})
		go func() {
			e.knock(l)
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			l.d.reset()
			t.Fatal("it is waited for")
		}
		require.True(t, l.wasReset())
		require.Empty(t, e.knocks)
	}
	require.Equal(t, uint64(2), e.Strangers())
}

// An answer is to what was asked, and shows who belongs to the job.
func TestAnAnswerIsToThisConnection(t *testing.T) {
	e, id := patient(t, time.Minute), [16]byte{1}
	for _, h := range []streams.Hello{{ID: [16]byte{2}, Addr: someAddr}, {Lane: 1, ID: id, Addr: someAddr}} {
		_, err := e.answer(newLane(e, h), id)
		require.ErrorContains(t, err, "another connection")
	}
	require.False(t, e.member("deaf"))
	_, err := e.answer(newLane(e, streams.Hello{ID: id, Addr: someAddr}), id)
	require.NoError(t, err)
	require.True(t, e.member("deaf"))
}
