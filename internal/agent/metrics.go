package agent

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/metrics"
)

// serveMetrics serves those of this host, and of the job, if they are wanted.
func (a *Agent) serveMetrics() (err error) {
	if err := a.noTargets(); err != nil {
		return err
	}
	if a.job.Metrics != "" {
		a.metrics, err = metrics.Serve(a.job.Metrics, a.job.Name, a.hereName(), metrics.NewCollector(a.snapshot))
	}
	return err
}

// noTargets says in the file that there is nothing to scrape, if one is wanted.
func (a *Agent) noTargets() error {
	if a.job.Targets == "" {
		return nil
	}
	return metrics.WriteTargets(a.job.Targets, nil)
}

// snapshot is what there is to tell now.
func (a *Agent) snapshot(ctx context.Context) metrics.Snapshot {
	s := a.jobMetrics(ctx)
	s.Processes = a.crew.Scrape(ctx)
	return s
}

// jobMetrics is what who leads the job has to tell of it.
func (a *Agent) jobMetrics(ctx context.Context) metrics.Snapshot {
	reply := make(chan metrics.Snapshot, 1)
	ask := func() {
		s := metrics.Snapshot{State: metrics.StandingOf(&a.news.state), Cut: a.news.cuts}
		if a.contracts != nil {
			s.Contracts = a.contracts.Standings(time.Now())
		}
		if r := a.news.refusals[a.hereName()]; r != nil {
			s.Refused = r.total
		}
		reply <- s
	}
	var s metrics.Snapshot
	select {
	case a.events <- ask:
		select {
		case s = <-reply:
		case <-ctx.Done():
		case <-a.done:
		}
	case <-ctx.Done():
	case <-a.done:
	}
	return s
}

// measured is told where the metrics of a host are served.
func (a *Agent) measured(host string, at netip.AddrPort) {
	ip := at.Addr().Unmap()
	name := ip.String()
	if ip.IsUnspecified() {
		_, after, with := strings.Cut(host, "@")
		if name = host; with {
			name = after
		}
	}
	target := net.JoinHostPort(name, strconv.Itoa(int(at.Port())))
	if _, port, _ := net.SplitHostPort(a.job.Metrics); port == "0" {
		a.warn("metrics of host %s: http://%s/metrics", host, target)
	} else {
		a.detail("metrics of host %s: http://%s/metrics", host, target)
	}
	a.news.targets = append(a.news.targets, target)
	if a.job.Targets == "" {
		return
	}
	if err := metrics.WriteTargets(a.job.Targets, a.news.targets); err != nil {
		a.warn("%v", err)
	}
}

// measuredElsewhere is told where the agent of h serves metrics, or why it does not.
func (a *Agent) measuredElsewhere(h *host, m control.Metrics) {
	at, err := netip.ParseAddrPort(m.Addr)
	switch {
	case m.Error != "" || err != nil:
		a.warn("host %s serves no metrics: %s", h.name, printable(m.Error))
	case at.Addr().Unmap().IsLoopback():
		a.warn("host %s serves metrics to itself only, at %v", h.name, at)
	default:
		a.measured(h.name, at)
	}
}

// endMetrics serves no more.
func (a *Agent) endMetrics() {
	if a.metrics != nil {
		a.metrics.Close()
	}
	if err := a.noTargets(); err != nil {
		a.warn("%v", err)
	}
}

// serveMetrics serves those of this host, and of the job where its head is here, and tells where.
func (d *deputy) serveMetrics(addr string) {
	c := d.crew
	read := func(ctx context.Context) (s metrics.Snapshot) {
		if a := d.office.head(); a != nil {
			s = a.jobMetrics(ctx)
		}
		s.Refused, s.Processes = d.strangers.Load(), c.Scrape(ctx)
		return s
	}
	var told control.Metrics
	s, err := metrics.Serve(addr, d.boot.Job, d.boot.Host, metrics.NewCollector(read))
	if err != nil {
		told.Error = err.Error()
	} else {
		d.metrics, told.Addr = s, s.Addr().String()
	}
	d.say(control.FromAgent{Metrics: &told})
}
