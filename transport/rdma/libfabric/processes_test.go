//go:build ofi && cgo && linux

package libfabric_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
	"github.com/mpiv/mpiv/transport/rdma/libfabric"
)

const childOf = "MPIV_LIBFABRIC_TEST_CHILD" // in the environment: the provider

func TestMain(m *testing.M) {
	if provider := os.Getenv(childOf); provider != "" {
		if err := child(provider); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// child offers a body to who dials, and sleeps until that one's answer wakes it,
// again and again.
func child(provider string) error {
	d, err := libfabric.Listen(context.Background(), libfabric.Options{Provider: provider})
	if err != nil {
		return err
	}
	fmt.Println(d.Addr())
	q, err := rdma.New(d).Accept(context.Background())
	if err != nil {
		return err
	}
	c := q.(*rdma.Conn)
	body := bytes.Repeat([]byte("libfabric"), 100_000)
	ticket, _ := c.Offer(body)
	in := &caught{}
	header := make([]byte, transport.HeaderLen)
	for got := 0; ; got = in.got {
		if err := c.Send(transport.Message{Header: header, Body: ticket[:]}); err != nil {
			return err
		}
		for in.got == got {
			woken := make(chan struct{}, 1)
			c.Arm(func() { woken <- struct{}{} })
			<-woken
			if _, err := c.Poll(in); err != nil {
				return err
			}
		}
	}
}

// collector keeps the last body.
type collector struct {
	caught
	body []byte
}

func (c *collector) Receive(header, body []byte) bool { return transport.Receive(c, header, body) }
func (c *collector) Arrived(_, body []byte)           { c.got++; c.body = body }

func TestTwoProcesses(t *testing.T) {
	eachProvider(t, func(t *testing.T, o libfabric.Options) {
		exe, err := os.Executable()
		require.NoError(t, err)
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childOf+"="+o.Provider)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer func() {
			cmd.Process.Kill()
			cmd.Wait()
			left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/%d:*", cmd.Process.Pid)) // provider shm's, of who is killed
			for _, file := range left {
				os.Remove(file)
			}
		}()
		addr, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		conn, err := listen(t, o).Dial(t.Context(), transport.Addr(strings.TrimSpace(addr)))
		require.NoError(t, err)
		c, in := conn.(*rdma.Conn), &collector{}
		poll := func(done func() bool) error {
			for end := time.Now().Add(20 * time.Second); !done(); {
				if _, err := c.Poll(in); err != nil {
					return err
				}
				if time.Now().After(end) {
					return errors.New("nothing came for 20 s")
				}
			}
			return nil
		}
		into := make([]byte, 900_000)
		for i := range 20 {
			require.NoError(t, poll(func() bool { return in.got == i+1 }))
			clear(into)
			require.NoError(t, c.Pull(transport.Ticket(in.body), into, 1))
			require.NoError(t, poll(func() bool { return len(in.ends) == i+1 }))
			require.NoError(t, in.ends[i])
			require.Equal(t, bytes.Repeat([]byte("libfabric"), 100_000), into)
			time.Sleep(time.Millisecond) // the other sleeps by now
			require.NoError(t, c.Send(transport.Message{Header: make([]byte, transport.HeaderLen)}))
		}
		require.NoError(t, poll(func() bool { return in.got == 21 }))
		require.NoError(t, cmd.Process.Kill())
		require.ErrorIs(t, poll(func() bool { return false }), transport.ErrBroken)
	})
}

// Libraries that libfabric loads set handlers for the signals that end a program,
// and for faults.
func TestSignalsStillReachTheProgram(t *testing.T) {
	listen(t, libfabric.Options{Provider: "shm"})
	got := make(chan os.Signal, 1)
	signal.Notify(got, unix.SIGTERM)
	defer signal.Stop(got)
	require.NoError(t, unix.Kill(os.Getpid(), unix.SIGTERM))
	select {
	case <-got:
	case <-time.After(20 * time.Second):
		t.Fatal("SIGTERM did not arrive")
	}
	require.Panics(t, func() { var p *int; *p = 1 }, "a nil pointer")
}
