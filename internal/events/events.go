// Package events is what happens in a job, as one stream that all views read:
// lines of JSON, of which State is the fold. Nothing here does I/O, and time is
// in the events.
package events

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/leader"
)

// Version is that of the schema. A field may be added within a version: who reads the
// lines with other means than Parse ignores what it does not know.
const Version = 1

// A Kind is what an event tells of.
type Kind string

// The kinds. Kinds tells more of each.
const (
	JobStarted        Kind = "job-started"
	HostJoined        Kind = "host-joined"
	HostLost          Kind = "host-lost"
	ProcessStarted    Kind = "process-started"
	ProcessHello      Kind = "process-hello"
	ProcessReady      Kind = "process-ready"
	AllReady          Kind = "all-ready"
	RankFinished      Kind = "rank-finished"
	RankFailed        Kind = "rank-failed"
	RankMoved         Kind = "rank-moved"
	RankStayed        Kind = "rank-stayed"
	RankArrived       Kind = "rank-arrived"
	ProcessAdded      Kind = "process-added"
	ProcessExited     Kind = "process-exited"
	LinkPath          Kind = "link-path"
	StrangerRefused   Kind = "stranger-refused"
	DeadlockSuspected Kind = "deadlock-suspected"
	DeadlockProven    Kind = "deadlock-proven"
	DeadlockOver      Kind = "deadlock-over"
	SignalPassed      Kind = "signal-passed"
	FaultOrdered      Kind = "fault"
	JobVerdict        Kind = "verdict"
	JobEnded          Kind = "job-ended"
	ProcessReading    Kind = "reading"
	Decided           Kind = "decision"
	LinkBreach        Kind = "breach"
	HostsCut          Kind = "cut"
	StreamCut         Kind = "stream-cut"
)

// A Description says what events of a kind mean, and what they always have.
type Description struct {
	Kind                Kind
	Means               string
	Host, Process, Rank bool   // these are set
	Payload             string // the JSON name of the field that is set; empty: none
}

// Kinds is every kind, in the order in which a job has them.
var Kinds = []Description{
	{Kind: JobStarted, Means: "the job begins, at `job.began`; first of all events, and of those of each agent that leads later", Payload: "job"},
	{Kind: HostJoined, Means: "the agent of a host is there", Host: true, Payload: "agent"},
	{Kind: HostLost, Means: "the agent of a host has ended, or cannot be reached; text says which", Host: true},
	{Kind: ProcessStarted, Means: "a process runs", Host: true, Process: true, Payload: "started"},
	{Kind: ProcessHello, Means: "it has called mpiv.Main", Host: true, Process: true},
	{Kind: ProcessReady, Means: "others can reach it", Host: true, Process: true},
	{Kind: AllReady, Means: "all can be reached; ranks start"},
	{Kind: RankFinished, Means: "a rank has returned without an error", Host: true, Process: true, Rank: true},
	{Kind: RankFailed, Means: "a rank has failed; text is its error or, at level `report`, how its process was lost", Host: true, Process: true, Rank: true, Payload: "failed"},
	{Kind: RankMoved, Means: "a rank is in this process from now on; text says why", Host: true, Process: true, Rank: true, Payload: "moved"},
	{Kind: RankArrived, Means: "a rank that moved has its state and goes on; one that was lost before its first snapshot has begun anew, with 0 bytes of it", Host: true, Process: true, Rank: true, Payload: "arrived"},
	{Kind: RankStayed, Means: "a rank was to move and has not; text says why", Host: true, Process: true, Rank: true},
	{Kind: ProcessAdded, Means: "a spare process was started in place of one that is used or was lost", Host: true, Process: true},
	{Kind: ProcessExited, Means: "a process has ended; text says how", Host: true, Process: true, Payload: "exited"},
	{Kind: LinkPath, Means: "the path in use from a process to another is this one now; seen while somebody watches", Host: true, Process: true, Payload: "path"},
	{Kind: StrangerRefused, Means: "connections were refused; text is the reason of the last. At most one each second for each host and process", Host: true, Payload: "refused"},
	{Kind: DeadlockSuspected, Means: "ranks wait for each other, and only a timer or a signal could free them; text explains"},
	{Kind: DeadlockProven, Means: "ranks wait for each other in vain; text explains"},
	{Kind: DeadlockOver, Means: "the ranks of the last such go on: a timer or a signal has freed them"},
	{Kind: SignalPassed, Means: "a signal was passed on to all processes; text is its name", Payload: "signal"},
	{Kind: FaultOrdered, Means: "a fault of --chaos has begun or ended, could not be done, or came too late; text says which. Host, process and rank are set where it was done to a rank", Payload: "fault"},
	{Kind: JobVerdict, Means: "why the job ends; text says it, and is empty where nothing failed", Payload: "verdict"},
	{Kind: JobEnded, Means: "all processes have ended; last of all events", Payload: "ended"},
	{Kind: ProcessReading, Means: "what a process counts; each second while somebody watches", Host: true, Process: true, Payload: "reading"},
	{Kind: Decided, Means: "what the policy saw, whom it blames, what could be done and what is; again, with the same `id`, when a plan of it has ended, and when it was `measured` what it has brought", Payload: "decision"},
	{Kind: LinkBreach, Means: "a link between hosts delivers less than its contract promises, or, with `ended`, what it promises again; text says it", Payload: "breach"},
	{Kind: HostsCut, Means: "two hosts have something to send each other and do not reach each other, though each is reached by the one that leads, or do again; text says it"},
	{Kind: StreamCut, Means: "this subscriber was too slow and hears no more; text says so. Its number is that of the last event before"},
}

// An Event is one thing that happened. Numbers are those of the job: processes and
// ranks count from 0.
type Event struct {
	V    int       `json:"v"`   // Version
	Seq  uint64    `json:"seq"` // of the job's events, from 1. A stream that begins late has gaps
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`

	Host    string `json:"host,omitempty"`
	Process *int   `json:"process,omitempty"`
	Rank    *int   `json:"rank,omitempty"`
	Text    string `json:"text,omitempty"` // a sentence for people, or several lines

	Job     *Job     `json:"job,omitempty"`
	Agent   *Agent   `json:"agent,omitempty"`
	Started *Started `json:"started,omitempty"`
	Exited  *Exited  `json:"exited,omitempty"`
	Failed  *Failed  `json:"failed,omitempty"`
	Moved   *Moved   `json:"moved,omitempty"`
	Arrived *Arrived `json:"arrived,omitempty"`
	Path    *Path    `json:"path,omitempty"`
	Refused *Refused `json:"refused,omitempty"`
	Signal  *Signal  `json:"signal,omitempty"`
	Fault   *Fault   `json:"fault,omitempty"`
	Verdict *Verdict `json:"verdict,omitempty"`
	Ended   *Ended   `json:"ended,omitempty"`
	Reading *Reading `json:"reading,omitempty"`

	Decision *leader.Record `json:"decision,omitempty"`
	Breach   *Breach        `json:"breach,omitempty"`
}

// A Job is what runs, and where.
type Job struct {
	Name      string    `json:"name"`
	Began     time.Time `json:"began"`    // also told by an agent that leads later
	Host      string    `json:"host"`     // of the first agent
	PID       int       `json:"pid"`      // of the first agent
	Programs  []string  `json:"programs"` // command lines
	Ranks     int       `json:"ranks"`
	Hosts     []string  `json:"hosts"`
	Processes []Placed  `json:"processes"` // by index
}

// A Placed is a process of the job, and where it is.
type Placed struct {
	Host  string `json:"host"`
	Ranks []int  `json:"ranks"`
}

// An Agent has joined.
type Agent struct {
	PID     int    `json:"pid"`
	Cores   int    `json:"cores"`
	Address string `json:"address,omitempty"` // from which it came; empty: it is the first
}

// Started: a process runs.
type Started struct {
	PID int `json:"pid"`
}

// Exited says how a process ended.
type Exited struct {
	Code   int `json:"code"`             // as a shell gives it; -1: it is not known
	Signal int `json:"signal,omitempty"` // that killed it
}

// Failed says how a rank failed.
type Failed struct {
	Code int `json:"code"` // for the exit of mpivrun
}

// Moved says where a rank was.
type Moved struct {
	From  int    `json:"from"`           // process
	Epoch uint32 `json:"epoch"`          // of the map by which it is here
	Lost  bool   `json:"lost,omitempty"` // that process is no more: the rank goes on from its last snapshot

	Snapshot uint64 `json:"snapshot,omitempty"` // that one's number, if it was lost. 0: it begins anew
}

// Origin is what a rank that was lost goes on from.
func (m Moved) Origin() string {
	if m.Snapshot == 0 {
		return "from the beginning"
	}
	return fmt.Sprintf("from snapshot %d", m.Snapshot)
}

// A Breach is of the contract of a link.
type Breach struct {
	From     string    `json:"from"` // host
	To       string    `json:"to"`
	Promised float64   `json:"promised"` // bytes a second
	Seen     float64   `json:"seen"`
	Since    time.Time `json:"since,omitzero"`
	Ended    bool      `json:"ended,omitempty"`
}

// Arrived says what came with a rank.
type Arrived struct {
	Bytes int64 `json:"bytes"`           // of its state
	Stood int64 `json:"stood,omitempty"` // ns in which it did not run, from its safe point on
}

// A Path is over what a process talks to another.
type Path struct {
	Peer     int       `json:"peer"`              // the other process
	Class    string    `json:"class,omitempty"`   // "host", "lan"; empty: none is in use
	Network  string    `json:"network,omitempty"` // "shm", "tcp"
	Local    string    `json:"local,omitempty"`   // address
	Remote   string    `json:"remote,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	Why      string    `json:"why,omitempty"`      // it is in use: a sentence
	Switches int       `json:"switches,omitempty"` // from one path to another so far
}

// Refused counts connections.
type Refused struct {
	Total uint64 `json:"total"` // so far, of that process, or of the agent of that host
}

// A Signal was passed on.
type Signal struct {
	Number int `json:"number"`
}

// A Fault was ordered by --chaos.
type Fault struct {
	Fault string `json:"fault"`         // as in the schedule: "kill 2@5s"
	Step  string `json:"step"`          // "begun", "ended", "refused" or "missed"
	PID   int    `json:"pid,omitempty"` // of the process that it was done to
}

// A Verdict is why a job ends.
type Verdict struct {
	Code int `json:"code"` // exit code of mpivrun
}

// Ended: the job has.
type Ended struct {
	Code  int   `json:"code"`
	Lived int64 `json:"lived_ns"`
}

// A Reading is what a process counts. Counts grow from its start.
type Reading struct {
	Up         int64         `json:"up_ns"` // how long the process has run: rates are differences divided by differences of this
	Heap       uint64        `json:"heap_bytes"`
	Goroutines int           `json:"goroutines"`
	Parked     int           `json:"parked"`    // goroutines that sleep until a message comes
	Strangers  uint64        `json:"strangers"` // connections that were refused
	Ranks      []RankReading `json:"ranks,omitempty"`
	Links      []LinkReading `json:"links,omitempty"` // to processes that this one has talked to
}

// A RankReading is what a rank does, and has done.
type RankReading struct {
	Rank     int    `json:"rank"`
	State    string `json:"state"`           // "running", "waiting" or "finished"
	Op       string `json:"op,omitempty"`    // the call that it is in
	Where    string `json:"where,omitempty"` // "file.go:12", the line of the program that called it
	For      string `json:"for,omitempty"`   // "for a message from rank 0, tag 5, on world"
	Waits    int64  `json:"waits_ns,omitempty"`
	Sent     uint64 `json:"sent"` // messages, to ranks of this process too
	Received uint64 `json:"received"`
}

// A LinkReading is how a process talks to another.
type LinkReading struct {
	Path
	RTT              int64       `json:"rtt_ns,omitempty"`           // 0: not known
	Rate             float64     `json:"rate,omitempty"`             // bytes a second that the path delivers; 0: not known
	SentMessages     uint64      `json:"sent_messages"`              // of the program
	SentBytes        uint64      `json:"sent_bytes"`                 // of their bodies
	ReceivedMessages uint64      `json:"received_messages"`          //
	ReceivedBytes    uint64      `json:"received_bytes"`             //
	Resent           uint64      `json:"resent,omitempty"`           // messages that went to another connection again, since one broke or was left
	Retransmits      uint64      `json:"retransmits,omitempty"`      // segments that the network sent again, on the connection in use
	Queued           int         `json:"queued,omitempty"`           // messages that wait to be sent
	Log              int         `json:"log_bytes,omitempty"`        // of messages that the other has not acknowledged
	Unexpected       int64       `json:"unexpected_bytes,omitempty"` // bytes of messages that are here and that no one has received
	Candidates       []Candidate `json:"candidates,omitempty"`       // paths, best class first
}

// A Candidate is a path that could be used.
type Candidate struct {
	Class   string  `json:"class"`
	Network string  `json:"network"`
	Local   string  `json:"local,omitempty"`
	Remote  string  `json:"remote,omitempty"`
	State   string  `json:"state"` // "in use", "idle", "dead since 2s (connection refused)"
	RTT     int64   `json:"rtt_ns,omitempty"`
	Rate    float64 `json:"rate,omitempty"`
}
