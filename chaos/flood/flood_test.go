package flood

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// server serves on loopback until the test ends and returns the URL of the file.
func server(t *testing.T, bytes int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Serve(ctx, l, bytes) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})
	return "http://" + l.Addr().String() + Path
}

func TestAFloodIsBoundedInNumber(t *testing.T) {
	const size, requests = 100_000, 50
	url := server(t, size)
	r, err := Attack(t.Context(), Options{URL: url, Connections: 20, Requests: requests, Duration: time.Minute})
	require.NoError(t, err)
	require.Equal(t, Report{Requests: requests, Bytes: requests * size, Took: r.Took}, r)
}

func TestAFloodIsBoundedInTime(t *testing.T) {
	url := server(t, DefaultBytes)
	r, err := Attack(t.Context(), Options{URL: url, Connections: 30, Duration: 300 * time.Millisecond})
	require.NoError(t, err)
	require.Positive(t, r.Bytes)
	require.GreaterOrEqual(t, r.Took, 300*time.Millisecond)
	require.Zero(t, r.Failed, "what the end of the time cuts short is no failure")
}

// It opens no more connections at once than it says.
func TestAFloodIsBoundedInConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		_, err := Attack(ctx, Options{URL: "http://" + l.Addr().String() + Path, Connections: 5, Duration: time.Minute})
		ended <- err
	}()
	for range 5 {
		c, err := l.Accept()
		require.NoError(t, err)
		defer c.Close() // and never answers
	}
	require.NoError(t, l.(*net.TCPListener).SetDeadline(time.Now().Add(200*time.Millisecond)))
	_, err = l.Accept()
	require.Error(t, err, "a sixth connection while five wait")
	stop()
	require.NoError(t, <-ended)
}

func TestAFloodGoesNowhereElse(t *testing.T) {
	lab := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{URL: "http://10.1.0.1:80/file"}, "to loopback and to hosts of a lab only"},
		{Options{URL: "http://192.0.2.1:80/file", Allow: lab}, "to loopback and to hosts of a lab only"},
		{Options{URL: "http://example.org:80/file", Allow: lab}, "write the address as numbers"},
		{Options{URL: "https://127.0.0.1:80/file"}, "write the address as numbers"},
		{Options{URL: "http://127.0.0.1/file"}, "write the address as numbers"},
		{Options{URL: "http://127.0.0.1:80/file", Connections: 3000}, "from 1 to 2000"},
		{Options{URL: "http://127.0.0.1:80/file", Duration: time.Hour}, "at most 10m"},
		{Options{URL: "http://127.0.0.1:80/file", Requests: -1}, "1 or more"},
	} {
		_, err := Attack(t.Context(), c.o)
		require.ErrorContains(t, err, c.says, "%+v", c.o)
		_, err = AttackAB(t.Context(), c.o)
		require.ErrorContains(t, err, c.says, "%+v", c.o)
	}
	require.NoError(t, Options{URL: "http://10.1.0.1:80/file", Allow: lab}.withDefaults().check())
}

func TestWhatCannotBeServed(t *testing.T) {
	for _, bytes := range []int64{0, -1, 2 << 30} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.ErrorContains(t, Serve(t.Context(), l, bytes), "from 1 to")
		_, err = l.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	}
	resp, err := http.Get(server(t, 10) + "s")
	require.NoError(t, err)
	resp.Body.Close()
	require.Equal(t, http.StatusNotFound, resp.StatusCode)
}

// A failing listener accepts one connection, and then waits to fail.
type failing struct {
	net.Listener
	once bool
	fail chan struct{}
}

var errNoMore = errors.New("no more")

func (f *failing) Accept() (net.Conn, error) {
	if f.once {
		<-f.fail
		return nil, errNoMore
	}
	f.once = true
	return f.Listener.Accept()
}

func TestWhoCannotAcceptEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &failing{Listener: l, fail: make(chan struct{})}
	ended := make(chan error, 1)
	go func() { ended <- Serve(t.Context(), f, MostBytes) }()
	resp, err := http.Get("http://" + l.Addr().String() + Path)
	require.NoError(t, err)
	defer resp.Body.Close()
	close(f.fail)
	require.ErrorIs(t, <-ended, errNoMore)
	n, err := io.Copy(io.Discard, resp.Body)
	require.Error(t, err, "the rest of the file came, too")
	require.Less(t, n, int64(MostBytes))
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestApacheAndAB(t *testing.T) {
	for _, name := range []string{"apache2", "ab"} {
		if installed(name) == "" {
			t.Skip(ErrNoApache)
		}
	}
	const size = 1_000_000
	l, err := net.Listen("tcp", "127.0.0.1:0") // for a port that is free
	require.NoError(t, err)
	at := l.Addr().(*net.TCPAddr).AddrPort()
	l.Close()
	ctx, stop := context.WithCancel(t.Context())
	ready, ended := make(chan bool, 1), make(chan error, 1)
	go func() { ended <- ServeApache(ctx, at, size, func() { ready <- true }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatalf("ServeApache = %v", err)
	}
	o := Options{URL: "http://" + at.String() + Path, Connections: 10, Requests: 40, Duration: time.Minute}
	r, err := AttackAB(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Report{Requests: 40, Bytes: 40 * size, Took: r.Took}, r)
	r, err = Attack(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 40, r.Requests)
	o.Requests, o.Duration = 0, 300*time.Millisecond
	r, err = AttackAB(t.Context(), o)
	require.NoError(t, err)
	require.Less(t, r.Took, 20*time.Second)
	stop()
	require.NoError(t, <-ended)
}

func TestParseAB(t *testing.T) {
	r, ok := parseAB("Concurrency Level:      200\nComplete requests:      16\nFailed requests:        2\n   (Connect: 0, Receive: 1)\nNon-2xx responses:      3\nHTML transferred:       128000000 bytes\n")
	require.True(t, ok)
	require.Equal(t, Report{Requests: 11, Failed: 5, Bytes: 128_000_000}, r)
	_, ok = parseAB("ab: Could not resolve")
	require.False(t, ok)
}
