// Package buddy keeps on another host what ranks go on from when theirs is lost.
//
// That is their snapshots, of which copies go to the agent of one other host, the buddy of
// this one, and what they have chosen since, which that agent is told. Who the buddy is says
// the job's first agent. It is told of each copy, since nobody else says what is covered.
//
// Both go over connections of their own from agent to agent, so that they delay neither each
// other nor what else agents say. [Keeper] has the port (keeper.go), to which guests come
// (guests.go). What is sent from here is in carrier.go (snapshots), testimony.go (choices) and
// bring.go (choices, to where their rank goes on), what is kept here for others in shelf.go
// and hearing.go.
package buddy

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/witness"
)

// A Keeper is what an agent has of this: it has its host's buddy keep what is saved and
// chosen here, and keeps the same for agents whose buddy it is. Any goroutine may call its
// methods.
type Keeper struct {
	identity *identity.Identity
	tell     func(control.FromAgent) // the job's first agent
	listener *gate.Gate
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	wake     chan struct{} // one element: there may be something to carry

	strangers atomic.Uint64
	shaking   door.Handshakes

	mu      sync.Mutex // guards what follows
	dir     string     // of the job, on this host; empty before there is one
	closed  bool
	others  map[string]func(c *tls.Conn, from identity.Name) // by protocol: who else is served at the port
	page    *witness.Page                                    // nil before dir is known
	heard   map[control.Life]*hearing
	ends    map[int]end // by rank: of its lives that choose no more
	chosen  target
	gaveUp  uint64 // turn in which the buddy could not be told of choices
	shelves map[control.Life]*shelf
	forgot  map[int]uint32 // by rank: lives before this epoch have no files here
	guests  map[net.Conn]int
	from    map[netip.Addr]bool // agents of the job have come from there
	to      control.Buddy
	turn    uint64                // how often to has changed
	saved   map[int]control.Saved // the last of each rank
	due     map[int]bool          // those of them that to may not have
	hauls   map[*haul]bool
	trips   map[trip]*journey
	turned  chan struct{} // closed when there is another buddy
	out     *haul         // that to the buddy; nil: there is none now
	telling net.Conn      // over which chosen is told of choices; nil: there is none now
}

// Listen makes the Keeper of the agent that has that identity, which takes copies at a port
// of all addresses from now on, but keeps none before it is told their [Keeper.Home]. Close
// frees it. The error is that of the port.
//
// tell passes on to the job's first agent what is new: Refused, Holds, Brought, Uncopied.
// Goroutines of the Keeper call it, several at a time. It may wait, but not for Close.
func Listen(own *identity.Identity, tell func(control.FromAgent)) (*Keeper, error) {
	k := &Keeper{
		identity: own, tell: tell, wake: make(chan struct{}, 1), shelves: map[control.Life]*shelf{}, forgot: map[int]uint32{},
		heard: map[control.Life]*hearing{}, ends: map[int]end{}, guests: map[net.Conn]int{}, from: map[netip.Addr]bool{}, saved: map[int]control.Saved{}, due: map[int]bool{}, hauls: map[*haul]bool{}, trips: map[trip]*journey{}, turned: make(chan struct{}),
	}
	var err error
	if k.listener, err = door.Listen(k.refused); err != nil {
		return nil, fmt.Errorf("listen for copies from other hosts: %w", err)
	}
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.wg.Go(k.accept)
	k.wg.Go(k.carry)
	return k, nil
}

// Port is where copies are taken, of all addresses of this host.
func (k *Keeper) Port() int { return k.listener.Addr().(*net.TCPAddr).Port }

// Home is told the directory of this host's files of the job, before processes are there. It
// makes the page there that they share with the agent ([witness.Create]), whose error it
// returns. To say the same directory again does nothing. One goroutine calls it at a time.
func (k *Keeper) Home(dir string) error {
	k.mu.Lock()
	known := k.dir == dir
	k.mu.Unlock()
	if known {
		return nil
	}
	page, err := witness.Create(dir)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dir, k.page = dir, page
	k.wg.Go(func() { k.testify(page) })
	return nil
}

// Do does what the job's first agent says: Buddy, Copy, Fence, Close. It does nothing of other
// messages, and does not wait: what comes of it is told.
func (k *Keeper) Do(m control.ToAgent) {
	switch {
	case m.Buddy != nil:
		k.meet(*m.Buddy)
	case m.Copy != nil:
		k.copy(*m.Copy)
	case m.Fence != nil:
		k.fence(m.Fence.Agent)
	case m.Close != nil:
		k.closeBook(*m.Close)
	}
}

// meet is told where copies go from now on.
func (k *Keeper) meet(to control.Buddy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	same := func(a control.Buddy) bool { return a.Agent == to.Agent && slices.Equal(a.Addrs, to.Addrs) }
	if k.turn > 0 && same(k.to) && same(k.chosen.to) && k.gaveUp != k.turn {
		return // another head says it again
	}
	k.to = to
	k.turn++
	close(k.turned)
	k.turned = make(chan struct{})
	k.chosen = target{to, k.turn}
	if k.page != nil {
		k.page.Wake()
	}
	for r := range k.saved {
		k.due[r] = true
	}
	if k.out != nil {
		k.out.conn.Close()
	}
	if k.telling != nil {
		k.telling.Close() // whoever is slow to answer may be why there is another
	}
	k.rouse()
}

// Saved is told of the last snapshot of a rank on this host, of which the buddy is to have a
// copy. Of a rank whose copies travel more slowly than it saves some are left out.
func (k *Keeper) Saved(s control.Saved) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saved[s.Rank] = s
	k.due[s.Rank] = true
	k.rouse()
}

// copy sends one to another agent than the usual. Neither waits for the other: that agent may
// be one that cannot be reached just now.
func (k *Keeper) copy(x control.Copy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.closed:
	case x.File == "":
		k.wg.Go(func() { k.bring(x) })
	default:
		k.wg.Go(func() {
			c := carrier{k: k}
			defer c.end()
			c.carry(errand{control.Life{Rank: x.Rank, Epoch: x.Epoch}, x.File, x.To, 0, true})
		})
	}
}

func (k *Keeper) rouse() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Close ends all, and waits for it. The files stay. Twice is harmless.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	for c := range k.guests {
		c.Close()
	}
	for h := range k.hauls {
		h.conn.Close()
	}
	if k.page != nil {
		k.page.Close()
	}
	k.mu.Unlock()
	k.stop()
	k.listener.Close()
	k.wg.Wait()
	for _, s := range k.shelves {
		s.close()
	}
	clear(k.shelves)
	for _, h := range k.heard {
		h.d.Close()
	}
	clear(k.heard)
}
