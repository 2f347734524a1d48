//go:build linux

package gate

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hello is what crypto/tls says first.
func hello(t testing.TB) []byte {
	a, b := net.Pipe()
	defer a.Close()
	go tls.Client(b, &tls.Config{InsecureSkipVerify: true}).Handshake()
	first := make([]byte, 16<<10)
	n, err := a.Read(first)
	require.NoError(t, err)
	return first[:n]
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited 20 s for: %s", what)
		}
	}
}

// A hall is a gate and those that it has let in.
type hall struct {
	*Gate
	in chan net.Conn
}

func open(t *testing.T, o Options) hall {
	if o.First == nil {
		o.First = TLS
	}
	g, err := Listen(t.Context(), "127.0.0.1:0", o)
	require.NoError(t, err)
	h := hall{g, make(chan net.Conn, 1000)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := g.Accept()
			if err != nil {
				require.ErrorIs(t, err, net.ErrClosed)
				return
			}
			h.in <- c
		}
	})
	t.Cleanup(func() {
		require.NoError(t, g.Close())
		require.NoError(t, g.Close())
		wg.Wait()
		for len(h.in) > 0 {
			(<-h.in).Close()
		}
	})
	return h
}

func (h hall) knock(t *testing.T, b []byte) net.Conn {
	c, err := net.Dial("tcp", h.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_, err = c.Write(b)
	require.NoError(t, err)
	return c
}

func (h hall) held() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

func thrownOut(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetDeadline(time.Now().Add(20*time.Second)))
	n, err := c.Read(make([]byte, 1))
	require.Zero(t, n, "it was answered")
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestAHelloComesThroughUnread(t *testing.T) {
	h := open(t, Options{Patience: time.Minute})
	first := hello(t)
	for name, pieces := range map[string][]int{"whole": {len(first)}, "in two": {200, len(first)}, "byte by byte, then the rest": {1, 2, 3, 6, 10, 11, 12, len(first)}} {
		c := h.knock(t, nil)
		at := 0
		for _, end := range pieces {
			_, err := c.Write(first[at:end])
			require.NoError(t, err)
			at = end
			time.Sleep(2 * time.Millisecond) // so that they are pieces: nothing fails if they are not
		}
		_, err := c.Write([]byte("more"))
		require.NoError(t, err)
		in := <-h.in
		got := make([]byte, len(first)+4)
		require.NoError(t, in.SetDeadline(time.Now().Add(20*time.Second)))
		for n := 0; n < len(got); {
			k, err := in.Read(got[n:])
			require.NoError(t, err, name)
			n += k
		}
		require.Equal(t, string(first)+"more", string(got), name)
		time.AfterFunc(5*time.Millisecond, func() { c.Write([]byte{7}) }) // one byte alone wakes its reader again
		n, err := in.Read(got)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, c.LocalAddr().String(), in.RemoteAddr().String())
		in.Close()
	}
	require.Zero(t, h.Strangers())
}

func TestStrangersAreTurnedAway(t *testing.T) {
	var mu sync.Mutex
	var why []error
	h := open(t, Options{Patience: 100 * time.Millisecond, Refused: func(from netip.AddrPort, err error) {
		mu.Lock()
		defer mu.Unlock()
		why = append(why, err)
	}})
	first := hello(t)
	n := uint64(0)
	for _, c := range []struct {
		name  string
		b     []byte
		leave bool
		want  error
	}{
		{"garbage", []byte("GET / HTTP/1.1\r\n"), false, errFirst},
		{"one wrong byte", []byte{21}, false, errFirst},
		{"half a hello", first[:len(first)/2], false, errSilent},
		{"nothing", nil, false, errSilent},
		{"half a hello, and the end", first[:len(first)/2], true, ErrHungUp},
	} {
		sock := h.knock(t, c.b)
		if c.leave {
			require.NoError(t, sock.(*net.TCPConn).CloseWrite())
		}
		thrownOut(t, sock)
		n++
		eventually(t, c.name, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(why) == int(n) && why[n-1] == c.want
		})
	}
	require.Equal(t, n-1, h.Strangers(), "where members are, who hangs up is not refused")
	require.Empty(t, h.in)
}

func TestACrowdThatSaysLittleIsBounded(t *testing.T) {
	const room, crowd = 8, 100
	h := open(t, Options{Waiting: room, Patience: time.Minute})
	for range crowd {
		h.knock(t, hello(t)[:20])
	}
	eventually(t, "the first to be in", func() bool { return h.held() == room })
	h.knock(t, hello(t))
	most := 0
	eventually(t, "a member to be let in", func() bool { most = max(most, h.held()); return len(h.in) == 1 })
	require.LessOrEqual(t, most, room)
	require.NotZero(t, h.Strangers())
	require.NoError(t, h.Close())
	_, err := h.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
}

// TestWhoTakesTheLastPlaceTurnsNobodyAway: room is made for somebody only.
func TestWhoTakesTheLastPlaceTurnsNobodyAway(t *testing.T) {
	const room = 3
	h := open(t, Options{Waiting: room, Patience: time.Minute})
	for n := range room {
		h.knock(t, hello(t)[:20])
		eventually(t, fmt.Sprintf("number %d to wait", n+1), func() bool { return h.held() == n+1 })
		time.Sleep(2 * grace) // now it would have to go if another came
	}
	require.Zero(t, h.Strangers())
	h.knock(t, hello(t)[:20])
	eventually(t, "the oldest to go", func() bool { return h.Strangers() == 1 && h.held() == room })
}

// TestWhoWaitsHasItsTime: newcomers wait as long.
func TestWhoWaitsHasItsTime(t *testing.T) {
	h := open(t, Options{Waiting: 1, Patience: time.Minute})
	h.knock(t, hello(t)[:20])
	eventually(t, "it to wait", func() bool { return h.held() == 1 })
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.waiting0()
	require.False(t, h.makeRoomLocked(since.Add(grace-1)))
	require.True(t, h.makeRoomLocked(since.Add(grace)))
	require.Empty(t, h.waiting)
}

func TestNothingIsLeft(t *testing.T) {
	files := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(all)
	}
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS}) // starts Go's poller
	require.NoError(t, err)
	g.Close()
	before := files()
	g, err = Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	h := hall{Gate: g}
	var socks []net.Conn
	for i := range 20 {
		socks = append(socks, h.knock(t, hello(t)[:20+i%2*1000])) // some wait
	}
	done := make(chan error)
	go func() {
		for {
			if _, err := g.Accept(); err != nil {
				done <- err
				return
			}
		}
	}()
	eventually(t, "them to wait", func() bool { return h.held() == 20 })
	g.Close()
	require.ErrorIs(t, <-done, net.ErrClosed)
	for _, s := range socks {
		s.Close()
	}
	require.Equal(t, before, files())
}

// TestWhoIsReadyIsTurnedAwayAtTheEnd: nobody else will ever close it.
func TestWhoIsReadyIsTurnedAwayAtTheEnd(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	c := hall{Gate: g}.knock(t, hello(t))
	eventually(t, "it to be ready", func() bool {
		require.NoError(t, g.handle([]unix.EpollEvent{{Fd: int32(g.fd)}}))
		return len(g.ready) == 1
	})
	require.NoError(t, g.Close())
	thrownOut(t, c)
}

func TestListenSaysWhatIsWrong(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	_, err = Listen(t.Context(), g.Addr().String(), Options{First: TLS})
	require.ErrorContains(t, err, fmt.Sprint(g.Addr()))
}

// TestRoomIsMadeByWhoHasMost: by strangers of whom many wait from one address, at once; or by the oldest.
func TestRoomIsMadeByWhoHasMost(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	first, crowd, members := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	g.Expect(members)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	wait := func(from netip.Addr, n int) {
		for range n {
			ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			require.NoError(t, err)
			t.Cleanup(func() { unix.Close(ends[1]) })
			g.holdLocked(&guest{fd: ends[0], from: netip.AddrPortFrom(from, 1), since: now}, 40)
		}
	}
	wait(first, 1)
	wait(members, 3*few)
	wait(crowd, few+1)
	require.True(t, g.makeRoomLocked(now))
	require.Equal(t, map[netip.Addr]int{first: 1, members: 3 * few, crowd: few}, g.counts)
	require.False(t, g.makeRoomLocked(now), "it has not had its time")
	require.True(t, g.makeRoomLocked(now.Add(grace)))
	require.Equal(t, map[netip.Addr]int{members: 3 * few, crowd: few}, g.counts)
}

// TestWhoWaitsWakesNobody until it has sent what is asked for.
func TestWhoWaitsWakesNobody(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	hall{Gate: g}.knock(t, hello(t)[:20])
	eventually(t, "it to wait", func() bool {
		require.NoError(t, g.handle([]unix.EpollEvent{{Fd: int32(g.fd)}}))
		return len(g.waiting) == 1
	})
	n, err := unix.EpollWait(g.epoll, make([]unix.EpollEvent, 1), 0)
	require.NoError(t, err)
	require.Zero(t, n)
}

// TestMoreThanIsLookedAtIsNotWaitedFor: it would never be there.
func TestMoreThanIsLookedAtIsNotWaitedFor(t *testing.T) {
	h := open(t, Options{Patience: time.Minute, First: func([]byte) (int, bool) { return firstMost + 1, true }})
	thrownOut(t, h.knock(t, []byte("mpiv")))
}

// TestWhoHungUp: of others than members, and of what else went wrong, it does not excuse.
func TestWhoHungUp(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS})
	require.NoError(t, err)
	defer g.Close()
	member, stranger := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 2)}
	g.Member(member)
	for _, err := range []error{ErrHungUp, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE} {
		require.True(t, g.HungUp(member, fmt.Errorf("read: %w", err)), err)
		require.False(t, g.HungUp(stranger, err), err)
	}
	require.False(t, g.HungUp(member, os.ErrDeadlineExceeded))
}

// TestTheGateOpensWhenThereIsRoom, and not only when the oldest has had its time.
func TestTheGateOpensWhenThereIsRoom(t *testing.T) {
	g, err := Listen(t.Context(), "127.0.0.1:0", Options{First: TLS, Waiting: 2})
	require.NoError(t, err)
	defer g.Close()
	c := hall{Gate: g}.knock(t, hello(t)[:20])
	defer c.Close()
	eventually(t, "it to wait", func() bool {
		require.NoError(t, g.handle([]unix.EpollEvent{{Fd: int32(g.fd)}}))
		return len(g.waiting) == 1
	})
	g.paused = true
	g.tickLocked(g.waiting0())
	require.False(t, g.paused)
}
