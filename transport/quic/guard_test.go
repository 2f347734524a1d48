//go:build linux

package quic_test

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/quic"
	"github.com/mpiv/mpiv/transport/transporttest"
)

// budget is what package gate lets an address begin at once, and perSecond in the
// long run.
const budget, perSecond = 200, 50

// A flood is a stranger at one address, who begins connections.
type flood struct{ net.Conn }

func newFlood(t *testing.T, from string, e *quic.Endpoint) flood {
	d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
	c, err := d.Dial("udp", e.Addr().Local())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	return flood{c}
}

// begin sends the first datagram of a connection, of which only the header is right.
func (f flood) begin(token ...byte) error {
	b := make([]byte, 1200)
	_, _ = rand.Read(b) // never fails
	copy(b, []byte{0xc3, 0, 0, 0, 1, 8})
	b[14] = 8 // the length of the other connection ID
	rest := binary.BigEndian.AppendUint16(b[:23], 0x4000|uint16(len(token)))
	rest = append(rest, token...)
	binary.BigEndian.AppendUint16(rest, 0x4000|uint16(len(b)-len(rest)-2))
	_, err := f.Write(b)
	return err
}

// answered begins a connection and tells whether an answer came within a time.
func (f flood) answered(t *testing.T, within time.Duration) bool {
	require.NoError(t, f.begin())
	require.NoError(t, f.SetReadDeadline(time.Now().Add(within)))
	_, err := f.Read(make([]byte, 1500))
	if err != nil {
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	return err == nil
}

// askingAll is an endpoint that asks every newcomer to show that he receives: so
// each gets an answer.
func askingAll(t *testing.T) *quic.Endpoint {
	e := listen(t, quic.Options{Handshakes: 4, Patience: 10 * time.Minute})
	require.NoError(t, newFlood(t, "127.0.0.1", e).begin())
	eventually(t, "a handshake", func() bool { return e.Unfinished() == 1 })
	return e
}

func TestAStrangerIsShutOutForASecond(t *testing.T) {
	transporttest.OwnNetwork(t)
	e := askingAll(t)
	f := newFlood(t, "10.9.8.7", e)
	start, n := time.Now(), 0
	for f.answered(t, 2*time.Second) { // what is dropped is not answered later either
		n++
		require.LessOrEqual(t, n, budget+1+int(perSecond*time.Since(start).Seconds()), "nobody was dropped")
	}
	require.GreaterOrEqual(t, n, budget)
	require.True(t, f.answered(t, 10*time.Second), "it is not let in again")
}

func TestMembersAreNeverShutOut(t *testing.T) {
	transporttest.OwnNetwork(t)
	for name, join := range map[string]func(e *quic.Endpoint){
		"it was expected": func(e *quic.Endpoint) {
			e.Expect([]transport.Addr{"quic:h:1", "tcp:10.9.8.6:1", "quic:10.9.8.7:1"})
		},
		"it has dialed": func(e *quic.Endpoint) {
			x := listen(t, quic.Options{Listen: "10.9.8.7:0"})
			_, err := x.Dial(t.Context(), e.Addr())
			require.NoError(t, err)
			_, err = e.Accept(t.Context())
			require.NoError(t, err)
		},
		"it was dialed": func(e *quic.Endpoint) {
			x := listen(t, quic.Options{Listen: "10.9.8.7:0"})
			_, err := e.Dial(t.Context(), x.Addr())
			require.NoError(t, err)
		},
	} {
		e := askingAll(t)
		join(e)
		f := newFlood(t, "10.9.8.7", e)
		for i := range 2 * budget {
			require.True(t, f.answered(t, 10*time.Second), "%s: %d", name, i)
		}
	}
}

// A token that one datagram has won is not a way around the budget.
func TestWhoReceivesAtHisAddressHasABudgetToo(t *testing.T) {
	transporttest.OwnNetwork(t)
	e := askingAll(t)
	f := newFlood(t, "10.9.8.7", e)
	require.NoError(t, f.begin())
	retry := make([]byte, 1500)
	require.NoError(t, f.SetReadDeadline(time.Now().Add(10*time.Second)))
	size, err := f.Read(retry)
	require.NoError(t, err)
	require.Equal(t, byte(0xf0), retry[0]&0xf0, "it is no Retry")
	const fixed, tag = 1 + 4 + 1 + 8 + 1, 16 // our connection ID has 8 bytes
	token := retry[fixed+int(retry[fixed-1]) : size-tag]
	start := time.Now()
	other, n := newFlood(t, "10.9.8.7", e), 0
	for other.answered(t, 2*time.Second) {
		n++
		for range 9 {
			require.NoError(t, f.begin(token...))
		}
		require.LessOrEqual(t, 10*n, budget+20+int(perSecond*time.Since(start).Seconds()), "the token was not charged for")
	}
}

func TestAConnectionMovesToWhereAStrangerFloods(t *testing.T) {
	transporttest.OwnNetwork(t)
	x, y := listen(t, quic.Options{}), listen(t, quic.Options{})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err := y.Accept(t.Context())
	require.NoError(t, err)
	at := &numbers{t: t}
	exchange(t, near, far, at, 100)

	f := newFlood(t, "10.9.8.7", y)
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	defer flooding.Wait()
	defer stop()
	flooding.Go(func() {
		for ctx.Err() == nil {
			if err := f.begin(); err != nil && !errors.Is(err, net.ErrClosed) {
				t.Error(err)
				return
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
	eventually(t, "the stranger to be shut out", func() bool { return y.Spent(f.LocalAddr()) })
	require.NoError(t, x.Rebind(t.Context(), "10.9.8.7:0"))
	exchange(t, near, far, at, 100)
	back := &numbers{t: t}
	exchange(t, far, near, back, 100)
}
