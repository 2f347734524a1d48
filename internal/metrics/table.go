package metrics

import "github.com/prometheus/client_golang/prometheus"

// A Metric is one that agents serve, for the documentation too.
type Metric struct {
	Name   string
	Type   string // "counter" or "gauge"
	Labels []string
	Means  string
}

// Every metric has these labels too. They are not called job and instance, which
// Prometheus sets itself.
var always = []string{"mpiv_job", "host"}

var (
	ofProcess = []string{"process"}
	ofRank    = []string{"process", "rank"}
	ofLink    = []string{"process", "peer"}
	ofHosts   = []string{"from", "to", "size"}
	ofPath    = []string{"process", "peer", "network", "class"}
)

// Table is every metric of mpiv, without Go's own of the agent.
var Table = []Metric{
	{"mpiv_process_up", "gauge", ofProcess, "1 if the process has answered this scrape, 0 if it has not: it has not started, has ended, is stopped or starved, or is no mpiv program."},
	{"mpiv_process_uptime_seconds", "gauge", ofProcess, "How long the process has been part of the job."},
	{"mpiv_process_heap_bytes", "gauge", ofProcess, "Memory of the process in objects of Go's heap."},
	{"mpiv_process_goroutines", "gauge", ofProcess, "Goroutines of the process."},
	{"mpiv_process_parked_goroutines", "gauge", ofProcess, "Goroutines of the process that sleep until a message comes."},
	{"mpiv_process_refused_peers_total", "counter", ofProcess, "Connections that the process refused, since they could not show that they are of the job."},
	{"mpiv_rank_sent_messages_total", "counter", ofRank, "Messages that the rank has sent, to ranks of its own process too."},
	{"mpiv_rank_received_messages_total", "counter", ofRank, "Messages that have come for the rank, from ranks of its own process too."},
	{"mpiv_rank_wait_seconds", "gauge", ofRank, "How long the rank has been in the call that it waits in, 0 if it does not wait."},
	{"mpiv_link_sent_messages_total", "counter", ofLink, "Messages of the program to the other process."},
	{"mpiv_link_sent_bytes_total", "counter", ofLink, "Bytes of their bodies."},
	{"mpiv_link_received_messages_total", "counter", ofLink, "Messages of the program from the other process."},
	{"mpiv_link_received_bytes_total", "counter", ofLink, "Bytes of their bodies."},
	{"mpiv_link_resent_messages_total", "counter", ofLink, "Messages that went to another connection again, since one broke or was left."},
	{"mpiv_link_path_switches_total", "counter", ofLink, "How often the link went from one path to another."},
	{"mpiv_link_queued_messages", "gauge", ofLink, "Messages that wait to be sent."},
	{"mpiv_link_log_bytes", "gauge", ofLink, "Messages in the log: sent, and not acknowledged by the other process."},
	{"mpiv_link_unexpected_bytes", "gauge", ofLink, "Messages that have come over the link and that no rank has received."},
	{"mpiv_link_path_info", "gauge", ofPath, "1 for the path in use."},
	{"mpiv_link_round_trip_seconds", "gauge", ofPath, "Round trip of the path in use, smoothed, where it is known."},
	{"mpiv_link_delivery_rate_bytes_per_second", "gauge", ofPath, "What the path in use has been seen to deliver, where it is known."},
	{"mpiv_link_retransmitted_segments_total", "counter", ofPath, "Segments that the network sent again, on the connection in use."},
	{"mpiv_agent_refused_peers_total", "counter", nil, "Connections that the agent refused."},
	{"mpiv_agent_subscribers_cut_total", "counter", nil, "Readers of the events that were too slow. Of the agent that leads the job."},
	{"mpiv_job_start_time_seconds", "gauge", nil, "When the job began, in Unix time. Of the agent that leads the job."},
	{"mpiv_job_ranks", "gauge", nil, "Ranks of the job. Of the agent that leads the job."},
	{"mpiv_job_finished_ranks", "gauge", nil, "Those that have finished. Of the agent that leads the job."},
	{"mpiv_job_hosts", "gauge", nil, "Hosts of the job. Of the agent that leads the job."},
	{"mpiv_job_lost_hosts", "gauge", nil, "Those whose agent has ended or cannot be reached. Of the agent that leads the job."},
	{"mpiv_job_deadlock", "gauge", []string{"certainty"}, "1 while ranks are suspected, or proven, to wait for each other in vain. Of the agent that leads the job."},
	{"mpiv_contract_promised_bytes_per_second", "gauge", ofHosts, "What the link between two hosts promises for messages of that size class, learned or by --contract. Of the agent that leads the job."},
	{"mpiv_contract_delivered_bytes_per_second", "gauge", ofHosts, "What it has delivered when it last was the limit. Of the agent that leads the job."},
	{"mpiv_contract_broken", "gauge", ofHosts, "1 while it delivers less than is tolerated. Of the agent that leads the job."},
	{"mpiv_contract_breaches_total", "counter", ofHosts, "How often it began to. Of the agent that leads the job."},
}

// descs is the table for Prometheus, with the type of each.
type desc struct {
	*prometheus.Desc
	kind prometheus.ValueType
}

func descs() map[string]desc {
	all := map[string]desc{}
	for _, m := range Table {
		kind := prometheus.GaugeValue
		if m.Type == "counter" {
			kind = prometheus.CounterValue
		}
		all[m.Name] = desc{prometheus.NewDesc(m.Name, m.Means, m.Labels, nil), kind}
	}
	return all
}
