package agent

import (
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/socket"
	"github.com/mpiv/mpiv/leader"
	"github.com/mpiv/mpiv/sensors"
	hostsensor "github.com/mpiv/mpiv/sensors/host"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
)

// Readings of hosts and links, for the policy: five a second, in a job of several hosts
// whose ranks can move.
const readingEvery = 200 * time.Millisecond

// Where a quota holds a host back for heldMuch of the time or more, that is all that is read of it, but for one
// time in fullEvery: the rest would take what little it has for a second.
const (
	heldMuch  = 0.5
	fullEvery = 10
)

// readHost tells how this host does, on which c runs, until c closes. copies is who carries
// copies of snapshots from here and to here; nil: nobody does.
func readHost(c *crew.Crew, copies *buddy.Keeper, tell func(control.HostReading)) {
	c.Go(func(stopping <-chan struct{}) { readUntil(stopping, c, copies, tell) })
}

func readUntil(stopping <-chan struct{}, c *crew.Crew, copies *buddy.Keeper, tell func(control.HostReading)) {
	var quota hostsensor.Quota
	s := hostsensor.NewSampler(hostsensor.Options{Throttle: &quota})
	var last control.HostReading // but for its traffic
	short := 0                   // readings in a row
	tick := alarm.NewTicker(readingEvery)
	defer tick.Stop()
	before := map[int]uint64{}
	carried := buddy.Carriage{}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	for {
		select {
		case <-tick.C:
		case <-stopping:
			return
		}
		if held := quota.Held(time.Now()); held >= heldMuch && last.Over > 0 && short < fullEvery-1 {
			last.Throttled = held
			tell(last)
			short++
			continue
		}
		short = 0
		ticks := 0.0
		for process, now := range c.Ticks() {
			if old, known := before[process]; known && now >= old {
				ticks += float64(now - old)
			}
			before[process] = now
		}
		r, err := s.Sample(time.Now())
		if err != nil || r.Over == 0 {
			continue
		}
		out := control.HostReading{Machine: strings.TrimSpace(string(boot)), Over: int64(r.Over), CPU: r.CPU, Steal: r.Steal, Pressure: r.Pressure, Throttled: r.Throttled,
			MemoryFree: float64(r.MemoryFree), In: r.In, Out: r.Out}
		const ticksPerSecond = 100 // of /proc/PID/stat, on all of Linux's platforms
		out.Own = ticks / ticksPerSecond / r.Over.Seconds()
		if copies != nil {
			in, sent := carried.Since(copies)
			out.CopiesIn, out.CopiesOut = float64(in)/r.Over.Seconds(), float64(sent)/r.Over.Seconds()
			out.Carried = copies.Carried(r.Over)
		}
		tell(out)
		last = control.HostReading{Machine: out.Machine, Over: int64(readingEvery), CPU: out.CPU, Own: out.Own, Steal: out.Steal, Pressure: out.Pressure, MemoryFree: out.MemoryFree}
	}
}

// A flow is what is known lately of what one process sends another.
type flow struct {
	sent uint64    // bytes of messages, ever
	at   time.Time // of that
	rate float64   // of messages, over some seconds

	// Since the policy was last told: what was acknowledged, when something was not, for how long,
	// and for how much of that the program had no more to send.
	bytes      uint64
	slots      sensors.Slots
	busy, idle time.Duration
	rtt        time.Duration // the last

	network topology.Class // of the path in use
	read    time.Time      // when it last was
}

// A gathered is what the processes of one host told of the link to another since the
// policy last looked.
type gathered struct {
	size         sensors.SizeClass
	bytes        uint64
	pending      uint64
	over         map[int]time.Duration // by process
	slots        sensors.Slots
	limited, sum time.Duration // of the processes' busy time
	standing     time.Duration // as limited is
	rtt          time.Duration
	network      topology.Class // over which most of it goes
	most         uint64         // bytes of who sends most
	missed       int            // of copies: looks of the policy in which no process told of the link
}

// add adds what was seen of a path; key tells apart those that are seen at the same time.
func (g *gathered) add(key int, r path.Reading, size sensors.SizeClass, network topology.Class) {
	g.over[key] += r.Over
	g.slots.Add(r.Slots)
	g.sum += r.Busy
	if r.Limited {
		g.limited += r.Busy
	}
	if r.Standing {
		g.standing += r.Busy
	}
	g.size = max(g.size, min(size, sensors.Large))
	if r.Bytes >= g.most {
		g.most, g.network = r.Bytes, network
	}
	g.bytes += r.Bytes
	g.pending += r.Pending
	g.rtt = max(g.rtt, r.RTT)
}

// join adds what copies of snapshots took of the link: to the ranks it looks slow for as long as
// they share it. What copies do when no rank uses it does not count.
func (g *gathered) join(copies *gathered) {
	if copies == nil || copies.network != g.network || copies.bytes == 0 {
		return
	}
	g.slots.Add(copies.slots)
	g.sum, g.limited, g.standing = g.sum+copies.sum, g.limited+copies.limited, g.standing+copies.standing
	g.bytes, g.pending, g.size = g.bytes+copies.bytes, g.pending+copies.pending, sensors.Large
}

// reading is g as one.
func (g *gathered) reading(now time.Time, link sensors.Link) sensors.Reading {
	r := sensors.Reading{At: now, Link: link, Size: g.size, Bytes: g.bytes, Pending: g.pending, Limited: 2*g.limited > g.sum, Standing: 2*g.standing > g.sum, RTT: g.rtt}
	for _, over := range g.over {
		r.Over = max(r.Over, over)
	}
	r.Busy = min(g.slots.Time(), r.Over)
	return r
}

// A traffic is that of a host.
type traffic struct {
	movedIn, movedOut uint64 // the job's own since the last reading
	lately            [4]carriedBytes
	readings          int
	flood             hostsensor.Flood
	said              [2]uint64 // by its agent to this one, and back, ever
	unsure            time.Time // until then it is not known whose the bytes are
}

// carriedBytes is what went through a host's interfaces between two readings, and of that what the job's
// processes were told to have come and gone.
type carriedBytes struct{ seconds, in, out, ownIn, ownOut float64 }

// take returns the rates of the last readings in bytes a second: of all, and of what is not
// the job's. What is the job's is known somewhat later than that it has passed.
func (t *traffic) take(r control.HostReading, now time.Time) (in, out, foreignIn, foreignOut float64) {
	const headers, acks = 1.08, 0.03
	seconds := time.Duration(r.Over).Seconds()
	t.lately[t.readings%len(t.lately)] = carriedBytes{seconds, r.In * seconds, r.Out * seconds,
		float64(t.movedIn) + r.CopiesIn*seconds, float64(t.movedOut) + r.CopiesOut*seconds}
	t.readings++
	t.movedIn, t.movedOut = 0, 0
	var all carriedBytes
	for _, c := range t.lately {
		all.seconds += c.seconds
		all.in += c.in
		all.out += c.out
		all.ownIn += c.ownIn
		all.ownOut += c.ownOut
	}
	rate := func(bytes float64) float64 { return max(0, bytes/all.seconds) }
	if now.Before(t.unsure) {
		return rate(all.in), rate(all.out), 0, 0
	}
	return rate(all.in), rate(all.out), rate(all.in - headers*all.ownIn - acks*all.ownOut), rate(all.out - headers*all.ownOut - acks*all.ownIn)
}

// A passage is what one process has sent another, ever, by what either said.
type passage struct {
	went, came uint64
	at         time.Time // either last said
}

// passed counts what went from one process to another for both hosts, whichever end tells of it first: what a
// process that dies has not told of the others do, and what a slow link keeps from being told here it has not
// kept from the interfaces.
func (pol *policy) passed(p, q *process, went, came uint64, now time.Time) {
	if p.host == q.host {
		return
	}
	pair := [2]int{p.index, q.index}
	g := pol.passages[pair]
	if g == nil {
		g = &passage{}
		pol.passages[pair] = g
	}
	before := max(g.went, g.came)
	g.went, g.came, g.at = g.went+went, g.came+came, now
	more := max(g.went, g.came) - before
	pol.trafficOf(p.host.name).movedOut += more
	pol.trafficOf(q.host.name).movedIn += more
}

// died is told that p has: what was on its way there or from there still passes its host's interfaces, for as long as
// a round trip takes, and nobody tells of it.
func (pol *policy) died(p *process, now time.Time) {
	var rtt time.Duration
	for pair, f := range pol.flows {
		if pair[0] == p.index || pair[1] == p.index {
			rtt = max(rtt, f.rtt)
		}
	}
	t := pol.trafficOf(p.host.name)
	t.unsure = now.Add(rtt + time.Duration(len(t.lately))*readingEvery)
}

// forgetPassages forgets what nobody will tell more of.
func (a *Agent) forgetPassages(now time.Time) {
	for pair, g := range a.policy.passages {
		if p, q := a.processes[pair[0]], a.processes[pair[1]]; (p.judged || q.judged) && now.Sub(g.at) > passageKept {
			delete(a.policy.passages, pair)
		}
	}
}

// passageKept is for how long what was counted is kept after one end was lost and neither told more: what is
// told of it later still would be counted once more.
const passageKept = 10 * time.Second

// pathsRead is told what p saw of its paths.
func (a *Agent) pathsRead(p *process, paths control.Paths) {
	pol := a.policy
	if pol == nil || p.judged {
		return
	}
	now := time.Now()
	a.heard(p, paths, now)
	for _, l := range paths.Passed {
		if l.Peer >= 0 && l.Peer < len(a.processes) {
			pol.passed(p, a.processes[l.Peer], l.Out, 0, now)
			pol.passed(a.processes[l.Peer], p, 0, l.In, now)
		}
	}
	for _, l := range paths.Links {
		if l.Peer < 0 || l.Peer >= len(a.processes) || l.Over <= 0 {
			continue
		}
		q := a.processes[l.Peer]
		f := pol.flows[[2]int{p.index, q.index}]
		if f == nil {
			f = &flow{sent: l.Sent, at: now}
			pol.flows[[2]int{p.index, q.index}] = f
		}
		if passed := now.Sub(f.at).Seconds(); passed > 0.1 && l.Sent >= f.sent {
			f.rate += min(passed/2, 1) * (float64(l.Sent-f.sent)/passed - f.rate)
			f.sent, f.at = l.Sent, now
		}
		if q.host == p.host {
			continue
		}
		f.network, f.read, f.rtt = l.Class, now, l.RTT
		f.bytes += l.Bytes
		f.slots.Add(l.Slots)
		f.busy += l.Busy
		if !l.Limited {
			f.idle += l.Busy
		}
		link := sensors.Link{From: p.host.name, To: q.host.name}
		gatheredOf(pol.links, link).add(p.index<<16|q.index&0xffff, l.Reading, l.Size, l.Class)
	}
}

// gatheredOf is what is gathered of a link, from now on if nothing was.
func gatheredOf(all map[sensors.Link]*gathered, link sensors.Link) *gathered {
	g := all[link]
	if g == nil {
		g = &gathered{over: map[int]time.Duration{}}
		all[link] = g
	}
	return g
}

// copiesRead is told what copies of snapshots took of the link from h to where they go.
func (a *Agent) copiesRead(h *host, c *control.Carried) {
	if c == nil || c.Over <= 0 {
		return
	}
	to := a.hostOf(c.Agent)
	if to == nil || to == h {
		return
	}
	for _, n := range a.networksOf(to) {
		if n.Address == c.Addr {
			gatheredOf(a.policy.copies, sensors.Link{From: h.name, To: to.name}).add(0, c.Reading, sensors.Large, n.Class)
			return
		}
	}
}

// saidRead counts what h's agent and this one have said to each other: what ranks print goes that way.
func (a *Agent) saidRead(h *host) {
	r, elsewhere := h.place.(*remote)
	if !elsewhere || r.ear == nil {
		return
	}
	info := socket.Info(r.ear.NetConn())
	if info == nil {
		return
	}
	t, here := a.policy.trafficOf(h.name), a.policy.trafficOf(a.hereName())
	if info.Bytes_received < t.said[0] { // it is another connection
		t.said = [2]uint64{}
	}
	from, to := info.Bytes_received-t.said[0], max(info.Bytes_acked, t.said[1])-t.said[1]
	t.said = [2]uint64{info.Bytes_received, info.Bytes_acked}
	t.movedOut, here.movedIn = t.movedOut+from, here.movedIn+from
	t.movedIn, here.movedOut = t.movedIn+to, here.movedOut+to
}

// hostRead is told how a host does.
func (a *Agent) hostRead(h *host, r control.HostReading) {
	pol := a.policy
	if pol == nil || h.lost || r.Over <= 0 {
		return
	}
	a.copiesRead(h, r.Carried)
	a.saidRead(h)
	now := time.Now()
	t := pol.trafficOf(h.name)
	in, out, foreignIn, foreignOut := t.take(r, now)
	flooded := t.flood.Observe(time.Duration(r.Over), in, out, foreignIn, foreignOut)
	if pol.watch != nil {
		pol.watch.Host(h.name, sensors.HostState{At: now, CPU: r.CPU, Steal: r.Steal, Throttled: r.Throttled, Pressure: r.Pressure, ForeignIn: foreignIn, ForeignOut: foreignOut, Flooded: flooded})
	}
	pol.machines[h.name] = r.Machine
	pol.gmond.host(h.name, r)
	shared := pol.oneMachine(r.Machine)
	if shared { // whatever takes the cores takes them from all
		r.CPU, r.Steal = 0, 0
	}
	cores := float64(h.cores)
	a.tellPolicy(leader.HostReading{
		Host: h.name, Cores: cores, Busy: r.Own, Others: max(0, r.CPU*cores-r.Own), Steal: r.Steal * cores, Pressure: r.Pressure, Throttled: r.Throttled,
		MemoryFree: r.MemoryFree, ForeignIn: foreignIn, ForeignOut: foreignOut, Shared: shared,
	})
}

// oneMachine tells whether all hosts share their cores: containers, or the lab.
func (pol *policy) oneMachine(machine string) bool {
	for _, m := range pol.machines {
		if m == "" || m != machine {
			return false
		}
	}
	return true
}

// watchLinks gives what was gathered to the contracts, and what they find to the policy.
func (a *Agent) watchLinks(now time.Time) {
	pol := a.policy
	for link, g := range pol.links {
		g.join(pol.copies[link])
	}
	for link, g := range pol.copies { // hosts and processes do not tell at the same time
		if g.missed++; pol.links[link] != nil || g.missed > 1 {
			delete(pol.copies, link)
		}
	}
	if pol.watch == nil {
		for link, g := range pol.links {
			pol.gmond.link(g.reading(now, link))
		}
		clear(pol.links)
		return
	}
	if now.Sub(pol.promisedAt) > time.Second {
		pol.promisedAt = now
		clear(pol.promised)
		for _, s := range pol.watch.Standings(now) {
			if s.ByHand {
				s.Rate /= fineEnough // all of it is demanded
			}
			pol.promised[promiseKey{s.Link, s.Size}] = s.Rate
		}
	}
	several := a.severalNetworks()
	broken, kept := linkNews{a: a, what: "contract broken"}, linkNews{a: a, what: "contract kept again"}
	for link, g := range pol.links {
		r := g.reading(now, link)
		pol.gmond.link(r)
		l := leader.Link{From: link.From, To: link.To}
		if several {
			l.Network = g.network.String()
		}
		b, changed := pol.watch.Observe(r)
		switch promised := pol.promised[promiseKey{link, g.size}]; {
		case changed && b.Ended.IsZero():
			broken.tell(b)
			a.emitBreach(l, b, false)
			a.tellPolicy(leader.Breach{Link: l, Promised: b.Promised, Seen: b.Seen, Since: b.Since, Evidence: b.String()})
		case changed:
			kept.tell(b)
			a.emitBreach(l, b, true)
			a.tellPolicy(leader.Recovered{Link: l, Seen: b.Seen})
		case promised > 0 && r.Limited && r.Busy > 0 && float64(r.Bytes)/r.Busy.Seconds() > fineEnough*promised:
			a.tellPolicy(leader.Fine{Link: l, Seen: float64(r.Bytes) / r.Busy.Seconds()})
		}
		if b, lasts := pol.watch.Lasts(r); lasts && !changed { // the policy forgets it when no ranks are there, or other sizes do well
			a.tellPolicy(leader.Breach{Link: l, Promised: b.Promised, Seen: b.Seen, Since: b.Since, Evidence: b.String(), Lasts: true})
		}
	}
	clear(pol.links)
	broken.end()
	kept.end()
	for _, n := range pol.watch.Notes() {
		a.detail("contract %v: %v %v: %s", n.Kind, n.Link, n.Size, n.Text)
	}
}

func (a *Agent) emitBreach(l leader.Link, b sensors.Breach, ended bool) {
	a.emit(events.Event{Kind: events.LinkBreach, Text: b.String(),
		Breach: &events.Breach{From: l.From, To: l.To, Promised: b.Promised, Seen: b.Seen, Since: b.Since.UTC().Round(0), Ended: ended}})
}

// fineEnough of what was promised shows that a link is well.
const fineEnough = 0.7

// sendersKnown tells the policy what ranks send lately. What processes send each other is known, and not which of their
// ranks do: it is shared out among all of them, each with one of the other process, or with as many as there are more.
func (a *Agent) sendersKnown() {
	to := map[int][]leader.Flow{}
	for pair, f := range a.policy.flows {
		p, q := a.processes[pair[0]].ranks, a.processes[pair[1]].ranks
		if len(p) == 0 || len(q) == 0 {
			delete(a.policy.flows, pair)
			continue
		}
		n := max(len(p), len(q))
		for i := range n {
			from := p[i%len(p)]
			to[from] = append(to[from], leader.Flow{To: topology.Rank(q[i%len(q)]), Rate: f.rate / float64(n),
				Bytes: float64(f.bytes) / float64(n), Slots: f.slots, Limited: 2*f.idle > f.busy})
		}
		f.bytes, f.slots, f.busy, f.idle = 0, sensors.Slots{}, 0, 0
	}
	for rank, all := range to {
		slices.SortFunc(all, func(x, y leader.Flow) int { return int(x.To - y.To) })
		a.tellPolicy(leader.Traffic{Rank: topology.Rank(rank), To: all})
	}
}
