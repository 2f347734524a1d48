package paths

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// errTimeout is the error of an attempt that was given up.
var errTimeout = errors.New("no answer in time")

// ErrUnreachable is in the error of a GiveUp.
var ErrUnreachable = errors.New("no path works")

// lost: the connection in use broke, or there never was one.
func (p *Pair) lost(err error) {
	if p.wanted.IsZero() {
		p.wanted = p.now
	}
	if p.using < 0 {
		return
	}
	u, stalled := p.using, p.stalled
	network := stalled || silenced(err)
	p.using, p.stalled = -1, false
	switch {
	case stalled:
		err = errors.New(p.stall)
	case p.count(taking) > 0:
		return // the other end closes the old connection when it takes the new one
	}
	if p.count(taking) == 0 {
		p.reason = fmt.Sprintf("%s broke, left", p.routes[u].Name)
	}
	if err == nil {
		err = errors.New("the connection broke")
	}
	p.blame(u, err, network)
	p.hurry(u)
}

// hurry has all paths but one tried at once, however long they are dead.
func (p *Pair) hurry(but int) {
	for i := range p.routes {
		if r := &p.routes[i]; i != but {
			r.next, r.failures = time.Time{}, 0
		}
	}
}

// blame notes that a path failed while in use. If it is its network that has, as
// far as one can tell, all paths over that are kept out together; a path that failed
// by itself does not keep out the others.
func (p *Pair) blame(path int, err error, network bool) {
	r := &p.routes[path]
	r.dead, r.err, r.failures, r.left = p.now, err, 0, true
	r.pace, r.paced = [2]float64{}, time.Time{}
	r.next = p.now.Add(firstProbe)
	if len(p.routes) == 1 {
		r.next = p.now
	}
	at := &r.own
	if network {
		at = r.net
	}
	if at.fail(p.now) && at == &r.own {
		r.slow = false
	}
	p.condemn(path)
}

// failed: an attempt has.
func (p *Pair) failed(path int, err error) {
	r := &p.routes[path]
	answered := r.state == taking // and was refused, so it is not dead
	r.state, r.err = idle, err
	r.failures++
	if path != p.using && r.dead.IsZero() && !answered {
		r.dead = p.now
		p.condemn(path)
	}
	first, last := firstProbe, lastProbe
	if p.pressed() {
		first, last = firstRetry, urgentRetry
	}
	r.next = p.now.Add(p.jitter(min(first<<min(r.failures-1, 20), last)))
}

// expire gives up attempts that take too long.
func (p *Pair) expire() {
	for i := range p.routes {
		r := &p.routes[i]
		switch d := p.now.Sub(r.began); {
		case r.state == dialing && d >= p.limit(r), r.state == taking && d >= p.limit(r)+takeFor && !r.stable && len(p.routes) > 1:
			p.do(Drop, i)
			p.failed(i, errTimeout)
		case r.state == ready && d >= p.limit(r)+takeFor:
			p.drop(i)
		}
	}
}

// limit is how long a dial of r may take. Where no path works it gets longer, as it
// may be the hosts that are slow.
func (p *Pair) limit(r *route) time.Duration {
	d := dialFor
	if p.pressed() {
		d = min(d<<min(r.failures, 8), dialMost)
	}
	if r.Class == topology.WAN {
		d = max(d, dialForWAN)
	}
	return d
}

// urgent looks for a path that works: it takes the first that answers, and tries
// the next whenever those under way have not answered for a while.
func (p *Pair) urgent() {
	if p.using < 0 && p.now.Sub(p.wanted) >= p.cfg.Patience {
		p.giveUp()
		return
	}
	if p.count(taking) > 0 {
		return
	}
	for i := range p.routes {
		if p.routes[i].state == ready {
			p.take(i, p.because())
			return
		}
	}
	stagger := startStagger
	if p.everUsed {
		stagger = breakStagger
	}
	for p.count(dialing) == 0 || p.now.Sub(p.lastBegun) >= stagger {
		i := p.nextHope()
		if i < 0 {
			return
		}
		p.begin(i)
		if len(p.routes) == 1 {
			return
		}
	}
}

// nextHope is the path to try next: the best that has not failed, or the one that
// failed longest ago. Those on a network that is silent come after those on
// another. -1: none may be tried now.
func (p *Pair) nextHope() int {
	hope, suspect := -1, -1
	for i := range p.routes {
		r := &p.routes[i]
		if r.state != idle || p.now.Before(r.next) {
			continue
		}
		if r.dead.IsZero() && i != p.using {
			if !p.stalled || !p.related(i, p.using) {
				return i
			}
			if suspect < 0 {
				suspect = i
			}
		}
		if hope < 0 || r.next.Before(p.routes[hope].next) {
			hope = i
		}
	}
	if suspect >= 0 {
		return suspect
	}
	return hope
}

// because is why a path is taken in need.
func (p *Pair) because() string {
	if p.stalled {
		return fmt.Sprintf("%s %s, left", p.routes[p.using].Name, p.stall)
	}
	return p.reason
}

func (p *Pair) giveUp() {
	p.hopeless = true
	for i := range p.routes {
		if r := &p.routes[i]; r.state != idle {
			p.drop(i)
			if r.err == nil {
				r.err = errTimeout
			}
		}
	}
	var tried []string
	for _, r := range p.routes {
		err := r.err
		if err == nil {
			err = errors.New("not tried")
		}
		tried = append(tried, fmt.Sprintf("%s: %v", r.Name, err))
	}
	p.actions = append(p.actions, Action{Do: GiveUp,
		Err: fmt.Errorf("%w, tried for %v: %s", ErrUnreachable, p.cfg.Patience, strings.Join(tried, "; "))})
}
