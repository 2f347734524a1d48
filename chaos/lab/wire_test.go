//go:build linux

package lab

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pair is two files, of which each reads what the other writes, frame by frame.
func pair(t *testing.T) (a, b *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
}

// through sends a hundred frames through a wire and returns those that come out.
func through(t *testing.T, i Impairment) (out []byte, took time.Duration) {
	t.Helper()
	in, from := pair(t)
	to, end := pair(t)
	defer in.Close()
	defer end.Close()
	ctx, stop := context.WithCancel(t.Context())
	w := &wire{node: from, port: to, stop: stop}
	w.direction(ctx, from, to, i, 0)
	start := time.Now()
	go func() {
		for k := range 100 {
			_, _ = in.Write([]byte{byte(k)})
		}
	}()
	buf := make([]byte, 16)
	for {
		_ = end.SetReadDeadline(time.Now().Add(i.Delay + 200*time.Millisecond))
		n, err := end.Read(buf)
		if err != nil {
			break
		}
		if took == 0 {
			took = time.Since(start)
		}
		out = append(out, buf[:n]...)
	}
	w.close()
	return out, took
}

func TestAWireLosesTheSameFramesWithTheSameSeed(t *testing.T) {
	all, _ := through(t, Impairment{})
	require.Len(t, all, 100)
	once, _ := through(t, Impairment{Loss: 0.3, Seed: 7})
	again, _ := through(t, Impairment{Loss: 0.3, Seed: 7})
	other, _ := through(t, Impairment{Loss: 0.3, Seed: 8})
	require.Equal(t, once, again)
	require.NotEqual(t, once, other)
	require.Greater(t, len(once), 40)
	require.Less(t, len(once), 95)
	for i := 1; i < len(once); i++ {
		require.Greater(t, once[i], once[i-1], "order is kept")
	}
	none, _ := through(t, Impairment{Loss: 1})
	require.Empty(t, none)
}

func TestAWireDelaysEveryFrame(t *testing.T) {
	out, took := through(t, Impairment{Delay: 60 * time.Millisecond})
	require.Len(t, out, 100)
	require.GreaterOrEqual(t, took, 60*time.Millisecond)
}
