package fabric_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A cable can be pulled and plugged in.
type cable interface {
	Pull()
	Plug()
}

// TestBigMessageOverACutPath sends 64 MB while the SAN is cut without a sign and
// healed after one second or three, beside a stream of small messages: everything arrives
// once and in order, over the LAN meanwhile, and the pair goes back. It tells the
// longest pause between two small messages.
func TestBigMessageOverACutPath(t *testing.T) {
	networks := map[string]func(t *testing.T) (at func(process int) site, san cable){
		"mem": func(t *testing.T) (func(int) site, cable) {
			nets := newMems(topology.SAN, topology.LAN)
			return func(p int) site { return nets.site(t, p, plain) }, nets[topology.SAN]
		},
		"mem, unmeasured": func(t *testing.T) (func(int) site, cable) {
			nets := newMems(topology.SAN, topology.LAN)
			return func(p int) site { return nets.site(t, p, unmeasured) }, nets[topology.SAN]
		},
		"tcp through proxies": func(t *testing.T) (func(int) site, cable) {
			relay := newRelay(t)
			return func(int) (s site) {
				s.networks = append(s.networks, fabric.Network{Class: topology.SAN, Endpoint: unmeasured(relay.listen(t))})
				lan, err := tcp.Listen(t.Context(), tcp.Options{})
				require.NoError(t, err)
				s.networks = append(s.networks, fabric.Network{Class: topology.LAN, Endpoint: lan})
				return s
			}, relay
		},
	}
	for name, connect := range networks {
		for _, from := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, from process %d", name, from), func(t *testing.T) {
				at, san := connect(t)
				w := newWorld(t, 2, at)
				w.say(0, 1)
				w.eventually(0, 1, topology.SAN)
				healed := 3 * time.Second
				if from == 1 {
					healed = time.Second
				}
				bigOverCut(t, w, san, from, healed)
			})
		}
	}
}

func bigOverCut(t *testing.T, w *world, san cable, from int, healed time.Duration) {
	to := 1 - from
	sender, receiver := w.box(from), w.box(to)
	big := make([]byte, 64<<20)
	for i := 0; i < len(big); i += 8 {
		binary.LittleEndian.PutUint64(big[i:], uint64(i)*0x9E3779B97F4A7C15)
	}
	into := make([]byte, len(big)+1)
	var all sync.WaitGroup
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil {
				t.Error(err)
			}
		})
	}
	before := w.link(to, from).Received.Bytes
	got := receiver.Irecv(engine.Match{Peer: topology.Rank(from), Tag: 2}, into)
	sent := sender.Isend(engine.Match{Peer: topology.Rank(to), Tag: 2}, big, engine.Standard)

	const pause = time.Millisecond
	stop := make(chan struct{})
	count, last := 0, 0
	run(func() error { // numbers, until -1
		small := make([]byte, 8)
		for ; ; count++ {
			select {
			case <-stop:
				binary.LittleEndian.PutUint64(small, 1<<63)
				return sender.Send(t.Context(), send, engine.Match{Peer: topology.Rank(to), Tag: 3}, small, engine.Standard)
			default:
			}
			binary.LittleEndian.PutUint64(small, uint64(count))
			if err := sender.Send(t.Context(), send, engine.Match{Peer: topology.Rank(to), Tag: 3}, small, engine.Standard); err != nil {
				return err
			}
			time.Sleep(pause)
		}
	})
	longest, at, began := time.Duration(0), time.Duration(0), time.Now()
	run(func() error {
		small := make([]byte, 8)
		for heard := time.Now(); ; last++ {
			if _, err := receiver.Recv(t.Context(), recv, engine.Match{Peer: topology.Rank(from), Tag: 3}, small); err != nil {
				return err
			}
			now := time.Now()
			if d := now.Sub(heard); d > longest {
				longest, at = d, heard.Sub(began)
			}
			heard = now
			if n := binary.LittleEndian.Uint64(small); n == 1<<63 {
				return nil
			} else if n != uint64(last) {
				return fmt.Errorf("small message %d came where %d was due", n, last)
			}
		}
	})
	for w.link(to, from).Received.Bytes-before < 8<<20 {
		time.Sleep(100 * time.Microsecond)
	}
	san.Pull()
	cut := time.Since(began)
	half := w.link(to, from).Received.Bytes - before
	require.Less(t, half, uint64(len(big)), "the cut came too late")
	w.eventually(0, 1, topology.LAN)
	left := time.Since(began) - cut
	why := w.link(from, to).Why
	s, err := got.Wait(t.Context(), recv)
	require.NoError(t, err)
	_, err = sent.Wait(t.Context(), send)
	require.NoError(t, err)
	require.Equal(t, len(big), s.Bytes)
	require.True(t, bytes.Equal(big, into[:len(big)]), "the bytes differ")
	require.Equal(t, int(topology.LAN), w.class(0, 1))

	time.Sleep(healed - (time.Since(began) - cut))
	san.Plug()
	plugged := time.Now()
	w.eventually(0, 1, topology.SAN)
	back := time.Since(plugged)
	w.say(0, 1)
	close(stop)
	all.Wait()
	require.Equal(t, count, last, "small messages")
	t.Logf("cut after %d of %d MB and %v; both ends on the LAN after %v (%s), back %v after the SAN was; %d small messages, longest pause %v, from %v on; the LAN takes %.0f MB/s",
		half>>20, len(big)>>20, cut, left, why, back, count, longest, at, w.link(from, to).Candidates[1].Rate/1e6)
}
