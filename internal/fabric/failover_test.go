package fabric_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/internal/race"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A cable can be pulled and plugged in.
type cable interface {
	Pull()
	Plug()
}

// A trip pulls a cable once so many bytes of bodies in parts have been sent over it.
type trip struct {
	cable
	left atomic.Int64
	at   atomic.Int64 // when, in nanoseconds since 1970; 0: not yet
}

const tripAfter = 8 << 20

func newTrip(c cable) *trip { return &trip{cable: c} }

// set has the cable pulled after so many bytes from now on.
func (x *trip) set() { x.left.Store(tripAfter) }

func (x *trip) over(ep transport.Endpoint) transport.Endpoint {
	return &wrapped{ep, func(c transport.Conn) transport.Conn { return &tripped{c, x} }}
}

// on has the trip over the SAN of a site, and all networks seen through wrap.
func (x *trip) on(s site, wrap func(transport.Endpoint) transport.Endpoint) site {
	s.networks[0].Endpoint = x.over(s.networks[0].Endpoint)
	for i := range s.networks {
		s.networks[i].Endpoint = wrap(s.networks[i].Endpoint)
	}
	return s
}

type tripped struct {
	transport.Conn
	trip *trip
}

func (c *tripped) Path() transport.PathInfo { return c.Conn.(transport.Measured).Path() }

func (c *tripped) Certificate() *x509.Certificate {
	a, ok := c.Conn.(transport.Authenticated)
	if !ok {
		return nil
	}
	return a.Certificate()
}

func (c *tripped) Send(m transport.Message) error {
	err := c.Conn.Send(m)
	if n := int64(len(m.Body)); err == nil && m.Bulk {
		if left := c.trip.left.Add(-n); left <= 0 && left+n > 0 {
			c.trip.Pull()
			c.trip.at.Store(time.Now().UnixNano())
		}
	}
	return err
}

// TestBigMessageOverACutPath sends 64 MB while the SAN is cut without a sign and
// healed after one second or three, beside a stream of small messages: everything arrives
// once and in order, over the LAN meanwhile, and the pair goes back. It tells the
// longest pause between two small messages.
func TestBigMessageOverACutPath(t *testing.T) {
	t.Parallel()
	networks := map[string]func(t *testing.T) (at func(process int) site, san *trip){
		"mem": func(t *testing.T) (func(int) site, *trip) {
			nets := newMems(topology.SAN, topology.LAN)
			san := newTrip(nets[topology.SAN])
			return func(p int) site { return san.on(nets.site(t, p, plain), plain) }, san
		},
		"mem, unmeasured": func(t *testing.T) (func(int) site, *trip) {
			nets := newMems(topology.SAN, topology.LAN)
			san := newTrip(nets[topology.SAN])
			return func(p int) site { return san.on(nets.site(t, p, plain), unmeasured) }, san
		},
		"tcp through proxies": func(t *testing.T) (func(int) site, *trip) {
			relay := newRelay(t)
			san := newTrip(relay)
			return func(int) (s site) {
				s.networks = append(s.networks, fabric.Network{Class: topology.SAN, Endpoint: unmeasured(san.over(relay.listen(t)))})
				lan, err := tcp.Listen(t.Context(), tcp.Options{})
				require.NoError(t, err)
				s.networks = append(s.networks, fabric.Network{Class: topology.LAN, Endpoint: lan})
				return s
			}, san
		},
	}
	for name, connect := range networks {
		for _, from := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s, from process %d", name, from), func(t *testing.T) {
				t.Parallel() // they wait for most of their time
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

func bigOverCut(t *testing.T, w *world, san *trip, from int, healed time.Duration) {
	to := 1 - from
	sender, receiver := w.box(from), w.box(to)
	size := 64 << 20
	if race.Enabled {
		size = 3 * tripAfter // which takes as long there
	}
	big := make([]byte, size)
	for i := 0; i < len(big); i += 8 {
		binary.LittleEndian.PutUint64(big[i:], uint64(i)*0x9E3779B97F4A7C15)
	}
	into := make([]byte, len(big)+1)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	run := func(f func() error) {
		all.Go(func() {
			if err := f(); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		})
	}
	const pause = time.Millisecond
	stop := make(chan struct{})
	count, last := 0, 0
	run(func() error { // numbers, until -1
		small := make([]byte, 8)
		for ; ctx.Err() == nil; count++ {
			select {
			case <-stop:
				binary.LittleEndian.PutUint64(small, 1<<63)
				return sender.Send(ctx, send, engine.Match{Peer: topology.Rank(to), Tag: 3}, small, engine.Standard)
			default:
			}
			binary.LittleEndian.PutUint64(small, uint64(count))
			if err := sender.Send(ctx, send, engine.Match{Peer: topology.Rank(to), Tag: 3}, small, engine.Standard); err != nil {
				return err
			}
			time.Sleep(pause)
		}
		return nil
	})
	longest, at, began := time.Duration(0), time.Duration(0), time.Now()
	run(func() error {
		small := make([]byte, 8)
		for heard := time.Now(); ; last++ {
			if _, err := receiver.Recv(ctx, recv, engine.Match{Peer: topology.Rank(from), Tag: 3}, small); err != nil {
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
	var got, sent engine.Request
	arrived := func() {
		s, err := got.Wait(t.Context(), recv)
		require.NoError(t, err)
		_, err = sent.Wait(t.Context(), send)
		require.NoError(t, err)
		require.Equal(t, len(big), s.Bytes)
		require.True(t, bytes.Equal(big, into[:len(big)]), "the bytes differ")
	}
	for { // on a busy machine the pair may leave the SAN by itself, and a message be over before the SAN is cut
		w.eventually(0, 1, topology.SAN)
		san.set()
		clear(into)
		got = receiver.Irecv(engine.Match{Peer: topology.Rank(from), Tag: 2}, into)
		sent = sender.Isend(engine.Match{Peer: topology.Rank(to), Tag: 2}, big, engine.Standard)
		for san.at.Load() == 0 && !got.Finished() {
			time.Sleep(100 * time.Microsecond)
		}
		if san.at.Load() != 0 {
			break
		}
		arrived()
	}
	cut := time.Unix(0, san.at.Load()).Sub(began)
	w.eventually(0, 1, topology.LAN)
	left := time.Since(began) - cut
	why := w.link(from, to).Why
	arrived()
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
	t.Logf("cut after %d MB of %d and %v; both ends on the LAN after %v (%s), back %v after the SAN was; %d small messages, longest pause %v, from %v on; the LAN takes %.0f MB/s",
		tripAfter>>20, len(big)>>20, cut, left, why, back, count, longest, at, w.link(from, to).Candidates[1].Rate/1e6)
}

// A process that has dialed this one before it was known where it is has another path, too, when
// that is known: what was begun over one that breaks goes on over it.
func TestAPairThatMeetsLateFailsOver(t *testing.T) {
	nets := newMems(topology.SAN, topology.LAN)
	w := newWorld(t, 2, func(p int) site {
		s := nets.site(t, p, plain)
		if p == 0 {
			s.unmet = []int{1}
		}
		return s
	})
	w.say(1, 0)
	time.Sleep(100 * time.Millisecond) // until it has taken note of that
	require.Equal(t, -1, w.link(0, 1).InUse, "it is not known where that is")
	w.fabrics[0].Meet(1, w.fabrics[1].Addrs())
	require.Eventually(t, func() bool { return w.link(0, 1).InUse >= 0 }, 20*time.Second, time.Millisecond)
	nets[topology.SAN].Pull()
	defer nets[topology.SAN].Plug()
	w.say(0, 1)
}
