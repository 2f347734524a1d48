package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/gate"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/witness"
)

// The buddies of an agent are the agent that keeps copies of its host's snapshots, and
// those for which it keeps some. Copies go from agent to agent over connections of their
// own, so that they delay nothing else that agents say to each other.
type buddies struct {
	identity *identity.Identity
	tell     func(control.FromAgent) // the job's first agent
	listener *gate.Gate
	ctx      context.Context
	stop     context.CancelFunc
	wg       sync.WaitGroup
	wake     chan struct{} // one element: there may be something to carry

	strangers atomic.Uint64
	shaking   handshakes

	mu      sync.Mutex // guards what follows
	dir     string     // of the job, on this host; empty before there is one
	closed  bool
	doors   map[string]func(c *tls.Conn, from identity.Name) // by protocol: where a job outlives its head
	page    *witness.Page                                    // nil before dir is known
	heard   map[life]*hearing
	ends    map[int]end // by rank: of its lives that choose no more
	chosen  target
	gaveUp  uint64 // turn in which the buddy could not be told of choices
	shelves map[life]*shelf
	forgot  map[int]uint32 // by rank: lives before this epoch have no files here
	guests  map[net.Conn]int
	from    map[netip.Addr]bool // agents of the job have come from there
	to      control.Buddy
	turn    uint64                // how often to has changed
	saved   map[int]control.Saved // the last of each rank
	due     map[int]bool          // those of them that to may not have
	hauls   map[*haul]bool
	out     *haul    // that to the buddy; nil: there is none now
	telling net.Conn // over which chosen is told of choices; nil: there is none now
}

// newBuddies begins to listen. tell may be called by any goroutine.
func newBuddies(own *identity.Identity, tell func(control.FromAgent)) (*buddies, error) {
	b := &buddies{
		identity: own, tell: tell, wake: make(chan struct{}, 1), shelves: map[life]*shelf{}, forgot: map[int]uint32{},
		heard: map[life]*hearing{}, ends: map[int]end{}, guests: map[net.Conn]int{}, from: map[netip.Addr]bool{}, saved: map[int]control.Saved{}, due: map[int]bool{}, hauls: map[*haul]bool{},
	}
	var err error
	b.listener, err = gate.Listen(context.Background(), ":0", gate.Options{First: gate.TLS, Waiting: shakes, Patience: shakeTime,
		Refused: b.refused})
	if err != nil {
		return nil, fmt.Errorf("listen for copies from other hosts: %w", err)
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	b.wg.Go(b.accept)
	b.wg.Go(b.carry)
	return b, nil
}

// port is where copies are taken.
func (b *buddies) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

// home is told where this host's files of the job are, before processes are there.
func (b *buddies) home(dir string) error {
	b.mu.Lock()
	known := b.dir == dir
	b.mu.Unlock()
	if known {
		return nil
	}
	page, err := witness.Create(dir)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dir, b.page = dir, page
	b.wg.Go(func() { b.testify(page) })
	return nil
}

// refused is told of a connection that came to nothing. One that broke, from a host whose agent
// has been here, is that agent's: a cut may end them at any word.
func (b *buddies) refused(from netip.AddrPort, err error) {
	b.mu.Lock()
	own := b.from[from.Addr().Unmap()]
	b.mu.Unlock()
	broken := func(because error) bool { return errors.Is(err, because) }
	if own && slices.ContainsFunc([]error{gate.ErrHungUp, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, broken) {
		return
	}
	if b.strangers.Add(1) > refusalsTold {
		return
	}
	b.tell(control.FromAgent{Refused: &control.Refused{Reason: fmt.Sprintf("%v, where copies are taken: %v", from, err)}})
}

// accept takes copies from other agents until close.
func (b *buddies) accept() {
	for {
		c, err := b.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file descriptors; they may come back
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if !b.admit(c, -1) {
			c.Close()
			return
		}
		b.shaking.begin(c, shakes+ownMost)
		b.wg.Go(func() {
			defer b.dismiss(c)
			conn, err := b.greet(c)
			if !b.shaking.ended(c) && err == nil {
				err = errCrowded
			}
			if err != nil {
				b.refused(addrOf(c), err)
				return
			}
			b.listener.Member(c.RemoteAddr())
			b.mu.Lock()
			b.from[addrOf(c).Addr().Unmap()] = true
			b.mu.Unlock()
			b.serve(conn)
		})
	}
}

// serve is a connection of somebody who is of the job. Its end is for who made it to see.
func (b *buddies) serve(conn *tls.Conn) {
	protocol := conn.ConnectionState().NegotiatedProtocol
	if protocol == "" {
		b.keep(conn)
		return
	}
	b.mu.Lock()
	door := b.doors[protocol]
	b.mu.Unlock()
	if name, err := b.identity.Verify(conn.ConnectionState().PeerCertificates[0]); err == nil && door != nil {
		door(conn, name)
	}
}

// addrOf is the address at the other end of c, which is TCP.
func addrOf(c net.Conn) netip.AddrPort {
	a, _ := c.RemoteAddr().(*net.TCPAddr)
	return a.AddrPort()
}

// open has connections of a protocol served by f, in a goroutine each, until it returns
// or close.
func (b *buddies) open(protocol string, f func(c *tls.Conn, from identity.Name)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.doors == nil {
		b.doors = map[string]func(*tls.Conn, identity.Name){}
	}
	b.doors[protocol] = f
}

// greet makes sure that another agent of the job is at the other end of c, or, for that
// protocol, who shows the job to its user.
func (b *buddies) greet(c net.Conn) (*tls.Conn, error) {
	persist(c)
	c.SetDeadline(time.Now().Add(shakeTime))
	config := b.identity.TLS()
	config.NextProtos = []string{control.ProtocolHead, control.ProtocolRaft, control.ProtocolFront, control.ProtocolAlive}
	conn := tls.Server(c, config)
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	name, err := b.identity.Verify(conn.ConnectionState().PeerCertificates[0])
	front := conn.ConnectionState().NegotiatedProtocol == control.ProtocolFront
	if err == nil && (front != (name.Role == identity.Front) || !front && name.Role != identity.Agent) {
		err = fmt.Errorf("%v is no agent", name)
	}
	c.SetDeadline(time.Time{})
	index := name.Index
	if front {
		index = -1
	}
	if err == nil && !b.admit(c, index) {
		err = net.ErrClosed
	}
	if err == nil { // it may have been fenced since
		_, err = b.identity.Verify(conn.ConnectionState().PeerCertificates[0])
	}
	return conn, err
}

// admit keeps c, of that agent, for fence and close; false after close.
func (b *buddies) admit(c net.Conn, agent int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.guests[c] = agent
	}
	return !b.closed
}

func (b *buddies) dismiss(c net.Conn) {
	c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.guests, c)
}

// fence refuses an agent whose host was lost from now on.
func (b *buddies) fence(agent int) {
	name := b.identity.Name()
	name.Index, name.Incarnation = agent, 2 // no agent has a second life
	b.identity.Fence(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	for c, of := range b.guests {
		if of == agent {
			c.Close()
			delete(b.guests, c) // what it has said and was not heard yet is not
		}
	}
}

// do does what the first agent says about copies.
func (b *buddies) do(m control.ToAgent) {
	switch {
	case m.Buddy != nil:
		b.meet(*m.Buddy)
	case m.Copy != nil:
		b.copy(*m.Copy)
	case m.Fence != nil:
		b.fence(m.Fence.Agent)
	case m.Close != nil:
		b.closeBook(*m.Close)
	}
}

// meet is told where copies go from now on.
func (b *buddies) meet(to control.Buddy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	same := func(a control.Buddy) bool { return a.Agent == to.Agent && slices.Equal(a.Addrs, to.Addrs) }
	if b.turn > 0 && same(b.to) && same(b.chosen.to) && b.gaveUp != b.turn {
		return // another head says it again
	}
	b.to = to
	b.turn++
	b.chosen = target{to, b.turn}
	if b.page != nil {
		b.page.Wake()
	}
	for r := range b.saved {
		b.due[r] = true
	}
	if b.out != nil {
		b.out.conn.Close()
	}
	if b.telling != nil {
		b.telling.Close() // whoever is slow to answer may be why there is another
	}
	b.rouse()
}

// keepOf is told of a snapshot on this host.
func (b *buddies) keepOf(s control.Saved) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saved[s.Rank] = s
	b.due[s.Rank] = true
	b.rouse()
}

// copy sends one to another agent than the usual. Neither waits for the other: that agent may
// be one that cannot be reached just now.
func (b *buddies) copy(x control.Copy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
	case x.File == "":
		b.wg.Go(func() { b.bring(x) })
	default:
		b.wg.Go(func() {
			c := carrier{b: b}
			defer c.end()
			c.carry(errand{life{x.Rank, x.Epoch}, x.File, x.To, 0, true})
		})
	}
}

func (b *buddies) rouse() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// close ends all. It waits.
func (b *buddies) close() {
	b.mu.Lock()
	b.closed = true
	for c := range b.guests {
		c.Close()
	}
	for h := range b.hauls {
		h.conn.Close()
	}
	if b.page != nil {
		b.page.Close()
	}
	b.mu.Unlock()
	b.stop()
	b.listener.Close()
	b.wg.Wait()
	for _, s := range b.shelves {
		s.close()
	}
	clear(b.shelves)
	for _, h := range b.heard {
		h.d.Close()
	}
	clear(b.heard)
}

// An errand is one snapshot to carry.
type errand struct {
	life
	file  string
	to    control.Buddy
	turn  uint64
	extra bool
}

// next waits for one; false: there will be none.
func (b *buddies) next() (e errand, ok bool) {
	for {
		if e, ok = b.pick(); ok {
			return e, true
		}
		select {
		case <-b.wake:
		case <-b.ctx.Done():
			return e, false
		}
	}
}

func (b *buddies) pick() (errand, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return errand{}, false
	}
	if len(b.to.Addrs) > 0 {
		for r := range b.due {
			delete(b.due, r)
			s := b.saved[r]
			return errand{life{r, s.Epoch}, s.File, b.to, b.turn, false}, true
		}
	}
	return errand{}, false
}

// How long is tried to send a copy, and how long to reach the agent that takes it: many
// times what a busy host needs, and short of what a rank's log of messages lasts.
const (
	carryTime = 5 * time.Second
	meetTime  = 2 * time.Second
)

// carry sends copies until close, one at a time.
func (b *buddies) carry() {
	c := carrier{b: b, sources: map[int]*source{}}
	defer c.end()
	for {
		e, ok := b.next()
		if !ok {
			return
		}
		c.carry(e)
	}
}

// carry delivers e, or tells that it cannot be.
func (c *carrier) carry(e errand) {
	for since := time.Now(); ; {
		err := c.deliver(e)
		if err == nil || c.b.stale(e) {
			return
		}
		c.hangUp()
		if time.Since(since) > carryTime {
			c.b.giveUp(e, err)
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-c.b.ctx.Done():
			return
		}
	}
}

// stale is true if e is of no use any more.
func (b *buddies) stale(e errand) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.closed || !e.extra && e.turn != b.turn
}

// giveUp has the first agent look for somebody else.
func (b *buddies) giveUp(e errand, err error) {
	b.mu.Lock()
	if !e.extra {
		b.due[e.rank] = true
		b.to = control.Buddy{}
	}
	b.mu.Unlock()
	b.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: e.rank, Agent: e.to.Agent, Reason: err.Error()}})
}

// A carrier is what the goroutine of carry has.
type carrier struct {
	b       *buddies
	line    *parcels // nil: none
	haul    *haul    // its path
	sources map[int]*source
}

// A source is a file of snapshots, and what the buddy has of it.
type source struct {
	life
	file string
	area *checkpoint.Area
	turn uint64
	base *checkpoint.Sums
}

func (c *carrier) end() {
	c.hangUp()
	for _, s := range c.sources {
		s.area.Close()
	}
}

func (c *carrier) hangUp() {
	if c.line == nil {
		return
	}
	c.b.mu.Lock()
	delete(c.b.hauls, c.haul)
	if c.b.out == c.haul {
		c.b.out = nil
	}
	c.b.mu.Unlock()
	c.line.conn.Close()
	c.line = nil
}

// deliver sends the latest snapshot of e's life.
func (c *carrier) deliver(e errand) error {
	if e.extra {
		area, err := checkpoint.Open(e.file)
		if err != nil {
			return fmt.Errorf("copy rank %d: %w", e.rank, err)
		}
		defer area.Close()
		return c.send(e, &source{life: e.life, file: e.file, area: area})
	}
	s := c.sources[e.rank]
	if s == nil || s.file != e.file {
		area, err := checkpoint.Open(e.file)
		if errors.Is(err, os.ErrNotExist) {
			return nil // the rank has saved elsewhere since
		}
		if err != nil {
			return fmt.Errorf("copy rank %d: %w", e.rank, err)
		}
		if s != nil {
			s.area.Close()
		}
		s = &source{life: e.life, file: e.file, area: area}
		c.sources[e.rank] = s
	}
	if s.turn != e.turn {
		s.base, s.turn = nil, e.turn
	}
	return c.send(e, s)
}

// send sends what the other end has not of the latest snapshot of s.
func (c *carrier) send(e errand, s *source) error {
	if err := c.call(e); err != nil {
		return err
	}
	for {
		d, err := s.area.Delta(s.base, pieceLen)
		if errors.Is(err, checkpoint.ErrGone) { // there is a later one
			continue
		}
		if err != nil {
			return fmt.Errorf("copy rank %d: %w", s.rank, err)
		}
		if s.base != nil && s.base.Number == d.Number {
			return nil
		}
		err = c.pass(s, d)
		if errors.Is(err, checkpoint.ErrGone) || errors.Is(err, errAgain) && s.base != nil {
			if errors.Is(err, errAgain) {
				s.base = nil
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("copy rank %d to agent %d: %w", s.rank, e.to.Agent, err)
		}
		if s.base != nil && !e.extra {
			c.b.forgetBefore(s.life)
		}
		s.base = d.Sums
		return nil
	}
}

var errAgain = errors.New("it has not what the rest was to be added to")

// pass sends d and waits until it is kept.
func (c *carrier) pass(s *source, d *checkpoint.Delta) error {
	defer c.b.watch(c.haul)()
	begin := beginning{Rank: s.rank, Epoch: s.epoch, Number: d.Number, Base: d.Base, Lengths: d.Lengths}
	if err := c.line.send(parcel{Begin: &begin}, nil); err != nil {
		return err
	}
	for chunk, err := range d.Chunks() {
		if err == nil {
			err = c.line.send(parcel{Put: &piece{Part: chunk.Part, Off: chunk.Off, Bytes: len(chunk.Data)}}, chunk.Data)
		}
		if err != nil {
			return err
		}
	}
	if err := c.b.awaitWitness(); err != nil {
		return err
	}
	sum := d.Sums.Sum()
	if err := c.line.send(parcel{Commit: sum[:]}, nil); err != nil {
		return err
	}
	if err := c.line.out.Flush(); err != nil {
		return err
	}
	c.line.conn.SetReadDeadline(time.Now().Add(parcelTime))
	answer, err := c.line.receive()
	switch {
	case err != nil:
		return err
	case answer.Kept == nil:
		return errors.New("it did not say what has become of the copy")
	case answer.Kept.Again:
		return fmt.Errorf("%w: %s", errAgain, answer.Kept.Error)
	case answer.Kept.Error != "":
		return errors.New(answer.Kept.Error)
	}
	return nil
}

// call connects to who takes e, unless that is so.
func (c *carrier) call(e errand) error {
	if c.line != nil && c.haul.agent == e.to.Agent {
		return nil
	}
	c.hangUp()
	var errs []error
	for _, addr := range e.to.Addrs {
		conn, err := c.b.dial(addr, e.to.Agent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.b.mu.Lock()
		if c.b.closed || !e.extra && e.turn != c.b.turn {
			c.b.mu.Unlock()
			conn.Close()
			return net.ErrClosed
		}
		host, _, _ := net.SplitHostPort(addr)
		c.haul = &haul{conn: conn.NetConn(), agent: e.to.Agent, addr: host}
		if c.b.hauls[c.haul] = true; !e.extra {
			c.b.out = c.haul
		}
		c.b.mu.Unlock()
		c.line = newParcels(conn)
		return nil
	}
	return fmt.Errorf("agent %d cannot be reached: %w", e.to.Agent, errors.Join(errs...))
}

// dial connects to the agent of that index.
func (b *buddies) dial(addr string, agent int) (*tls.Conn, error) {
	ctx, stop := context.WithTimeout(b.ctx, meetTime)
	defer stop()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	persist(raw)
	conn := tls.Client(raw, b.identity.TLS())
	if err = conn.HandshakeContext(ctx); err == nil {
		var name identity.Name
		name, err = b.identity.Verify(conn.ConnectionState().PeerCertificates[0])
		if err == nil && (name.Role != identity.Agent || name.Index != agent) {
			err = fmt.Errorf("%v is not agent %d", name, agent)
		}
	}
	if err != nil {
		raw.Close()
		return nil, fmt.Errorf("%s: %w", addr, err)
	}
	return conn, nil
}
