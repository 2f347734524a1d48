package paths

import (
	"errors"
	"fmt"
	"time"
)

// attached: a connection over a path is in use now.
func (p *Pair) attached(in Attached) {
	path, dialed := in.Path, in.Dialed
	r := &p.routes[path]
	r.stable = in.Stable
	why := p.reason
	switch {
	case !dialed:
		why = "the other end chose it"
	case p.last < 0 && path == 0:
		why = "best class both offer"
	case p.last < 0:
		why = fmt.Sprintf("%s did not answer in time", p.routes[0].Name)
	case path == p.last:
		why = "connected again"
	}
	if u := p.last; u >= 0 && u != path {
		p.switches++
		// What falls silent and is left for another network has lost its own. That the
		// other end leaves a better path says as much as that this end does; it would
		// have tried another path on the same network first, had that not been silent.
		network, theirs := !p.related(u, path), !dialed && path > u
		switch w := &p.routes[u]; {
		case !w.dead.IsZero():
			if theirs && network {
				w.net.fail(p.now)
			}
		case dialed && p.fled != "":
			p.blame(u, errors.New(p.fled), network)
		case !dialed && p.stalled:
			p.blame(u, errors.New(p.stall), network)
		case theirs:
			p.blame(u, errLeft, network)
		}
	}
	if r.state == taking && dialed || r.state == dialing || r.state == ready {
		if r.state != taking {
			p.do(Drop, path)
		}
		r.state = idle
	}
	r.failures, r.dead, r.next = 0, time.Time{}, time.Time{}
	p.join(path)
	p.using, p.last, p.since, p.why, p.lastTick = path, path, p.now, why, p.now
	p.wanted, p.stalled, p.everUsed = time.Time{}, false, true
	for i := range p.routes {
		p.routes[i].faster = 0
	}
}

// read takes a reading of the path in use.
func (p *Pair) read(in Reading) {
	passed := p.now.Sub(p.lastTick)
	p.lastTick = p.now
	if p.using < 0 {
		return
	}
	u := &p.routes[p.using]
	if in.RTT > 0 {
		u.rtt = in.RTT
	}
	rtt, silence := max(in.RTT, u.rtt), silenceMin
	if in.Measured || rtt == 0 {
		silence = silenceFull
	}
	quiet := time.Duration(0)
	if in.Stalled > max(stallMin, 4*rtt) {
		quiet = in.Stalled
	} else if in.Silent > max(silence, 8*rtt) {
		quiet = in.Silent
	}
	switch {
	case quiet > 0 && !p.stalled && passed < lateTick:
		p.stalled = true
		u.next = p.now.Add(firstProbe)
		p.hurry(p.using)
		p.stall = fmt.Sprintf("stalled for %v", round(quiet))
	case quiet == 0:
		p.stalled = false
	}
	p.compare(u, [2]Pace{in.Out, in.In}, min(passed, lateTick))
}

// compare notes for how long other paths have been known to be faster.
func (p *Pair) compare(u *route, paces [2]Pace, passed time.Duration) {
	for d, pace := range paces {
		if pace.Rate > 0 {
			u.pace[d], u.paced = pace.Rate, p.now
		}
	}
	for i := range p.routes {
		q := &p.routes[i]
		if i == p.using || !p.known(q) {
			continue
		}
		for d, pace := range paces {
			switch {
			case !pace.Limited || pace.Rate == 0 || q.pace[d] == 0:
			case q.pace[d] >= margin*pace.Rate:
				q.faster += passed
			default:
				q.faster = 0
			}
		}
	}
}

// known tells whether there is a measurement of r.
func (p *Pair) known(r *route) bool { return !r.paced.IsZero() && p.now.Sub(r.paced) < paceAge }

// better is why a path is better than the one in use; "" if it is not.
func (p *Pair) better(path int) string {
	u, q := &p.routes[p.using], &p.routes[path]
	switch {
	case path == p.using || u.stable || p.now.Before(p.heldUntil(path)):
		return ""
	case q.slow: // it has been out for long enough to be tried again
		q.slow, q.pace, q.paced = false, [2]float64{}, time.Time{}
	}
	if p.avoided(p.using) {
		return fmt.Sprintf("%s is to be avoided: %s", u.Name, p.avoid.Why)
	}
	if q.faster >= slowFor {
		return fmt.Sprintf("faster than %s: %s", u.Name, ratios(q.pace, u.pace))
	}
	if path > p.using {
		return ""
	}
	if p.known(u) && p.known(q) {
		for d := range u.pace {
			if u.pace[d] >= margin*q.pace[d] && q.pace[d] > 0 {
				return ""
			}
		}
	}
	if q.left {
		return "rejoined"
	}
	return "answers now"
}

func ratios(q, u [2]float64) string {
	for d := range q {
		if q[d] > u[d] && u[d] > 0 {
			return fmt.Sprintf("%.1f MB/s, not %.1f", q[d]/1e6, u[d]/1e6)
		}
	}
	return "measured"
}

// plan looks for a path that is better than the one in use, which works.
func (p *Pair) plan() {
	busy := p.count(taking) > 0
	for i := range p.routes {
		r := &p.routes[i]
		why := ""
		if p.cfg.Plans && p.using >= 0 {
			why = p.better(i)
		}
		switch {
		case r.state == ready && why != "" && !busy && !p.awaits(i):
			if i > p.using {
				p.exclude(p.using)
			}
			p.take(i, why)
			busy = true
		case (r.state == ready || r.state == dialing) && why == "":
			p.drop(i)
		case r.state == idle && why != "" && !busy && !p.now.Before(r.next):
			p.begin(i)
		}
	}
}

// kin dials again, where a path has answered, the better ones on its network: that is
// well, and their own dials may be waiting for an answer to what it lost.
func (p *Pair) kin(path int) {
	if p.using < 0 || p.stalled || !p.cfg.Plans {
		return
	}
	for i := range path {
		r := &p.routes[i]
		if !p.related(i, path) || p.better(i) == "" {
			continue
		}
		if r.state == dialing {
			p.drop(i)
		}
		if r.state == idle {
			p.begin(i)
		}
	}
}

// awaits tells whether a better path on the same network may be about to answer:
// then it is waited for, instead of changing twice.
func (p *Pair) awaits(path int) bool {
	for i := range path {
		r := &p.routes[i]
		if p.related(i, path) && r.state == dialing && p.now.Sub(r.began) < breakStagger && p.better(i) != "" {
			return true
		}
	}
	return false
}

// related tells whether two paths share their network.
func (p *Pair) related(i, j int) bool {
	return p.routes[i].Network != "" && p.routes[i].Network == p.routes[j].Network
}

// exclude keeps a path out that is slower than one of a worse class, for longer
// each time.
func (p *Pair) exclude(path int) {
	r := &p.routes[path]
	out := slowHold
	if r.slow || r.own.out >= slowHold && p.now.Sub(r.own.hold) < r.own.out {
		out = min(2*r.own.out, slowHolds)
	}
	r.own.out, r.own.hold, r.slow = out, p.now.Add(out), true
}
