package engine_test

import (
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
	"github.com/mpiv/mpiv/transport/tcp"
)

var (
	soakMessages = flag.Int("soak", 5_000, "messages of TestEveryMessageOnceWhileConnectionsAreCut")
	soakCut      = flag.Duration("soak-cut", 10*time.Millisecond, "longest time between two cuts")
	soakNetwork  = flag.String("soak-network", "mem", "mem or tcp")
)

// TestEveryMessageOnceWhileConnectionsAreCut sends messages of random size,
// tag, mode and order among four ranks in three processes, while connections
// are cut at random. Each message carries its number; each pair's must arrive
// once and in order, and the log must keep its bound.
//
// With several networks the cables of all but the last are pulled and plugged in at
// random too, so that messages change paths while they are under way.
func TestEveryMessageOnceWhileConnectionsAreCut(t *testing.T) {
	for _, networks := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d networks", networks), func(t *testing.T) { soak(t, networks) })
	}
}

func soak(t *testing.T, networks int) {
	const logBytes, ranks = 1 << 20, 4
	cutter := new(cutter)
	w := newWorldAt(t, engine.Config{Keep: true, LogBytes: logBytes, Unexpected: 256 << 10}, cutter.listen(t, networks), 1, 2, 1)
	perPair := *soakMessages / (ranks * ranks)
	ctx, stop := context.WithCancel(t.Context())
	var chaos sync.WaitGroup
	cuts := 0
	chaos.Go(func() {
		rng := rand.New(rand.NewPCG(1, 1))
		for {
			select {
			case <-time.After(time.Duration(rng.Int64N(int64(*soakCut)))):
				if cutter.cut(rng) {
					cuts++
				}
				cutter.pull(rng)
				for _, e := range w.engines {
					if held := e.Logged(); held > 2*logBytes {
						t.Errorf("the logs of a process hold %d bytes, their bound is %d", held, 2*logBytes)
					}
				}
			case <-ctx.Done():
				return
			}
		}
	})
	w.run(t, func(b *engine.Box) error {
		var done sync.WaitGroup
		errs := make(chan error, 2)
		done.Go(func() { errs <- sendAll(t.Context(), b, ranks, perPair) })
		done.Go(func() { errs <- recvAll(t.Context(), b, ranks, perPair) })
		done.Wait()
		for range 2 {
			if err := <-errs; err != nil {
				return err
			}
		}
		return nil
	})
	stop()
	chaos.Wait()
	for _, e := range w.engines {
		require.NoError(t, e.Drain(t.Context()))
	}
	require.Positive(t, cuts, "nothing was cut")
	switches := 0
	for _, f := range w.fabrics {
		for _, l := range f.Links() {
			switches += l.Switches
		}
	}
	t.Logf("%d messages, %d cuts, %d changes of path", perPair*ranks*ranks, cuts, switches)
	if networks > 1 {
		require.Positive(t, switches, "no path was left")
	}
}

// A cutter keeps the connections that endpoints make, to cut them, and the
// networks, to pull their cables.
type cutter struct {
	mu       sync.Mutex // guards conns
	conns    []transport.Conn
	networks []*mem.Network
}

// listen makes the endpoints of a world on that many networks of the kind that the
// flag names.
func (c *cutter) listen(t *testing.T, networks int) func(process int) []fabric.Network {
	for range networks {
		c.networks = append(c.networks, mem.NewNetwork(mem.Options{Other: &mem.Options{MaxBody: 256 << 10, Lends: true}}))
	}
	return func(process int) (all []fabric.Network) {
		for i, network := range c.networks {
			var e transport.Endpoint
			var err error
			if *soakNetwork == "tcp" {
				e, err = tcp.Listen(t.Context(), tcp.Options{})
			} else {
				e, err = network.Listen(fmt.Sprint(process))
			}
			require.NoError(t, err)
			all = append(all, fabric.Network{Class: topology.SAN + topology.Class(i), Endpoint: &cuttable{e, c}})
		}
		return all
	}
}

// pull pulls or plugs in the cable of a network, but of the last one.
func (c *cutter) pull(rng *rand.Rand) {
	if len(c.networks) == 1 {
		return
	}
	if n := c.networks[rng.IntN(len(c.networks)-1)]; rng.IntN(2) == 0 {
		n.Pull()
	} else {
		n.Plug()
	}
}

// cut closes a connection at one end. False if there is none.
func (c *cutter) cut(rng *rand.Rand) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.conns) == 0 {
		return false
	}
	i := rng.IntN(len(c.conns))
	c.conns[i].Close()
	c.conns = slices.Delete(c.conns, i, i+1)
	return true
}

type cuttable struct {
	transport.Endpoint
	cutter *cutter
}

func (e *cuttable) Dial(ctx context.Context, a transport.Addr) (transport.Conn, error) {
	conn, err := e.Endpoint.Dial(ctx, a)
	if err == nil {
		e.cutter.mu.Lock()
		e.cutter.conns = append(e.cutter.conns, conn)
		e.cutter.mu.Unlock()
	}
	return conn, err
}

// soakTags is how many tags are used; the order of a pair's messages is checked
// for each.
const soakTags = 3

func soakMessage(rng *rand.Rand, from, to topology.Rank, i int) []byte {
	size := 16 + rng.IntN(64)
	switch rng.IntN(20) {
	case 0:
		size = rng.IntN(300_000)
	case 1, 2, 3:
		size = 16 + rng.IntN(10_000)
	}
	size = max(size, 16)
	b := make([]byte, size)
	binary.LittleEndian.PutUint64(b, uint64(i))
	binary.LittleEndian.PutUint32(b[8:], uint32(from))
	binary.LittleEndian.PutUint32(b[12:], uint32(to))
	for k := 16; k < size; k++ {
		b[k] = byte(k*i + int(from))
	}
	return b
}

func checkSoak(b []byte, from, to topology.Rank) (int, error) {
	i := int(binary.LittleEndian.Uint64(b))
	if binary.LittleEndian.Uint32(b[8:]) != uint32(from) || binary.LittleEndian.Uint32(b[12:]) != uint32(to) {
		return i, fmt.Errorf("message %d from rank %d is not for rank %d", i, from, to)
	}
	for k := 16; k < len(b); k++ {
		if b[k] != byte(k*i+int(from)) {
			return i, fmt.Errorf("message %d from rank %d: byte %d of %d is wrong", i, from, k, len(b))
		}
	}
	return i, nil
}

func sendAll(ctx context.Context, b *engine.Box, ranks, perPair int) error {
	rng := rand.New(rand.NewPCG(uint64(b.Rank()), 7))
	next := make([]int, ranks)
	var open []engine.Request
	for left := ranks * perPair; left > 0; {
		to := topology.Rank(rng.IntN(ranks))
		i := next[to]
		if i == perPair {
			continue
		}
		next[to]++
		left--
		mode := engine.Standard
		if rng.IntN(10) == 0 {
			mode = engine.Synchronous
		}
		m := engine.Match{Peer: to, Tag: int32(i % soakTags)}
		body := soakMessage(rng, b.Rank(), to, i)
		open = append(open, b.Isend(m, body, mode))
		if len(open) > rng.IntN(50) {
			for _, r := range open {
				if _, err := r.Wait(ctx, send); err != nil {
					return err
				}
			}
			open = open[:0]
		}
	}
	for _, r := range open {
		if _, err := r.Wait(ctx, send); err != nil {
			return err
		}
	}
	return nil
}

func recvAll(ctx context.Context, b *engine.Box, ranks, perPair int) error {
	rng := rand.New(rand.NewPCG(uint64(b.Rank()), 8))
	last := make([][soakTags]int, ranks)
	for i := range last {
		for k := range soakTags {
			last[i][k] = k - soakTags
		}
	}
	buf := make([]byte, 300_016)
	for range ranks * perPair {
		m := engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}
		if rng.IntN(4) == 0 {
			if s, ok := b.Iprobe(m); ok {
				m.Peer, m.Tag = s.Source, s.Tag
			}
		}
		buf[0] = 0
		s, err := b.Recv(ctx, recv, m, buf)
		if err != nil {
			return err
		}
		i, err := checkSoak(buf[:s.Bytes], s.Source, b.Rank())
		if err != nil {
			return err
		}
		if want := last[s.Source][s.Tag] + soakTags; i != want || int(s.Tag) != i%soakTags {
			return fmt.Errorf("message %d with tag %d from rank %d came after %d", i, s.Tag, s.Source, want-soakTags)
		}
		last[s.Source][s.Tag] = i
	}
	return nil
}
