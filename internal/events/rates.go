package events

import (
	"slices"
	"time"
)

// A Rate is messages and bytes a second, between the last two readings of a
// process.
type Rate struct {
	SentMessages, SentBytes, ReceivedMessages, ReceivedBytes float64
}

// Add is both together.
func (r Rate) Add(o Rate) Rate {
	return Rate{r.SentMessages + o.SentMessages, r.SentBytes + o.SentBytes, r.ReceivedMessages + o.ReceivedMessages, r.ReceivedBytes + o.ReceivedBytes}
}

// tooLong is how far apart two readings may be for what is between them to be
// called a rate of now.
const tooLong = 10 * time.Second

// between is the seconds between the last two readings; 0 if there are none to
// compare.
func (p *Process) between() float64 {
	if p.Reading == nil || p.Before == nil || p.Phase == PhaseExited {
		return 0
	}
	d := time.Duration(p.Reading.Up - p.Before.Up)
	if d <= 0 || d > tooLong {
		return 0
	}
	return d.Seconds()
}

// LinkRate is what p exchanges with a peer. ok: it is known.
func (p *Process) LinkRate(peer int) (r Rate, ok bool) {
	seconds := p.between()
	if seconds == 0 {
		return r, false
	}
	is := func(l LinkReading) bool { return l.Peer == peer }
	i := slices.IndexFunc(p.Reading.Links, is)
	if i < 0 {
		return r, false
	}
	now, before := p.Reading.Links[i], LinkReading{}
	if i = slices.IndexFunc(p.Before.Links, is); i >= 0 {
		before = p.Before.Links[i]
	}
	return Rate{
		per(now.SentMessages, before.SentMessages, seconds), per(now.SentBytes, before.SentBytes, seconds),
		per(now.ReceivedMessages, before.ReceivedMessages, seconds), per(now.ReceivedBytes, before.ReceivedBytes, seconds),
	}, true
}

// Rate is what p exchanges with all its peers. ok: it is known.
func (p *Process) Rate() (r Rate, ok bool) {
	if p.between() == 0 {
		return r, false
	}
	for _, l := range p.Reading.Links {
		one, _ := p.LinkRate(l.Peer)
		r = r.Add(one)
	}
	return r, true
}

// RankRate is the messages a second that a rank of p sends and receives, to and from
// ranks of p too. ok: it is known.
func (p *Process) RankRate(rank int) (sent, received float64, ok bool) {
	seconds := p.between()
	if seconds == 0 {
		return 0, 0, false
	}
	now, before := p.Rank(rank), RankReading{}
	if now == nil {
		return 0, 0, false
	}
	if i := slices.IndexFunc(p.Before.Ranks, func(r RankReading) bool { return r.Rank == rank }); i >= 0 {
		before = p.Before.Ranks[i]
	}
	return per(now.Sent, before.Sent, seconds), per(now.Received, before.Received, seconds), true
}

// Rank is the last reading of a rank of p; nil: none.
func (p *Process) Rank(rank int) *RankReading {
	if p.Reading == nil {
		return nil
	}
	for i := range p.Reading.Ranks {
		if p.Reading.Ranks[i].Rank == rank {
			return &p.Reading.Ranks[i]
		}
	}
	return nil
}

func per(now, before uint64, seconds float64) float64 {
	if now < before {
		return 0
	}
	return float64(now-before) / seconds
}
