//go:build ofi && cgo && linux

package libfabric_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

func short(t testing.TB) context.Context {
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	t.Cleanup(stop)
	return ctx
}

func TestStrangersAreNeverAccepted(t *testing.T) {
	o := libfabric.Options{Secret: [16]byte{1}, Patience: 2 * time.Second, Handshakes: 4}
	e := listen(t, o)
	for _, say := range []string{"GET / HTTP/1.1\r\nHost: a.example.org:80\r\n\r\n", "mpivofi2" + string(make([]byte, 34))} {
		c, err := net.Dial("tcp", e.Addr().Local())
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Write([]byte(say))
		require.NoError(t, err)
		c.SetDeadline(time.Now().Add(10 * time.Second))
		answer, _ := io.ReadAll(c)
		require.Contains(t, string(answer), "it ", "why it was refused")
	}
	other := o
	other.Secret = [16]byte{2}
	_, err := listen(t, other).Dial(t.Context(), e.Addr())
	require.ErrorContains(t, err, "the secret is another")
	require.ErrorContains(t, err, string(e.Addr()))

	other = o
	other.Provider = "tcp;ofi_rxm"
	_, err = listen(t, other).Dial(t.Context(), e.Addr())
	require.ErrorContains(t, err, "choose one for all")

	for range 10 { // they say nothing, and hold nobody up
		c, err := net.Dial("tcp", e.Addr().Local())
		require.NoError(t, err)
		defer c.Close()
	}
	_, err = listen(t, o).Dial(t.Context(), e.Addr())
	require.NoError(t, err)
	_, err = e.Accept(t.Context())
	require.NoError(t, err)
	_, err = e.Accept(short(t))
	require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")
}

func member(t testing.TB, a *identity.Authority, index int) *tls.Config {
	c, err := a.Issue(identity.Process, index)
	require.NoError(t, err)
	id, err := c.Open()
	require.NoError(t, err)
	return id.TLS()
}

func TestBothEndsKnowWhoTheOtherIs(t *testing.T) {
	job, err := identity.NewAuthority("job")
	require.NoError(t, err)
	network := libfabric.Network("shm")
	at := func(config *tls.Config) transport.Endpoint {
		e, err := network.Listen(t.Context(), transport.Site{Address: "127.0.0.1", TLS: config})
		require.NoError(t, err)
		t.Cleanup(func() { e.Close() })
		return e
	}
	x, y := at(member(t, job, 1)), at(member(t, job, 2))
	require.Equal(t, "ofi", x.Addr().Network())
	a, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	b, err := y.Accept(t.Context())
	require.NoError(t, err)
	require.Equal(t, "mpiv://job/process/2", a.(transport.Authenticated).Certificate().URIs[0].String())
	require.Equal(t, "mpiv://job/process/1", b.(transport.Authenticated).Certificate().URIs[0].String())

	elsewhere, err := identity.NewAuthority("job")
	require.NoError(t, err)
	for name, config := range map[string]*tls.Config{"another job": member(t, elsewhere, 1), "no certificate": nil} {
		ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
		_, err = at(config).Dial(ctx, y.Addr())
		stop()
		require.Error(t, err, name)
		require.NotErrorIs(t, err, context.DeadlineExceeded, name)
	}
	_, err = y.Accept(short(t))
	require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")
}

func TestListenSaysWhatIsMissing(t *testing.T) {
	_, err := libfabric.Listen(t.Context(), libfabric.Options{Provider: "nosuch"})
	require.ErrorContains(t, err, "nosuch")
	require.ErrorContains(t, err, "fi_info -l")
}

func TestADialEndsWithItsContext(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer mute.Close()
	addr := transport.Addr("ofi:" + mute.Addr().String())
	_, err = listen(t, libfabric.Options{}).Dial(short(t), addr)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, string(addr))
}
