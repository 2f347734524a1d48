package libp2p

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	p2p "github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/stretchr/testify/require"
)

// A relay gives no place to a peer that has not shown that it belongs to the job, and takes nobody to one or from one.
func TestARelayServesMembersOnly(t *testing.T) {
	e, err := Listen(t.Context(), Options{Address: "127.0.0.1", Relay: true})
	require.NoError(t, err)
	defer e.Close()
	h, err := p2p.New(p2p.NoListenAddrs, p2p.DisableMetrics())
	require.NoError(t, err)
	defer h.Close()
	info, err := parseAddr(string(e.Addr()))
	require.NoError(t, err)
	_, err = client.Reserve(t.Context(), h, info)
	require.ErrorContains(t, err, "PERMISSION_DENIED")
	e.join(h.ID())
	_, err = client.Reserve(t.Context(), h, info)
	require.NotContains(t, fmt.Sprint(err), "PERMISSION_DENIED")

	m := (*members)(e)
	require.False(t, m.AllowConnect("stranger", nil, h.ID()))
	require.False(t, m.AllowConnect(h.ID(), nil, "stranger"))
	require.True(t, m.AllowConnect(h.ID(), nil, h.ID()))
}

func TestAnAddressIsOfOnePeer(t *testing.T) {
	var parts []string
	for range maxAddrs + 1 {
		key, _, err := crypto.GenerateEd25519Key(rand.Reader)
		require.NoError(t, err)
		id, err := peer.IDFromPrivateKey(key)
		require.NoError(t, err)
		parts = append(parts, fmt.Sprintf("/ip4/10.0.0.1/tcp/1/p2p/%s", id))
	}
	_, err := parseAddr(Name + ":" + parts[0] + "," + parts[1])
	require.ErrorContains(t, err, "two peers")
	for i := range parts {
		parts[i] = parts[0]
	}
	_, err = parseAddr(Name + ":" + strings.Join(parts, ","))
	require.ErrorContains(t, err, "at most")
	_, err = parseAddr(Name + ":" + strings.Join(parts[1:], ","))
	require.NoError(t, err)
}

func TestListenNeedsToKnowWhomItAccepts(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	own := &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{{1}}, PrivateKey: key}}}
	_, err = Listen(t.Context(), Options{Address: "127.0.0.1", TLS: own})
	require.ErrorContains(t, err, "VerifyConnection")
}

// A dial of who says nothing ends with its context and with its endpoint, and leaves no stream.
func TestADialThatIsNotAnswered(t *testing.T) {
	e, x := patient(t, time.Minute), patient(t, time.Minute)
	taken := make(chan network.Stream, 8)
	e.host.SetStreamHandler(protocolID, func(s network.Stream) { taken <- s })
	dialed := make(chan error, 1)
	dial := func(ctx context.Context) {
		_, err := x.Dial(ctx, e.Addr())
		dialed <- err
	}
	end := func() error {
		select {
		case err := <-dialed:
			return err
		case <-time.After(10 * time.Second):
			t.Fatal("it goes on")
			return nil
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	go dial(ctx)
	first, second := <-taken, <-taken
	stop()
	require.ErrorIs(t, end(), context.Canceled)
	for _, s := range []network.Stream{first, second} {
		s.SetReadDeadline(time.Now().Add(10 * time.Second))
		var err error
		for b := make([]byte, 4096); err == nil; {
			_, err = s.Read(b)
		}
		require.ErrorIs(t, err, network.ErrReset)
	}
	go dial(t.Context())
	<-taken
	<-taken
	x.Close()
	require.ErrorIs(t, end(), net.ErrClosed)
}
