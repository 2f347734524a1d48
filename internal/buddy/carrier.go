package buddy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// An errand is one snapshot to carry.
type errand struct {
	control.Life
	file  string
	to    control.Buddy
	turn  uint64
	extra bool
}

// next waits for one; false: there will be none.
func (k *Keeper) next() (e errand, ok bool) {
	for {
		if e, ok = k.pick(); ok {
			return e, true
		}
		select {
		case <-k.wake:
		case <-k.ctx.Done():
			return e, false
		}
	}
}

func (k *Keeper) pick() (errand, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return errand{}, false
	}
	if len(k.to.Addrs) > 0 {
		for r := range k.due {
			delete(k.due, r)
			s := k.saved[r]
			return errand{control.Life{Rank: r, Epoch: s.Epoch}, s.File, k.to, k.turn, false}, true
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

// carry sends copies until Close, one at a time.
func (k *Keeper) carry() {
	c := carrier{k: k, sources: map[int]*source{}}
	defer c.end()
	for {
		e, ok := k.next()
		if !ok {
			return
		}
		c.carry(e)
	}
}

// A trip is of one rank's snapshots to one agent. Two at a time would undo each other: what
// comes there is put together in one place.
type trip struct{ rank, agent int }

// embark waits until nobody else is on e's trip, which who gets it has to end; false: e is of no use any
// more, and who is on the trip may be long in finding out. brought is what who was waited for has brought.
func (k *Keeper) embark(t trip, e errand) (brought version, ok bool) {
	for !k.stale(e) {
		k.mu.Lock()
		other, turned := k.trips[t], k.turned
		if other == nil {
			k.trips[t] = &journey{ended: make(chan struct{})}
			k.mu.Unlock()
			return brought, true
		}
		k.mu.Unlock()
		select {
		case <-other.ended:
			brought = other.brought
		case <-turned:
		case <-k.ctx.Done():
		}
	}
	return brought, false
}

func (k *Keeper) disembark(t trip, brought version) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.trips[t].brought = brought
	close(k.trips[t].ended)
	delete(k.trips, t)
}

// A journey is a trip that somebody is on.
type journey struct {
	ended   chan struct{}
	brought version // set before ended is closed
}

// A version is a snapshot of a life; zero: none.
type version struct {
	epoch  uint32
	number uint64
}

// carry delivers e, or tells that it cannot be.
func (c *carrier) carry(e errand) {
	t := trip{e.Rank, e.to.Agent}
	brought, ok := c.k.embark(t, e)
	if !ok {
		return
	}
	c.brought = brought
	defer func() { c.k.disembark(t, c.brought) }()
	for since := (time.Time{}); ; { // the first failure: what was long on its way may still arrive at the second attempt
		err := c.deliver(e)
		if err == nil || c.k.stale(e) {
			return
		}
		if since.IsZero() {
			since = time.Now()
		}
		c.hangUp()
		if time.Since(since) > carryTime {
			c.k.giveUp(e, err)
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-c.k.ctx.Done():
			return
		}
	}
}

// stale is true if e is of no use any more.
func (k *Keeper) stale(e errand) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed || !e.extra && e.turn != k.turn
}

// giveUp has the first agent look for somebody else.
func (k *Keeper) giveUp(e errand, err error) {
	k.mu.Lock()
	if !e.extra {
		k.due[e.Rank] = true
		k.to = control.Buddy{}
	}
	k.mu.Unlock()
	k.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: e.Rank, Agent: e.to.Agent, Reason: err.Error()}})
}

// A carrier is what the goroutine of carry has.
type carrier struct {
	k       *Keeper
	line    *parcels // nil: none
	haul    *haul    // its path
	brought version  // what has come to where the errand goes, as far as is known
	sources map[int]*source
}

// A source is a file of snapshots, and what the buddy has of it.
type source struct {
	control.Life
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
	c.k.mu.Lock()
	delete(c.k.hauls, c.haul)
	if c.k.out == c.haul {
		c.k.out = nil
	}
	c.k.mu.Unlock()
	c.line.conn.Close()
	c.line = nil
}

// deliver sends the latest snapshot of e's life.
func (c *carrier) deliver(e errand) error {
	if e.extra {
		area, err := checkpoint.Open(e.file)
		if err != nil {
			return fmt.Errorf("copy rank %d: %w", e.Rank, err)
		}
		defer area.Close()
		return c.send(e, &source{Life: e.Life, file: e.file, area: area})
	}
	s := c.sources[e.Rank]
	if s == nil || s.file != e.file {
		area, err := checkpoint.Open(e.file)
		if errors.Is(err, os.ErrNotExist) {
			return nil // the rank has saved elsewhere since
		}
		if err != nil {
			return fmt.Errorf("copy rank %d: %w", e.Rank, err)
		}
		if s != nil {
			s.area.Close()
		}
		s = &source{Life: e.Life, file: e.file, area: area}
		c.sources[e.Rank] = s
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
			return fmt.Errorf("copy rank %d: %w", s.Rank, err)
		}
		v := version{s.Epoch, d.Number}
		if s.base != nil && s.base.Number == d.Number || e.extra && c.brought == v {
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
			return fmt.Errorf("copy rank %d to agent %d: %w", s.Rank, e.to.Agent, err)
		}
		if s.base != nil && !e.extra {
			c.k.forgetBefore(s.Life)
		}
		s.base, c.brought = d.Sums, v
		return nil
	}
}

var errAgain = errors.New("it has not what the rest was to be added to")

// pass sends d and waits until it is kept.
func (c *carrier) pass(s *source, d *checkpoint.Delta) error {
	defer c.k.watch(c.haul)()
	begin := beginning{Rank: s.Rank, Epoch: s.Epoch, Number: d.Number, Base: d.Base, Lengths: d.Lengths}
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
	if err := c.k.awaitWitness(); err != nil {
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
		conn, err := c.k.dial(addr, e.to.Agent)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		c.k.mu.Lock()
		if c.k.closed || !e.extra && e.turn != c.k.turn {
			c.k.mu.Unlock()
			conn.Close()
			return net.ErrClosed
		}
		host, _, _ := net.SplitHostPort(addr)
		c.haul = &haul{conn: conn.NetConn(), agent: e.to.Agent, addr: host}
		if c.k.hauls[c.haul] = true; !e.extra {
			c.k.out = c.haul
		}
		c.k.mu.Unlock()
		c.line = newParcels(conn)
		return nil
	}
	return fmt.Errorf("agent %d cannot be reached: %w", e.to.Agent, errors.Join(errs...))
}
