package paths

import (
	"errors"
	"syscall"
	"time"
)

// A standing is how what a pair has left, a path or the network under it, has done
// since. What fails again soon after it was rejoined is kept out for longer each
// time, so that one which carries a greeting and nothing else does not hold up the
// pair again and again.
type standing struct {
	joined time.Time     // when it was last in use from
	failed bool          // while in use, at some time
	back   bool          // it was joined after that
	down   bool          // it has failed since it was joined
	out    time.Duration // for how long it was kept out last
	hold   time.Time     // planned changes do not take it before
}

func (s *standing) join(now time.Time) { s.joined, s.back, s.down = now, s.failed, false }

// fail notes a failure while in use, once, and tells whether it is kept out for it.
func (s *standing) fail(now time.Time) (held bool) {
	if s.down {
		return false
	}
	held = s.back && now.Sub(s.joined) < provenFor
	if held {
		s.out = min(max(2*s.out, firstHold), longestOut)
		s.hold = now.Add(s.out)
	} else {
		s.out = 0
	}
	s.failed, s.down = true, true
	return held
}

// heldUntil is when planned changes may take a path: it or its network may be kept
// out, or it is to be avoided. A network that is in use is not kept out.
func (p *Pair) heldUntil(path int) time.Time {
	r := &p.routes[path]
	until := r.own.hold
	if r.net.hold.After(until) && !(p.using >= 0 && p.related(path, p.using)) {
		until = r.net.hold
	}
	if p.avoided(path) && p.avoid.Until.After(until) {
		until = p.avoid.Until
	}
	return until
}

// avoided tells whether a path is to be left for others.
func (p *Pair) avoided(path int) bool {
	return p.now.Before(p.avoid.Until) && p.routes[path].Class == p.avoid.Class
}

// avoids begins to avoid a class, or ends it.
func (p *Pair) avoids(in Avoid) {
	p.avoid = in
	if !in.Until.IsZero() {
		return
	}
	for i := range p.routes {
		if r := &p.routes[i]; r.Class == in.Class && r.slow {
			r.own.hold = p.now
		}
	}
}

// join notes that a path is in use now. A change from one path of a network to
// another, while that is well, does not join it again.
func (p *Pair) join(path int) {
	r := &p.routes[path]
	if r.net.down || p.last < 0 || path != p.last && !p.related(path, p.last) {
		r.net.join(p.now)
	}
	r.own.join(p.now)
}

// condemn notes that the network under a path has failed if all paths over it are
// dead, one of which was in use.
func (p *Pair) condemn(path int) {
	used := false
	for i := range p.routes {
		if r := &p.routes[i]; i == path || p.related(i, path) {
			if r.dead.IsZero() {
				return
			}
			used = used || r.own.down
		}
	}
	if used {
		p.routes[path].net.fail(p.now)
	}
}

// silenced tells whether err, with which a connection broke, says that packets do not get
// through: that is the network's doing. Else an end or the protocol has given up.
func silenced(err error) bool {
	if t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && t.Timeout() {
		return true
	}
	for _, e := range []error{syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN, syscall.ENETDOWN} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
