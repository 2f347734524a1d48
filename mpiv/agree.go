package mpiv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/agree"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// Agree combines the flags of the ranks of c, bit by bit with and. All ranks of c that
// live must call it, also where c is revoked; it waits for them, whoever fails
// meanwhile. All that return without a failure of their own (such as the end of ctx) return the same flag and the
// same class of error: ErrProcFailed where a rank has failed that not all have acknowledged with
// AckFailed, ErrAbandoned where one's ctx has ended before it took part. The flag counts with these errors too.
//
// After Herault, Bouteiller, Bosilca, Gamell, Teranishi, Parashar and Dongarra,
// "Practical scalable consensus for pseudo-synchronous distributed systems" (SC 2015),
// whose Agree this is; package agree says how it is done here.
func (c *Comm) Agree(ctx context.Context, flag uint64) (uint64, error) {
	end, err := c.beginAgreeing(&callAgree)
	if err != nil {
		return 0, err
	}
	defer end()
	v, err := c.agreeOn(ctx, &callAgree, agree.Value{Flag: flag}, false)
	if err != nil {
		return 0, err
	}
	return v.Flag, c.agreedError(callAgree.Op, v)
}

// Shrink makes a Comm of the ranks of c that live, in their order. All of them must call it, also
// where c is revoked. Who fails meanwhile may be in the new Comm, or not: in that
// all are of one mind. So they are where the ctx of one ends: the others fail with ErrAbandoned, or it is in their new Comm.
func (c *Comm) Shrink(ctx context.Context) (*Comm, error) {
	end, err := c.beginAgreeing(&callShrink)
	if err != nil {
		return nil, err
	}
	defer end()
	const yes = 1
	for try := range uint32(stepsMost / 2) {
		v, err := c.agreeWithAll(ctx, &callShrink, agree.Value{Floor: c.state.contexts.Load()})
		if err != nil {
			return nil, err
		}
		id := v.Floor + contextStride(c.context, try)
		claim := agree.Value{Floor: id}
		if c.state.claimContext(id) {
			claim.Flag = yes
		}
		if v, err = c.agreeWithAll(ctx, &callShrink, claim); err != nil {
			return nil, err
		}
		if v.Flag != yes {
			continue // a goroutine of a rank has taken it for something else
		}
		var ranks []topology.Rank
		for r := range c.size {
			if !v.Failed.Has(r) {
				ranks = append(ranks, c.world(r))
			}
		}
		g := groupOf(ranks, c.box.Rank())
		if g.Rank() == Undefined {
			return nil, c.fail(callShrink.Op, -1, -1, fmt.Errorf("%w: the others have declared this rank failed", ErrProcFailed))
		}
		return c.derive("survivors of "+c.Name(), id, g), nil
	}
	return nil, c.fail(callShrink.Op, -1, -1, errors.New("other goroutines make communicators all the time: call it while they do not"))
}

var callAgree, callShrink = engine.Call{Op: "Agree"}, engine.Call{Op: "Shrink"}

// agreements is what a rank knows of those on a Comm.
type agreements struct {
	seen atomic.Int64 // failures of which the one under way knows

	turn   sync.Mutex // held while a call is under way; guards what follows
	number uint32     // of the last
	early  []earlyAgree
}

// stepsMost is how many agreements a call may be: those of each call are numbered from a multiple of it, so
// that all go on with the same number after a call that some gave up at one of its steps and others at the next.
const stepsMost = 1 << 8

// An earlyAgree is a message of an agreement that this rank has not begun.
type earlyAgree struct {
	number uint32
	from   int
	m      agree.Message
}

// beginAgreeing begins a call, which is one agreement or several, until end.
func (c *Comm) beginAgreeing(call *engine.Call) (end func(), err error) {
	if err := c.gone(); err != nil {
		return nil, c.fail(call.Op, -1, -1, err)
	}
	a := &c.agreements
	a.turn.Lock()
	a.number |= stepsMost - 1
	c.under.Add(1)
	return func() { c.under.Add(-1); a.turn.Unlock() }, nil
}

// agreeWithAll is agreeOn as one step of several: it fails with ErrAbandoned where a rank has given up.
func (c *Comm) agreeWithAll(ctx context.Context, call *engine.Call, v agree.Value) (agree.Value, error) {
	v, err := c.agreeOn(ctx, call, v, true)
	if err == nil && v.Quit.Len() > 0 {
		err = c.fail(call.Op, v.Quit.First(), -1, ErrAbandoned)
	}
	return v, err
}

// quitNext gives up the agreement after the last.
func (c *Comm) quitNext() {
	var outs []agree.Out
	for r := range c.size {
		if r != c.rank {
			outs = append(outs, agree.Out{To: r, Message: agree.Message{Kind: agree.Quit}})
		}
	}
	c.sendAgree(outs, c.agreements.number+1)
}

// agreeOn agrees on v, of which Failed and Acked are filled in here. more: another step of the call follows. Where this rank gives
// up, the others, who may have had its word before, do not wait for it at that, either.
func (c *Comm) agreeOn(ctx context.Context, call *engine.Call, v agree.Value, more bool) (agree.Value, error) {
	a := &c.agreements
	a.number++
	c.state.agreeing.left()
	acked := c.acked.Load() // before the list, which only grows
	known := c.box.Engine().Failed()
	a.seen.Store(int64(len(known)))
	v.Failed, v.Acked, v.Quit = c.membersIn(known), c.membersIn(known[:acked]), agree.NewSet(c.size)
	m, outs := agree.New(c.rank, c.size, v)
	c.sendAgree(outs, a.number)
	early := a.early
	a.early = nil
	for _, e := range early {
		c.receiveAgree(m, e)
	}
	buf := make([]byte, agree.MaxLen(c.size))
	from := engine.Match{Context: c.context + survivors, Peer: engine.AnySource, Check: survivorsCheck}
	for {
		if v, over := m.Result(); over {
			for r := range c.size {
				if v.Failed.Has(r) {
					c.box.Engine().DeclareRankFailed(c.world(r))
				}
			}
			return v, nil
		}
		s, err := c.box.Recv(ctx, call, from, buf)
		e := earlyAgree{from: -1}
		if err == nil {
			e.from = c.local(s.Source)
			e.m, e.number, err = agree.Parse(buf[:s.Bytes], c.size)
		}
		switch {
		case err == nil:
			c.receiveAgree(m, e)
		case errors.Is(err, ErrProcFailed): // also where the sender of a message that was offered died before its body came
			known := c.box.Engine().Failed()
			now := known[a.seen.Load():]
			a.seen.Store(int64(len(known)))
			for _, r := range now {
				if i := c.group.index(r); i >= 0 {
					c.sendAgree(m.Crashed(i), a.number)
				}
			}
		case e.from < 0 && ctx.Err() == nil: // the job is over
			return v, c.fail(call.Op, -1, -1, err)
		default:
			c.sendAgree(m.Quit(), a.number)
			if v, over := m.Result(); over {
				return v, nil
			}
			if more {
				c.quitNext()
			}
			return v, c.fail(call.Op, e.from, -1, err)
		}
	}
}

// receiveAgree gives e to m, unless it is of an agreement before or after it.
func (c *Comm) receiveAgree(m *agree.Machine, e earlyAgree) {
	switch a := &c.agreements; {
	case e.number == a.number:
		c.sendAgree(m.Receive(e.from, e.m), a.number)
	case int32(e.number-a.number) > 0:
		a.early = append(a.early, e)
	}
}

// survivorsCheck is what messages of agreements carry.
var survivorsCheck = opAgree.check(-1)

func (c *Comm) sendAgree(outs []agree.Out, number uint32) {
	for _, o := range outs {
		body := o.Message.Append(nil, number)
		m := engine.Match{Context: c.context + survivors, Peer: c.world(o.To), Check: survivorsCheck}
		if !c.box.TrySend(m, body) {
			c.state.agreeing.add(c.box.Isend(m, body, engine.Standard))
		}
	}
}

// agreeSends is messages of agreements of a rank that are under way: nobody waits for them.
type agreeSends struct {
	mu  sync.Mutex // guards all
	all []engine.Request
}

func (s *agreeSends) add(r engine.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !r.Null() {
		s.all = append(s.all, r)
	}
}

// left is how many are not done.
func (s *agreeSends) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = slices.DeleteFunc(s.all, func(r engine.Request) bool { _, done, _ := r.Test(); return done })
	return len(s.all)
}

// ledger is what goes on with the rank.
func (a *agreements) ledger() agreeLedger {
	a.turn.Lock()
	defer a.turn.Unlock()
	l := agreeLedger{Number: a.number}
	for _, e := range a.early {
		l.Early = append(l.Early, earlyLedger{e.from, e.m.Append(nil, e.number)})
	}
	return l
}

// resume makes a what it was in an earlier life. The Comm has that many ranks.
func (a *agreements) resume(l agreeLedger, size int) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	a.number, a.early = l.Number, nil
	for _, x := range l.Early {
		e := earlyAgree{from: x.From}
		var err error
		if e.m, e.number, err = agree.Parse(x.Message, size); err != nil {
			return err
		}
		a.early = append(a.early, e)
	}
	return nil
}

// membersIn is those of ranks of the world that are in c.
func (c *Comm) membersIn(ranks []topology.Rank) agree.Set {
	s := agree.NewSet(c.size)
	for _, r := range ranks {
		if i := c.group.index(r); i >= 0 {
			s.Add(i)
		}
	}
	return s
}

// agreedError is the error of an agreement, the same for all.
func (c *Comm) agreedError(op string, v agree.Value) error {
	for r := range c.size {
		switch {
		case v.Quit.Has(r):
			return c.fail(op, r, -1, ErrAbandoned)
		case v.Failed.Has(r) && !v.Acked.Has(r):
			return c.fail(op, r, -1, ErrProcFailed)
		}
	}
	return nil
}
