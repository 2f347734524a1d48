// Package control is what an agent and the processes it started say to each
// other, as lines of JSON over a Unix socket in the job's directory (mode 0700).
//
// A process dials the socket named by EnvSocket and says Hello; the agent says
// Welcome; the process, when others can reach it, Ready; and the agent, when all
// processes are, Start to each. After that either speaks when it has something
// to say; when all ranks have Finished, the agent ends the job with a Stop
// without a reason. The end of the connection is the end of the process, or of
// the job.
//
// What the agents of several hosts say to each other is in agents.go.
package control

import (
	"fmt"
	"time"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/topology"
)

// The environment that an agent gives a process. A program without it is a
// world of one rank.
const (
	EnvSocket  = "MPIV_SOCKET"  // path of the agent's Unix socket
	EnvProcess = "MPIV_PROCESS" // index of the process in the job
)

// BlankFile is where in the job's directory a process without ranks has the file ready that one will need.
func BlankFile(process int) string { return fmt.Sprintf("blank-%d", process) }

// Version is that of the protocol, equal at both ends.
const Version = 11

// A Message is one line. Exactly one field is set.
type Message struct {
	// From a process to its agent.
	Hello    *Hello    `json:",omitempty"`
	Ready    *Ready    `json:",omitempty"`
	Finished *Finished `json:",omitempty"`
	Failed   *Failed   `json:",omitempty"`
	Report   *Report   `json:",omitempty"`
	Saved    *Saved    `json:",omitempty"`
	Arrived  *Arrived  `json:",omitempty"`
	Stayed   *Stayed   `json:",omitempty"`
	Pong     *Ping     `json:",omitempty"`
	Lost     *Lost     `json:",omitempty"`
	Cut      *Cut      `json:",omitempty"`
	Behind   *Behind   `json:",omitempty"`
	Paths    *Paths    `json:",omitempty"`
	Traced   *Traced   `json:",omitempty"`
	Call     *Call     `json:",omitempty"` // and back

	// From an agent to a process.
	Welcome *Welcome `json:",omitempty"`
	Start   *Start   `json:",omitempty"`
	Ask     *Ask     `json:",omitempty"`
	Watch   *Watch   `json:",omitempty"`
	Meet    *Meet    `json:",omitempty"`
	Place   *Place   `json:",omitempty"`
	Adopt   *Adopt   `json:",omitempty"`
	Depart  *Depart  `json:",omitempty"`
	Covered *Covered `json:",omitempty"`
	Dead    *Dead    `json:",omitempty"`
	Stop    *Stop    `json:",omitempty"`
	Ping    *Ping    `json:",omitempty"`
	Trace   *Trace   `json:",omitempty"`
	Avoid   *Avoid   `json:",omitempty"`
}

// Hello is the first of a process: who it is.
type Hello struct {
	Version int
	Process int
	PID     int
}

// Welcome is the first of an agent: what a process needs before others can
// reach it.
type Welcome struct {
	Token       []byte                // 16 bytes that all processes of the job share and no stranger knows
	Credentials *identity.Credentials `json:",omitempty"` // who this process is; nil: processes do not ask each other
	Networks    []Network             // of the host, best first. None: the loopback alone
	Options     Options
}

// A Network that a host has.
type Network struct {
	Class   topology.Class
	Address string // of the host there: an IP address
}

// An Addr is where others reach a process over one of its networks.
type Addr struct {
	Class topology.Class
	Addr  string // a transport.Addr
}

// Ready: others can reach the process.
type Ready struct {
	Addrs []Addr // where
}

// Start tells a process what it is.
type Start struct {
	Processes []Process // all of the job, by index
	Ranked    int       // how many of them, the first, had ranks when the job began
	Room      int       // how many more there may come to be
	Epoch     uint32    // of the map that Processes is
	Trace     *Trace    `json:",omitempty"` // nil: nothing is recorded
	Copied    bool      `json:",omitempty"` // a snapshot covers what others keep only when the agent says Covered
}

// A Process of the job.
type Process struct {
	Host  string
	Cores int    // of that host, whatever the process is bound to
	Ranks []int  // ascending
	Addrs []Addr // as it said when it was Ready

	// Router is what others see in place of its host, which is behind an address translation: they may not reach it
	// at Addrs. Empty: it is behind none.
	Router string `json:",omitempty"`
}

// Options of the job that processes must agree on. Zero values are defaults.
type Options struct {
	Survive    string        // "none", "moves", "crashes" or "report". "" means "moves".
	Snapshot   time.Duration // at level "crashes": how often each rank saves its state. 0 means every 2 s.
	Transports []string      // allowed, best first: "shm", "tcp", "quic". None means all that need not be asked for.
	Relays     []string      `json:",omitempty"` // of a host behind an address translation: processes that networks which can go through them
	LogBytes   int           // bound of the log for each pair of processes. 0 means 16 MiB.
	LogDisk    int64         // at level "crashes": bound of what each process puts of it on disk. 0 means 4 GiB.
	Ready      int64         // bytes that a process without ranks holds ready for the state of one that comes
	Check      bool          // costly checks of the program: buffers changed while a request is pending
	Insecure   bool          // processes of different hosts neither ask who the other is, nor encrypt
	Paths      time.Duration // how often processes tell of their paths. 0: they do not
}

// Finished: these ranks have returned from run without an error.
type Finished struct {
	Ranks []int
	// Reports are the last of these ranks, with their counts. Only then can who
	// still waits for one of them be told that it waits in vain.
	Reports []RankReport `json:",omitempty"`
}

// Failed: a rank returned an error, panicked or called Abort. The job ends.
type Failed struct {
	Rank  int
	Code  int          // for the exit of mpivrun; never 0
	Error string       // one or more lines, for people
	Lost  *int         `json:",omitempty"` // it failed because it has lost this process,
	Ended []RankReport `json:",omitempty"` // which ended these waits of its ranks
	Told  bool         `json:",omitempty"` // it failed because another rank, of which is still to be heard, has
}

// Lost: at level "report" the process cannot reach another, though it tried. That is
// dead, or will be declared so.
type Lost struct {
	Process int
	Error   string
}

// Behind: messages wait until a process, this one or another, has heard of the maps that
// there are.
type Behind struct{ Process int }

// Call: it may be that the process cannot be reached from here, and it is to make the connection. To a process: that it
// is to make the one to that process.
type Call struct{ Process int }

// Cut: for so long nothing has got to another process, and now its host does not answer. It
// is said again as long as that lasts.
type Cut struct {
	Process int // one of those on that host
	For     time.Duration
	Error   string
}

// Dead: at level "report" these processes, and their ranks, have failed. Nothing of
// them is to be accepted from now on.
type Dead struct{ Processes []int }

// Ask wants a Report with this ID. A process also reports unasked (ID 0) when
// none of its ranks has made progress for a while.
type Ask struct{ ID uint64 }

// Watch wants a Report with this ID and a Reading: now, and again and again if
// Every is not zero, until there is another Watch with the same ID. While nobody
// watches a process takes no readings.
type Watch struct {
	ID    uint64
	Every time.Duration `json:",omitempty"`
}

// Meet: there is another process.
type Meet struct {
	Index   int
	Process Process
}

// Place is the map of that epoch: what is not where it was in the one before.
type Place struct {
	Epoch uint32
	Ranks []Placement `json:",omitempty"`
	Lost  []int       `json:",omitempty"` // processes that are no more, and are refused from now on
}

// A Placement says which process has a rank.
type Placement struct{ Rank, Process int }

// Adopt has the process take a rank whose process was lost, by the map of that
// epoch, from its last snapshot.
type Adopt struct {
	Rank     int
	Epoch    uint32
	Snapshot string   `json:",omitempty"` // the file. Empty: there was none, and the rank begins again
	Number   uint64   `json:",omitempty"` // of the snapshot in it, or of one before: others may have forgotten what that covers
	Covered  bool     `json:",omitempty"` // it is covered
	Lives    []uint32 // epochs in which the rank's lives began, the newest first: one of them has recorded its choices since then
	Place    Place    // that map
}

// Depart has the process let a rank go to another at its next safe point. The answer
// is Stayed of this one, or Arrived of the other.
type Depart struct {
	Rank     int
	To       int // process
	Epoch    uint32
	Patience time.Duration // for the safe point, and for those who hold what is for the rank
}

// Arrived: the rank is in the process that says so.
type Arrived struct {
	Rank  int
	Epoch uint32
	Whole bool   // its state has come, too, and it goes on
	Bytes int64  // of its state
	Ahead int64  // of them came while it still ran elsewhere
	Stood int64  // ns from the safe point until here, in which it did not run. 0: not known
	Saved *Saved // its last snapshot, which another process took. Nil: not known, or none
}

// Stayed: the rank did not leave.
type Stayed struct {
	Rank   int
	Epoch  uint32
	Reason string
	Unsafe bool // it reached no safe point
}

// Saved: a snapshot of the rank is in that file. It may be said again.
type Saved struct {
	Rank   int
	Epoch  uint32 // in which this life of the rank began
	Number uint64
	Bytes  int64
	File   string
}

// Ping wants the same back as Pong: it shows that the process goes on.
type Ping struct{ ID uint64 }

// Paths is what the process saw of the ways to other processes since the last time. It
// is sent as often as Options say.
type Paths struct {
	Over  time.Duration // the time since then
	Links []PathReading
	Heard []int // the processes from which something has come, over a connection whose path is measured

	Passed []Passed
}

// A Passed is what has come from another process since then, and what has gone there. A connection's first bytes,
// which no PathReading has, are among that.
type Passed struct {
	Peer    int
	In, Out uint64
}

// A PathReading is of the path to another process, all its connections together.
type PathReading struct {
	path.Reading
	Peer  int
	Class topology.Class // of the path in use
	Size  sensors.SizeClass
	Sent  uint64 // of the program's messages, ever
}

// Avoid has the process talk to these others over another class of network, where there is one
// that works. It takes the place of what was said of them before. Zero For ends it.
type Avoid struct {
	Processes []int
	Class     topology.Class
	For       time.Duration
	Why       string
}

// Covered: that snapshot of the rank, and what was saved before, would outlive the
// host: there is a copy on another, or there is no other.
type Covered struct {
	Rank   int
	Epoch  uint32
	Number uint64
}

// Trace has the process record what its ranks do, or end that. It answers with Traced, again
// and again, and at the end with the Last.
type Trace struct {
	ID  uint64
	Off bool `json:",omitempty"`
}

// Traced is what was recorded since the last.
type Traced struct {
	ID    uint64
	Chunk []byte `json:",omitempty"` // of package trace
	Last  bool   `json:",omitempty"`
}

// Stop asks the process to end now: another part of the job has failed, or,
// without a Reason, all have finished. It may come in place of Start.
type Stop struct{ Reason string }

// A Report is what each rank of a process is doing.
type Report struct {
	ID      uint64
	Process int
	Ranks   []RankReport
	Missed  []Missed        `json:",omitempty"` // processes that it does not reach, for a second and longer
	Reading *events.Reading `json:",omitempty"` // the answer to a Watch has one, and no Ranks
}

// Missed is a process to which the one that reports has something to send, and no connection.
type Missed struct {
	Process int
	For     time.Duration
	Why     string
}

// A RankReport tells about one rank.
type RankReport struct {
	Rank     int
	State    string // "running", "waiting", "finished"
	Waits    []Wait // one for each goroutine of the rank that is in a blocking call
	Sent     []Count
	Received []Count
	Offered  []Numbers `json:",omitempty"` // messages whose senders wait for a receive: they are here but for their bodies, and no receive has them
}

// A Count is how many messages a rank has sent to Peer, or has had from it.
// Messages are in flight if the two ends' counts differ.
type Count struct {
	Peer int
	N    uint64
	Held uint64 `json:",omitempty"` // of those sent: until a snapshot makes room in the log, they are not in flight
}

// Numbers are those of messages from Peer, from First to Last.
type Numbers struct {
	Peer        int
	First, Last uint64
}

// A Wait is a blocking call that has not returned.
type Wait struct {
	ID    uint64 // unlike that of any other call of this process
	Op    string // "Recv", "Waitall", "Bcast": what the program called
	Where string // "file.go:12", the line of the program that called it
	Since int64  // Unix time in nanoseconds
	Any   bool   // one of Needs ends the wait; otherwise it needs all
	Until int64  `json:",omitempty"` // when the call's context ends it, as Since; 0: never, as far as is known
	Needs []Need
}

// A Need is something that only a peer can do.
type Need struct {
	Peer       int    // in the world; -1: any of Peers
	Peers      []int  `json:",omitempty"`
	What       string // see below
	Comm       string // name of the communicator
	Context    uint32
	Tag        int    // -1: any
	Number     uint64 `json:",omitempty"` // of the message that the peer, in another process, is to receive
	Collective string `json:",omitempty"` // "Bcast number 3, root 0" where the need is part of one
	Where      string `json:",omitempty"` // line that started the request, where it is known
	Unexpected []int  `json:",omitempty"` // tags of messages from that peer which arrived and do not match
	Near       []Near `json:",omitempty"` // where Unexpected is empty: messages with that tag
}

// What a rank may need.
const (
	NeedMessage   = "message"   // a send to us that matches
	NeedReceive   = "receive"   // a receive that takes what we send
	NeedDelivery  = "delivery"  // nothing but time: what we send is on its way
	NeedArrival   = "arrival"   // the same: a message for us is on its way
	NeedTurn      = "turn"      // that we send something else first, as in an earlier life
	NeedSave      = "save"      // a snapshot: until then no more can be kept of what we send
	NeedGoroutine = "goroutine" // that another goroutine of its process, of a rank in Peers or of its own, lets it go on
	NeedEvent     = "event"     // the same, or that a timer does
)

// A Near is a message that has arrived and nearly matches a receive: it is from
// another peer, or on another communicator.
type Near struct {
	Peer int
	Comm string
}
