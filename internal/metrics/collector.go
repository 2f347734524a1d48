// Package metrics serves what an agent knows of a job to Prometheus.
package metrics

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/sensors"
)

// A Snapshot is what there is to tell at a scrape.
type Snapshot struct {
	Processes map[int]*events.Reading // of this host; nil: it did not answer
	Refused   uint64                  // connections, by this agent
	Cut       uint64                  // subscribers
	State     *Standing               // of the job, where this agent leads it; else nil
	Contracts []sensors.Standing      // of the links between its hosts, there too
}

// A Standing is how the whole job stands.
type Standing struct {
	Began                        time.Time
	Ranks, Finished, Hosts, Lost int
	Suspected, Proven            bool // a deadlock is
}

// StandingOf is how the job stands by its events.
func StandingOf(s *events.State) *Standing {
	if s.Job == nil {
		return nil
	}
	t := &Standing{Began: s.Began, Ranks: s.Job.Ranks, Finished: s.FinishedRanks(), Hosts: len(s.Hosts)}
	for _, h := range s.Hosts {
		if h.Lost {
			t.Lost++
		}
	}
	if s.Deadlock != nil {
		t.Proven = s.Deadlock.Kind == events.DeadlockProven
		t.Suspected = !t.Proven
	}
	return t
}

// scrapeTime is what the processes have to answer. One that does not is not up.
const scrapeTime = 500 * time.Millisecond

// A Collector reads at each scrape, and keeps nothing between.
type Collector struct {
	read  func(context.Context) Snapshot
	descs map[string]desc
}

// NewCollector makes one that calls read, which ends soon after its context, for
// each scrape.
func NewCollector(read func(context.Context) Snapshot) *Collector {
	return &Collector{read: read, descs: descs()}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d.Desc
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), scrapeTime)
	defer stop()
	s := c.read(ctx)
	tell := func(name string, v float64, labels ...string) {
		d, ok := c.descs[name]
		if !ok {
			panic("metrics: " + name + " is not in the table")
		}
		ch <- prometheus.MustNewConstMetric(d.Desc, d.kind, v, labels...)
	}
	tell("mpiv_agent_refused_peers_total", float64(s.Refused))
	for i, r := range s.Processes {
		process := strconv.Itoa(i)
		if r == nil {
			tell("mpiv_process_up", 0, process)
			continue
		}
		tell("mpiv_process_up", 1, process)
		collectProcess(tell, process, r)
	}
	if t := s.State; t != nil {
		tell("mpiv_agent_subscribers_cut_total", float64(s.Cut))
		tell("mpiv_job_start_time_seconds", float64(t.Began.UnixMilli())/1e3)
		tell("mpiv_job_ranks", float64(t.Ranks))
		tell("mpiv_job_finished_ranks", float64(t.Finished))
		tell("mpiv_job_hosts", float64(t.Hosts))
		tell("mpiv_job_lost_hosts", float64(t.Lost))
		tell("mpiv_job_deadlock", truth(t.Suspected), "suspected")
		tell("mpiv_job_deadlock", truth(t.Proven), "proven")
	}
	for _, c := range s.Contracts {
		if c.Rate == 0 && c.Breaches == 0 {
			continue // it is learned
		}
		link := []string{c.Link.From, c.Link.To, c.Size.String()}
		if c.Rate > 0 { // otherwise it hung before
			tell("mpiv_contract_promised_bytes_per_second", c.Rate, link...)
		}
		if !c.SeenAt.IsZero() {
			tell("mpiv_contract_delivered_bytes_per_second", c.Seen, link...)
		}
		tell("mpiv_contract_broken", truth(!c.Broken.IsZero()), link...)
		tell("mpiv_contract_breaches_total", float64(c.Breaches), link...)
	}
}

func collectProcess(tell func(string, float64, ...string), process string, r *events.Reading) {
	tell("mpiv_process_uptime_seconds", seconds(r.Up), process)
	tell("mpiv_process_heap_bytes", float64(r.Heap), process)
	tell("mpiv_process_goroutines", float64(r.Goroutines), process)
	tell("mpiv_process_parked_goroutines", float64(r.Parked), process)
	tell("mpiv_process_refused_peers_total", float64(r.Strangers), process)
	for _, k := range r.Ranks {
		rank := strconv.Itoa(k.Rank)
		tell("mpiv_rank_sent_messages_total", float64(k.Sent), process, rank)
		tell("mpiv_rank_received_messages_total", float64(k.Received), process, rank)
		tell("mpiv_rank_wait_seconds", seconds(k.Waits), process, rank)
	}
	for _, l := range r.Links {
		peer := strconv.Itoa(l.Peer)
		tell("mpiv_link_sent_messages_total", float64(l.SentMessages), process, peer)
		tell("mpiv_link_sent_bytes_total", float64(l.SentBytes), process, peer)
		tell("mpiv_link_received_messages_total", float64(l.ReceivedMessages), process, peer)
		tell("mpiv_link_received_bytes_total", float64(l.ReceivedBytes), process, peer)
		tell("mpiv_link_resent_messages_total", float64(l.Resent), process, peer)
		tell("mpiv_link_path_switches_total", float64(l.Switches), process, peer)
		tell("mpiv_link_queued_messages", float64(l.Queued), process, peer)
		tell("mpiv_link_log_bytes", float64(l.Log), process, peer)
		tell("mpiv_link_unexpected_bytes", float64(l.Unexpected), process, peer)
		if l.Network == "" {
			continue
		}
		path := []string{process, peer, l.Network, l.Class}
		tell("mpiv_link_path_info", 1, path...)
		tell("mpiv_link_retransmitted_segments_total", float64(l.Retransmits), path...)
		if l.RTT > 0 {
			tell("mpiv_link_round_trip_seconds", seconds(l.RTT), path...)
		}
		if l.Rate > 0 {
			tell("mpiv_link_delivery_rate_bytes_per_second", l.Rate, path...)
		}
	}
}

func seconds(ns int64) float64 { return time.Duration(ns).Seconds() }

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
