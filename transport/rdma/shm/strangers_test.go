//go:build linux

package shm_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma/shm"
)

func openFiles(t testing.TB) int {
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(files)
}

func TestStrangersAreNeverAccepted(t *testing.T) {
	dir := private(t)
	listen(t, dir, shm.Options{}).Close() // whatever is opened once for the process
	before := openFiles(t)
	e := listen(t, dir, shm.Options{HandshakeTimeout: 100 * time.Millisecond})
	memory := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		require.NoError(t, err)
		require.NoError(t, unix.Ftruncate(fd, size))
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		require.NoError(t, err)
		return fd
	}
	hello := make([]byte, 144)
	copy(hello, "mpivshm2")
	size := int64(shm.SegmentBytes)
	hello[8], hello[9], hello[10], hello[11] = byte(size), byte(size>>8), byte(size>>16), byte(size>>24)
	soft, small := memory(size, 0), memory(4096, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	for _, tt := range []struct {
		name, why string
		send      []byte
		fds       []int
	}{
		{"garbage", "does not speak", []byte("GET / HTTP/1.1\r\n\r\n"), nil},
		{"a lot of garbage", "does not speak", make([]byte, 100_000), nil},
		{"no memory", "no shared memory", hello, nil},
		{"memory that can shrink", "not sealed", hello, []int{soft}},
		{"memory that is too small", "bytes", hello, []int{small}},
		{"many files", "bytes", hello, []int{small, small, small, small, small, small}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := net.Dial("unix", e.Addr().Local())
			require.NoError(t, err)
			defer c.Close()
			var rights []byte
			if tt.fds != nil {
				rights = unix.UnixRights(tt.fds...)
			}
			c.(*net.UnixConn).WriteMsgUnix(tt.send, rights, nil)
			answer := make([]byte, 144)
			c.SetDeadline(time.Now().Add(20 * time.Second))
			n, _ := c.Read(answer)
			require.Contains(t, string(answer[:n]), tt.why)
		})
	}
	unix.Close(soft)
	unix.Close(small)
	for range 20 { // they say nothing, and hold nobody up
		c, err := net.Dial("unix", e.Addr().Local())
		require.NoError(t, err)
		defer c.Close()
	}
	ctx, stop := shortly()
	defer stop()
	x := listen(t, dir, shm.Options{})
	_, err := x.Dial(ctx, e.Addr())
	require.NoError(t, err)
	c, err := e.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, x.Addr(), c.Peer())
	time.Sleep(200 * time.Millisecond) // until the silent have had their time
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err = e.Accept(short)
	require.ErrorIs(t, err, context.DeadlineExceeded, "a stranger was accepted")
	require.NoError(t, x.Close())
	require.NoError(t, e.Close())
	require.Equal(t, before+20, openFiles(t), "open files: before, and the 20 of the silent strangers")
}

func TestAnotherUserIsRefusedByName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir, err := os.MkdirTemp("", "shm") // others cannot enter t.TempDir
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	var log strings.Builder
	e := listen(t, dir, shm.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	path := e.Addr().Local()
	require.NoError(t, os.Chmod(dir, 0o711)) // a mistake
	require.NoError(t, os.Chmod(path, 0o777))
	answer := make([]byte, 144)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 12345, 12345, 12345); errno != 0 {
			done <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		}
		if err == nil {
			_, err = unix.Read(fd, answer)
		}
		done <- err
	}()
	require.NoError(t, <-done)
	require.Contains(t, string(answer), "user 12345 is not user 0")
	require.NoError(t, e.Close())
	require.Contains(t, log.String(), "user 12345")
}

func TestListenWantsADirectoryOfItsOwn(t *testing.T) {
	dir := private(t)
	require.NoError(t, os.Chmod(dir, 0o750))
	_, err := shm.Listen(dir+"/s", shm.Options{})
	require.ErrorContains(t, err, "chmod 700")
	_, err = shm.Listen(dir+"/"+strings.Repeat("s", 108), shm.Options{})
	require.ErrorContains(t, err, "shorter")
	require.NoError(t, os.Chmod(dir, 0o700))
	d, err := shm.Listen(dir+"/s", shm.Options{})
	require.NoError(t, err)
	defer d.Close()
	_, err = shm.Listen(dir+"/s", shm.Options{})
	require.ErrorContains(t, err, "remove the file")
}

func TestADialEndsWithItsContext(t *testing.T) {
	dir := private(t)
	mute, err := net.Listen("unix", dir+"/mute")
	require.NoError(t, err)
	defer mute.Close()
	x := listen(t, dir, shm.Options{})
	defer x.Close()
	before := openFiles(t)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	_, err = x.Dial(ctx, transport.Addr("shm:"+dir+"/mute"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "shm:"+dir+"/mute")
	require.Equal(t, before, openFiles(t))
}

func TestConnectionsLeaveNoFiles(t *testing.T) {
	dir := private(t)
	a, b := listen(t, dir, shm.Options{}), listen(t, dir, shm.Options{})
	defer a.Close()
	defer b.Close()
	ctx, stop := shortly()
	defer stop()
	before := openFiles(t)
	for range 20 {
		x, err := a.Dial(ctx, b.Addr())
		require.NoError(t, err)
		y, err := b.Accept(ctx)
		require.NoError(t, err)
		require.Equal(t, before+2, openFiles(t), "a connection costs one file at each end")
		require.NoError(t, x.Close())
		require.NoError(t, y.Close())
	}
	require.Equal(t, before, openFiles(t))
}

func TestTheSegmentGoesWhenNobodyUsesIt(t *testing.T) {
	mapped := func() int {
		maps, err := os.ReadFile("/proc/self/maps")
		require.NoError(t, err)
		return strings.Count(string(maps), "memfd:mpiv")
	}
	dir := private(t)
	a, b := listen(t, dir, shm.Options{}), listen(t, dir, shm.Options{})
	defer a.Close()
	defer b.Close()
	ctx, stop := shortly()
	defer stop()
	for end := time.Now().Add(20 * time.Second); mapped() != 0; runtime.GC() { // of other tests
		require.True(t, time.Now().Before(end))
	}
	x, err := a.Dial(ctx, b.Addr())
	require.NoError(t, err)
	y, err := b.Accept(ctx)
	require.NoError(t, err)
	require.Equal(t, 2, mapped())
	require.NoError(t, x.Close())
	require.NoError(t, y.Close())
	_, err = x.Poll(nil)
	require.ErrorIs(t, err, net.ErrClosed)
	for end := time.Now().Add(20 * time.Second); mapped() != 0; runtime.GC() {
		require.True(t, time.Now().Before(end), "a closed connection keeps its memory")
	}
}
