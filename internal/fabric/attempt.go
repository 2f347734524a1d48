package fabric

import (
	"context"
	"errors"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/paths"
	"github.com/mpiv/mpiv/transport"
)

// An attempt is a dial under way.
type attempt struct {
	path int
	ctx  context.Context
	stop context.CancelFunc
	take chan struct{} // closed to use the connection, once the other process has answered
	over uint32        // generation of the connection it is to replace; set before take is closed

	ended bool // nobody waits for it; guarded by Fabric.mu
}

// dial begins an attempt. connect: to use it at once.
func (p *pair) dial(path int, connect bool) {
	a := &attempt{path: path, take: make(chan struct{})}
	a.ctx, a.stop = context.WithCancel(p.f.ctx)
	p.attempts[path] = a
	if connect {
		a.over = p.over()
	}
	p.f.done.Go(func() {
		defer a.stop()
		generation, err := p.try(a, connect)
		if err != nil {
			p.f.refused(err)
		}
		p.f.mu.Lock()
		defer p.f.mu.Unlock()
		if err == nil {
			p.end(a)
			p.attached(path, generation, true)
			return
		}
		if !a.ended {
			p.end(a)
			p.step(time.Now(), paths.Failed{Path: path, Err: err})
			p.f.look()
		}
	})
}

func (p *pair) drop(path int) {
	if a := p.attempts[path]; a != nil {
		a.stop()
		p.end(a)
	}
}

func (p *pair) end(a *attempt) {
	a.ended = true
	if p.attempts[a.path] == a {
		delete(p.attempts, a.path)
	}
}

// greetFor is how long the other process may take to answer a greeting, where what
// it has sent meanwhile is not lost.
const greetFor = 5 * time.Second

var errChanged = errors.New("the connection has changed meanwhile")

// try makes a connection and hands it to the engine. The error says why not.
func (p *pair) try(a *attempt, connect bool) (generation uint32, err error) {
	c := p.candidates[a.path]
	conn, err := c.dial(a.ctx, connect)
	if err != nil {
		return 0, err
	}
	g := p.f.engine.Greet(conn, true)
	g.Expect(p.process)
	if _, err := p.f.vouch(g, conn, c.class); err != nil {
		return 0, err
	}
	if !connect {
		if err := p.probe(a, g, conn); err != nil {
			return 0, err
		}
	}
	generation, ok := p.f.engine.Dial(p.process, a.over)
	if !ok {
		conn.Close()
		return 0, errChanged
	}
	defer p.f.engine.EndDial(p.process, generation)
	if err := g.Take(generation); err != nil {
		return 0, err
	}
	ctx := a.ctx
	if !conn.Stable() {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, greetFor)
		defer stop()
	}
	if err := poll(ctx, g, conn); err != nil {
		return 0, err
	}
	return generation, nil
}

// dialAlone is how long a dial of the only path there is may take: packets that are lost are sent again ever more
// rarely, and who waits for an answer to what has arrived may have missed that the other end has given up.
const dialAlone = 10 * time.Second

// dial makes a connection. alone: nobody gives it up in favour of another.
func (c candidate) dial(ctx context.Context, alone bool) (transport.Conn, error) {
	if alone {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, dialAlone)
		defer stop()
	}
	return c.local.Endpoint.Dial(ctx, c.remote)
}

// probe asks whether the other process is there, and returns when the connection is
// to be used.
func (p *pair) probe(a *attempt, g *engine.Greeter, conn transport.Conn) error {
	began := time.Now()
	if err := g.Probe(); err != nil {
		return err
	}
	if err := poll(a.ctx, g, conn); err != nil {
		return err
	}
	now := time.Now()
	p.f.mu.Lock()
	if !a.ended {
		p.step(now, paths.Answered{Path: a.path, RTT: now.Sub(began), Stable: conn.Stable()})
		p.f.look()
	}
	p.f.mu.Unlock()
	select {
	case <-a.take:
		return nil
	case <-a.ctx.Done():
		conn.Close()
		return a.ctx.Err()
	}
}
