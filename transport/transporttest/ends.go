package transporttest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// Endpoints and connections come and go.

func testAddr(t *testing.T, s *setup) {
	e := s.endpoint(t)
	require.NotEmpty(t, e.Addr().Network())
	require.NotEmpty(t, e.Addr().Local())
}

func testClose(t *testing.T, s *setup) {
	a, b := s.pair(t)
	woken := make(chan struct{}, 100)
	in := new(inbox)
	asleep(t, b, in, func() { woken <- struct{}{} })
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "the second Close")
	select {
	case <-woken:
	case <-time.After(patience):
		t.Fatal("the peer's Close did not wake")
	}
	end := time.Now().Add(patience)
	for {
		if _, err := b.Poll(in); err != nil {
			require.ErrorIs(t, err, transport.ErrBroken)
			break
		}
		require.True(t, time.Now().Before(end), "Poll does not tell that the peer has closed")
	}
	h, body := number(1, 8)
	require.ErrorIs(t, a.Send(transport.Message{Header: h, Body: body}), net.ErrClosed)
	_, err := a.Poll(in)
	require.ErrorIs(t, err, net.ErrClosed)
}

func testEndpointClose(t *testing.T, s *setup) {
	x, y := s.endpoint(t), s.endpoint(t)
	accepted := make(chan error, 1)
	go func() {
		_, err := y.Accept(t.Context())
		accepted <- err
	}()
	time.Sleep(time.Millisecond)
	require.NoError(t, y.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	_, err := y.Accept(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err = x.Dial(ctx, y.Addr())
	require.Error(t, err)
}

func testDialNobody(t *testing.T, s *setup) {
	x, y := s.endpoint(t), s.endpoint(t)
	gone := y.Addr()
	require.NoError(t, y.Close())
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err := x.Dial(ctx, gone)
	require.Error(t, err)
	require.Contains(t, err.Error(), string(gone), "the error does not say who was dialed")
}

func testAcceptContext(t *testing.T, s *setup) {
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	_, err := s.endpoint(t).Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
}
