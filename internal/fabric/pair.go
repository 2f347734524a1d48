package fabric

import (
	"fmt"
	"net"
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/paths"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A candidate is a path to another process.
type candidate struct {
	class  topology.Class
	local  *Network
	remote transport.Addr
}

func (c candidate) String() string {
	return fmt.Sprintf("%v %s", c.class, c.remote)
}

// network is what carries the path: the two addresses, without the ports.
func (c candidate) network() string {
	from, _, err := net.SplitHostPort(c.local.Endpoint.Addr().Local())
	to, _, err2 := net.SplitHostPort(c.remote.Local())
	if err != nil || err2 != nil {
		return ""
	}
	return from + " " + to
}

// A pair is this process and another. All of it is guarded by Fabric.mu.
type pair struct {
	f          *Fabric
	process    int
	addrs      []Addr
	candidates []candidate // best first
	policy     *paths.Pair // nil if there are none
	attempts   map[int]*attempt
	generation uint32    // of what the policy knows to be attached
	firm       bool      //   and that it is not to be replaced
	wantedAt   time.Time // since when the engine has wanted a connection and has none; zero: it has one
	fenced     bool
	guest      guest // what it dialed last, before it was known where it is
	reading
}

// A guest is a process that has dialed this one.
type guest struct {
	over *Network
	peer transport.Addr
}

// A reading is what was last seen of the connection in use.
type reading struct {
	last    paths.Reading
	link    engine.LinkInfo
	path    transport.PathInfo
	heardAt time.Time // something came, or nothing was due
	pinged  time.Time
	waits   bool // for what the ping brings
	pingRTT time.Duration
	rate    sensors.Rate
	backlog bool      // and bytes were under way
	inAt    time.Time // the other end told its pace
	told    time.Time // this end did
}

func newPair(f *Fabric, process int, addrs []Addr) *pair {
	p := &pair{f: f, process: process, addrs: addrs, attempts: make(map[int]*attempt)}
	for class := topology.SameHost; class <= topology.WAN; class++ {
		for i := range f.opt.Networks {
			n := &f.opt.Networks[i]
			for _, a := range addrs {
				if n.Class == class && a.Class == class && a.Addr.Network() == n.Endpoint.Addr().Network() {
					p.candidates = append(p.candidates, candidate{class, n, a.Addr})
				}
			}
		}
	}
	if len(p.candidates) == 0 {
		return p
	}
	cfg := paths.Config{Plans: f.opt.Process < process, Patience: f.opt.Patience, Seed: uint64(f.opt.Process)<<32 | uint64(process)}
	for _, c := range p.candidates {
		cfg.Paths = append(cfg.Paths, paths.Path{Name: c.String(), Class: c.class, Network: c.network()})
	}
	p.policy = paths.New(cfg)
	return p
}

// known tells whether it is known where the other process is, or that it is nowhere. Of one that was
// started later, or was lost, more will be told; it may have dialed this one before.
func (p *pair) known() bool { return len(p.addrs) > 0 || p.fenced }

// find is the path of a connection that another process has dialed; -1 if this one
// knows no way back.
func (p *pair) find(n *Network, peer transport.Addr) int {
	same := -1
	for i, c := range p.candidates {
		if c.local != n {
			continue
		}
		if c.remote == peer {
			return i
		}
		if same < 0 {
			same = i
		}
	}
	return same
}

// watched tells whether time matters to the pair. With one path it does while there
// is no connection only, and where what is sent cannot be lost it does not after
// that.
func (p *pair) watched() bool {
	return p.policy != nil && !p.fenced && (p.policy.Busy() || len(p.candidates) > 1 && p.generation > 0 && !p.firm)
}

// busy tells whether that is milliseconds.
func (p *pair) busy() bool { return p.policy.Busy() || p.link.Outstanding }

// want: the engine has no connection.
func (p *pair) want(now time.Time) {
	switch i := p.f.engine.Link(p.process); {
	case p.fenced || !i.Wanted:
	case p.policy == nil:
		p.f.fail(p.process, fmt.Errorf("%w: it has %v, this process %v", errNoNetwork, p.addrs, p.f.Addrs()))
	default:
		if p.wantedAt.IsZero() {
			p.wantedAt = now
		}
		p.step(now, paths.Want{Err: i.Lost})
	}
}

// attached: the engine has a connection over a path.
func (p *pair) attached(path int, generation uint32, dialed bool) {
	if generation <= p.generation {
		return // it was replaced already
	}
	p.wantedAt = time.Time{}
	i := p.f.engine.Link(p.process)
	p.generation, p.firm = generation, i.Firm || i.Conn != nil && i.Conn.Stable() // of what is stable nothing can be lost on the way
	if path >= 0 {
		now := time.Now()
		p.reading = reading{heardAt: now}
		before := p.policy.Status(now)
		p.step(now, paths.Attached{Path: path, Dialed: dialed, Stable: p.firm})
		if after := p.policy.Status(now); before.Using >= 0 || after.Switches > before.Switches {
			p.f.opt.Log.Info("path changed", "process", p.process, "path", p.candidates[path], "why", after.Why)
		}
	}
	if !p.f.wanted[p.process].Load() && p.f.engine.Link(p.process).Wanted {
		p.f.wanted[p.process].Store(true) // it was lost before this was known
	}
	p.f.look()
}

// step has the policy decide, and does it.
func (p *pair) step(now time.Time, in paths.Input) {
	if p.f.ctx.Err() != nil || p.fenced { // whose attempts are dropped
		return
	}
	for _, a := range p.policy.Step(now, in) {
		switch a.Do {
		case paths.Dial, paths.Connect:
			p.dial(a.Path, a.Do == paths.Connect)
		case paths.Take:
			p.attempts[a.Path].over = p.over()
			close(p.attempts[a.Path].take)
		case paths.Drop:
			p.drop(a.Path)
		case paths.GiveUp:
			p.f.fail(p.process, a.Err)
		}
	}
}

// avoid has the pair leave paths of a class for others; 0: no more.
func (p *pair) avoid(class topology.Class, d time.Duration, why string) {
	now := time.Now()
	in := paths.Avoid{Class: class, Why: why}
	if d > 0 {
		in.Until = now.Add(d)
	}
	p.step(now, in)
}

// over is the generation of the connection that may be replaced.
func (p *pair) over() uint32 {
	if i := p.f.engine.Link(p.process); i.Conn != nil {
		return i.Generation
	}
	return 0
}

// tick reads how the connection does and tells the policy. held: this process did
// not look for a while.
func (p *pair) tick(now time.Time, held bool) {
	i := p.f.engine.Link(p.process)
	if i.Conn != nil && i.Generation == p.generation {
		p.last = p.read(now, i, held)
	} // else it is changing, which is about to be known
	p.step(now, paths.Tick{Reading: p.last})
}

// When to ask the other process for an answer: it has been silent for so long,
// though something is due.
const (
	pingAfter    = 25 * time.Millisecond
	pingMeasured = 250 * time.Millisecond // the kernel tells better
	paceTold     = 250 * time.Millisecond
	paceLasts    = 2 * paceTold
)

func (p *pair) read(now time.Time, i engine.LinkInfo, held bool) paths.Reading {
	var out paths.Reading
	before, delivered := p.link, p.path.Delivered
	p.link = i
	m, measured := i.Conn.(transport.Measured)
	if measured {
		if i.Outstanding || before.Outstanding {
			p.path = m.Path()
			out.RTT = p.path.RTT
			if p.path.Unacked > 0 {
				out.Stalled = p.path.Stalled
			}
			backlog := i.Backlog && p.path.Unacked > 0
			p.rate.Observe(sensors.Sample{At: now, Delivered: p.path.Delivered, Limited: backlog && p.backlog && i.Drained == before.Drained})
			p.backlog = backlog
			out.Out = paths.Pace{Rate: p.rate.Value(), Limited: p.rate.Limited()}
		}
		out.Measured = p.path.Stalled >= 0
	}
	if i.PeerPaces != before.PeerPaces {
		p.inAt = now
	}
	if now.Sub(p.inAt) < paceLasts {
		out.In = paths.Pace{Rate: float64(i.PeerPace), Limited: true}
	}
	p.ping(now, &out, held || i.Heard != before.Heard || !i.Outstanding && !p.waits || out.Measured && p.path.Delivered != delivered)
	return out
}

// ping asks the other process for an answer where it has been silent, or there is
// something to tell it. heard: it was not.
func (p *pair) ping(now time.Time, out *paths.Reading, heard bool) {
	if heard {
		if p.waits {
			p.waits = false
			if rtt := now.Sub(p.pinged); p.pingRTT == 0 || rtt < p.pingRTT {
				p.pingRTT = rtt // at most: it is seen at a tick
			}
		}
		p.heardAt = now
	}
	if !out.Measured {
		out.RTT = p.pingRTT
	}
	out.Silent = now.Sub(p.heardAt)
	after := pingAfter
	if out.Measured {
		after = pingMeasured
	}
	pace := uint64(0)
	if out.Out.Limited && out.Out.Rate > 0 && p.f.opt.Process > p.process && now.Sub(p.told) >= paceTold {
		pace, p.told = uint64(out.Out.Rate), now
	}
	first := !out.Measured && p.pinged.IsZero()
	if pace == 0 && !first && (out.Silent < after || now.Sub(p.pinged) < after) {
		return
	}
	if pace == 0 && !p.waits {
		p.pinged, p.waits = now, true
	}
	p.f.engine.Ping(p.process, pace)
}
