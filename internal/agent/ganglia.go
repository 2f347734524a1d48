package agent

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/ganglia"
	"github.com/mpiv/mpiv/topology"
)

// Readings for a site's gmond. The agent that leads reports those of all hosts, each as
// that host's own: it has them anyway, knows what links promise, and one place then says
// whether gmond hears them.

const (
	gmondFirst  = time.Second // then
	gmondEvery  = 5 * time.Second
	gmondForget = time.Minute // it does without a host of which nothing came for so long
	gmondFind   = 2 * time.Second
	gmondGroup  = "mpiv"
)

// A gmond is what is to be reported to one. Owned by loop; a nil gmond takes nothing.
type gmond struct {
	since time.Time
	hosts map[string]*averaged
	links map[promiseKey]*delivered
	out   chan []ganglia.Metric // what does not fit is not reported: more follows
}

// An averaged is the readings of a host since the last report, times how long each was of.
type averaged struct {
	over time.Duration
	sum  control.HostReading
}

// A delivered is what a link has delivered since the last report.
type delivered struct {
	bytes uint64
	busy  time.Duration
}

// prepareGmond has hosts and links read, if that is to be reported.
func (a *Agent) prepareGmond() error {
	if a.job.Ganglia == "" {
		return nil
	}
	if !a.leads() {
		return &exit.Error{Code: codeUsage, Err: fmt.Errorf("--ganglia: %w", a.unwatched())}
	}
	a.job.Options.Paths = readingEvery
	return nil
}

// beginGmond begins to report. The policy has begun.
func (a *Agent) beginGmond() {
	if a.job.Ganglia == "" {
		return
	}
	g := &gmond{since: time.Now(), hosts: map[string]*averaged{}, links: map[promiseKey]*delivered{}, out: make(chan []ganglia.Metric, 1)}
	a.policy.gmond = g
	a.wg.Go(func() {
		reportTo(a.job.Ganglia, g.out, a.done, func(err error) {
			a.post(func() {
				a.warn("--ganglia %s: %v; what is read is sent nevertheless, and this is not said again", a.job.Ganglia, err)
			})
		})
	})
}

// host takes a reading of a host.
func (g *gmond) host(name string, r control.HostReading) {
	if g == nil {
		return
	}
	h := g.hosts[name]
	if h == nil {
		h = &averaged{}
		g.hosts[name] = h
	}
	over, s := float64(r.Over), &h.sum
	h.over += time.Duration(r.Over)
	s.CPU += r.CPU * over
	s.Steal += r.Steal * over
	s.Pressure += r.Pressure * over
	s.Throttled += r.Throttled * over
	s.Own += r.Own * over
	s.In += r.In * over
	s.Out += r.Out * over
	s.MemoryFree += r.MemoryFree * over
}

// link takes a reading of a link.
func (g *gmond) link(r sensors.Reading) {
	if g == nil || r.Busy <= 0 {
		return
	}
	k := promiseKey{r.Link, r.Size}
	l := g.links[k]
	if l == nil {
		l = &delivered{}
		g.links[k] = l
	}
	l.bytes += r.Bytes
	l.busy += r.Busy
}

// tellGmond reports what was read since the last time.
func (a *Agent) tellGmond() {
	g := a.policy.gmond
	if g == nil {
		return
	}
	now := time.Now()
	var all []ganglia.Metric
	tell := func(host, name string, value float64, units string) {
		all = append(all, ganglia.Metric{Name: "mpiv_" + gmondName(name), Value: value, Units: units, Group: gmondGroup,
			Every: 2 * gmondEvery, Forget: gmondForget, Host: a.gmondHost(host)})
	}
	for _, h := range a.hosts {
		r := g.hosts[h.name]
		if r == nil || r.over <= 0 || h.lost {
			continue
		}
		over, ranks := float64(r.over), 0
		for _, i := range h.processes {
			ranks += len(a.processes[i].ranks)
		}
		tell(h.name, "ranks", float64(ranks), "ranks")
		tell(h.name, "cores", r.sum.Own/over, "cores")
		for _, s := range []struct {
			name string
			sum  float64
		}{{"cpu", r.sum.CPU}, {"steal", r.sum.Steal}, {"pressure", r.sum.Pressure}, {"throttled", r.sum.Throttled}} {
			if s.sum >= 0 { // otherwise it is not known
				tell(h.name, s.name, 100*s.sum/over, "%")
			}
		}
		tell(h.name, "in", r.sum.In/over, "bytes/sec")
		tell(h.name, "out", r.sum.Out/over, "bytes/sec")
		tell(h.name, "memory_free", r.sum.MemoryFree/over, "bytes")
	}
	for k, l := range g.links {
		to := "to_" + k.link.To + "_" + k.size.String()
		tell(k.link.From, to+"_rate", float64(l.bytes)/l.busy.Seconds(), "bytes/sec")
		tell(k.link.From, to+"_sent", float64(l.bytes)/now.Sub(g.since).Seconds(), "bytes/sec")
	}
	if a.contracts != nil {
		for _, s := range a.contracts.Standings(now) {
			if s.Rate == 0 && s.Broken.IsZero() {
				continue
			}
			to, broken := "to_"+s.Link.To+"_"+s.Size.String(), 0.
			if !s.Broken.IsZero() {
				broken = 1
			}
			tell(s.Link.From, to+"_promised", s.Rate, "bytes/sec")
			tell(s.Link.From, to+"_broken", broken, "")
		}
	}
	g.since = now
	clear(g.hosts)
	clear(g.links)
	select {
	case g.out <- all:
	default:
	}
}

// gmondHost is how gmond knows a host: by its address, so that what else it is told of that
// host stands beside this.
func (a *Agent) gmondHost(name string) string {
	address := ""
	for _, h := range a.hosts {
		if h.name != name {
			continue
		}
		for _, n := range a.networksOf(h) {
			if n.Class != topology.SameHost && address == "" && !strings.Contains(n.Address, ":") { // IPv6 has colons, as what is between the two
				address = n.Address
			}
		}
	}
	name = gmondName(name)
	return cmp.Or(address, name) + ":" + name
}

// gmondName is text without what is special to gmond or in the name of a file.
func gmondName(text string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' {
			return c
		}
		return '_'
	}, text)
}

// reportTo sends what comes to the gmond at addr, until done. Tell is told of the first error.
func reportTo(addr string, in <-chan []ganglia.Metric, done <-chan struct{}, tell func(error)) {
	var to *ganglia.Reporter
	defer func() {
		if to != nil {
			to.Close()
		}
	}()
	said := false
	for {
		var all []ganglia.Metric
		select {
		case all = <-in:
		case <-done:
			return
		}
		var err error
		if to == nil {
			ctx, stop := context.WithTimeout(context.Background(), gmondFind)
			to, err = ganglia.Dial(ctx, addr)
			stop()
		}
		if err == nil {
			for _, m := range all { // an error may be of what was sent before
				err = cmp.Or(err, to.Report(time.Now(), m))
			}
		}
		if err != nil && !said {
			said = true
			tell(err)
		}
	}
}
