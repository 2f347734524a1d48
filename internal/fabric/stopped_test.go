//go:build linux

package fabric_test

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// thePeer is set, to where process 0 is, for a process that is process 1 of
// TestAStoppedProcessIsNoPathsFault.
const thePeer = "MPIV_TEST_PEER"

// TestAStoppedProcessIsNoPathsFault stops a process for two seconds: nothing is left
// for another path, as the process answers on none, and everything arrives when it
// goes on.
func TestAStoppedProcessIsNoPathsFault(t *testing.T) {
	if where := os.Getenv(thePeer); where != "" {
		echo(t, where)
		return
	}
	networks := sanAndLAN(t)
	f := fabric.New(2, fabric.Options{Networks: networks, Log: slog.New(slog.DiscardHandler)})
	mine, err := json.Marshal(f.Addrs())
	require.NoError(t, err)

	peer := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=60s")
	peer.Env = append(os.Environ(), thePeer+"="+string(mine))
	peer.Stderr = os.Stderr
	input, err := peer.StdinPipe()
	require.NoError(t, err)
	output, err := peer.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, peer.Start())
	line, err := bufio.NewReader(output).ReadBytes('\n')
	require.NoError(t, err)
	var theirs []fabric.Addr
	require.NoError(t, json.Unmarshal(line, &theirs))

	e := engine.New(engine.Config{Process: 0, Processes: [][]topology.Rank{{0}, {1}}, Keep: true, Connect: f.Connect})
	f.Start(e, [][]fabric.Addr{nil, theirs})
	defer func() {
		e.Close()
		f.Close()
		input.Close()
		require.NoError(t, peer.Wait())
	}()
	b := e.Box(0)
	ask := func(n int) {
		r := b.Irecv(engine.Match{Peer: 1, Tag: 1}, make([]byte, n))
		require.NoError(t, b.Send(t.Context(), send, engine.Match{Peer: 1, Tag: 1}, make([]byte, n), engine.Standard))
		_, err := r.Wait(t.Context(), recv)
		require.NoError(t, err)
	}
	ask(8)
	require.NoError(t, peer.Process.Signal(syscall.SIGSTOP))
	time.AfterFunc(2*time.Second, func() { peer.Process.Signal(syscall.SIGCONT) })
	longest := time.Duration(0)
	for began := time.Now(); time.Since(began) < 2500*time.Millisecond; {
		asked := time.Now()
		ask(8)
		longest = max(longest, time.Since(asked))
	}
	require.Greater(t, longest, time.Second, "it was not stopped")
	l := f.Links()[0]
	require.Zero(t, l.Switches, "%+v", l)
	require.Equal(t, topology.SAN, l.Candidates[l.InUse].Class)
	ask(1 << 20)
}

func sanAndLAN(t *testing.T) (all []fabric.Network) {
	for _, class := range []topology.Class{topology.SAN, topology.LAN} {
		ep, err := tcp.Listen(t.Context(), tcp.Options{})
		require.NoError(t, err)
		all = append(all, fabric.Network{Class: class, Endpoint: ep})
	}
	return all
}

// echo is process 1: it answers until its standard input ends.
func echo(t *testing.T, where string) {
	var theirs []fabric.Addr
	require.NoError(t, json.Unmarshal([]byte(where), &theirs))
	f := fabric.New(2, fabric.Options{Process: 1, Networks: sanAndLAN(t), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(f.Addrs()))
	e := engine.New(engine.Config{Process: 1, Processes: [][]topology.Rank{{0}, {1}}, Keep: true, Connect: f.Connect})
	f.Start(e, [][]fabric.Addr{theirs, nil})
	e.Go(func() {
		b, into := e.Box(1), make([]byte, 1<<20)
		for {
			s, err := b.Recv(t.Context(), recv, engine.Match{Peer: 0, Tag: 1}, into)
			if err != nil || b.Send(t.Context(), send, engine.Match{Peer: 0, Tag: 1}, into[:s.Bytes], engine.Standard) != nil {
				return
			}
		}
	})
	os.Stdin.Read(make([]byte, 1))
	e.Close()
	f.Close()
}
