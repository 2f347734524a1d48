package process

import (
	"time"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A pace tells when a rank is saved, and for how long a snapshot waits for its log to become
// shorter. It is told the time, and does nothing.
//
// What a snapshot's log has is messages that the receivers' snapshots do not cover. So a
// rank asks the receivers for snapshots when it takes its own, and puts its log in when
// those are covered: then there is next to nothing in it. Of two ranks that ask each other
// only one waits: who has more to spare; if that is about the same, by an order of all
// ranks in which there are no long chains of neighbours.
type pace struct {
	every    time.Duration
	rank     topology.Rank
	next     time.Time                 // it is due
	began    time.Time                 // the last was taken
	bytes    int                       // of the last, or what they are worth; 0: not known
	stays    bool                      // snapshots are on this host alone
	asks     map[topology.Rank]request // the last of each rank
	byAnswer bool                      // what is due answers somebody
	urgent   bool                      // somebody can keep no more
	failed   int                       // waits in a row that spared little
	skip     int                       // so many snapshots do not wait, before one tries again
}

// A request is what a rank has asked for.
type request struct {
	at    time.Time
	bytes int
}

const (
	logWorth  = 64 << 10 // a shorter log is not waited for,
	peerWorth = 16 << 10 //   nor a part of it, for one receiver, that is shorter than this
	skipMost  = 6        // a wait is tried once in 2 to the power of this snapshots at least

	// A snapshot that stays on its host is so many times cheaper than one that a network
	// takes. What it covers is memory to use again: with less of that it stays in the cache.
	cheaper = 4
	// For that they are taken no more often than this.
	leastGap = 50 * time.Millisecond
)

func newPace(r topology.Rank, every time.Duration, stays bool, now time.Time) pace {
	p := pace{every: every, rank: r, stays: stays, asks: map[topology.Rank]request{}}
	p.next = p.turn(now.Add(every / 2))
	if stays {
		p.bytes = 1 // the first is not dear either
	}
	return p
}

// turn is the next time after now at which all ranks of the job are saved, if their
// hosts' clocks agree: what one has sent before its snapshot the others then have before
// theirs, or soon after.
func (p *pace) turn(now time.Time) time.Time { return after(now, p.every) }

// after is the first multiple of d after now, by the host's clock.
func after(now time.Time, d time.Duration) time.Time {
	return now.Add(now.Truncate(d).Add(d).Sub(now.Round(0)))
}

// patience is how long a log is waited for, of which the rank stood still for so long: that makes its snapshot no
// older. Somebody who can keep no more has the rest on disk
// meanwhile, and is better off so than if the whole log had first to be sent to another host.
func (p *pace) patience(stood time.Duration) time.Duration {
	if p.urgent {
		return p.every / 4
	}
	return min(p.every/2+stood, 2*p.every)
}

// asked is told that rank from wants a snapshot, which would spare it so many bytes; 0: it
// can keep no more.
func (p *pace) asked(from topology.Rank, bytes int, now time.Time) {
	if bytes == 0 {
		p.urgent, p.next = true, now
		return
	}
	p.asks[from] = request{now, bytes}
	if p.bytes == 0 || 2*p.bytes > bytes {
		return
	}
	gap := p.every / 16
	often := max(gap, leastGap)
	if p.stays {
		gap = often / 2
	}
	soon := p.began.Add(gap)
	if soon.Before(now) {
		soon = now
	}
	if p.stays { // at the same time as others, who would have to wait at another time
		soon = after(soon, often)
	}
	if soon.Before(p.next) {
		p.next, p.byAnswer = soon, !p.stays
	}
}

// take is told that a snapshot is taken, with a state of so many bytes and that log, and
// tells for which part of the log it waits. Empty: it does not.
func (p *pace) take(state int64, log []engine.LoggedTo, now time.Time) (waits []engine.LoggedTo) {
	p.began, p.next = now, p.turn(now.Add(p.every/2))
	if p.byAnswer { // who asked will ask again, and should be first
		p.next = p.next.Add(p.every / 4)
	}
	p.byAnswer = false
	if p.skip > 0 {
		p.skip--
		return nil
	}
	for _, to := range log {
		if to.Bytes >= peerWorth && !p.yields(to, now.Add(-3*p.every)) {
			waits = append(waits, to)
		}
	}
	if n := bytesOf(waits); n < logWorth || int64(n) < state/4 {
		return nil
	}
	return waits
}

// over tells whether a snapshot that has waited since then, for that part of the log of
// which so much is left, is to wait no longer. Its rank stood still for so long of that.
func (p *pace) over(waits, left []engine.LoggedTo, since time.Time, stood time.Duration, now time.Time) bool {
	was, is := bytesOf(waits), 0
	for _, to := range left {
		for _, w := range waits {
			if w.Rank == to.Rank && !p.yields(w, since) {
				is += to.Bytes
			}
		}
	}
	switch {
	case is <= max(logWorth, was/16):
		p.failed = 0
		return true
	case now.Sub(since) < p.patience(stood):
		return false
	case is <= was/2:
		p.failed = 0
	default:
		p.failed = min(p.failed+1, skipMost)
		p.skip = 1<<p.failed - 1
	}
	return true
}

// yields tells whether the rank does not wait for another, which has asked since then, as
// that waits for it.
func (p *pace) yields(to engine.LoggedTo, since time.Time) bool {
	r, asked := p.asks[to.Rank]
	switch {
	case !asked || r.at.Before(since) || r.bytes <= to.Bytes/2:
		return false
	case r.bytes/2 >= to.Bytes:
		return true
	}
	return before(p.rank, to.Rank)
}

// saved is told that the last snapshot is whole, with so many bytes.
func (p *pace) saved(bytes int) {
	if p.bytes, p.urgent = bytes, false; p.stays {
		p.bytes = max(1, bytes/cheaper)
	}
}

func bytesOf(all []engine.LoggedTo) (n int) {
	for _, to := range all {
		n += to.Bytes
	}
	return n
}

// before is an order of ranks.
func before(a, b topology.Rank) bool { return scattered(a) < scattered(b) }

// scattered is another number for each rank.
func scattered(r topology.Rank) uint32 {
	x := uint32(r) * 0x9e3779b1
	return (x ^ x>>15) * 0x85ebca6b
}
