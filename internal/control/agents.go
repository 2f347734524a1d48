package control

import (
	"time"

	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/sensors/path"
)

// AgentVersion is that of what agents say to each other, Boot included, equal
// on all hosts.
const AgentVersion = 15

// A Boot is what an agent that was started on another host reads from its
// standard input, as one line. It is secret: it has keys in it.
type Boot struct {
	Version     int
	Job         string
	Agent       int    // its index: that of its host in the job
	Host        string // what the job calls its host
	Credentials identity.Credentials
	Head        []string      // host:port where the job's first agent can be reached; one of them does
	Launch      []string      // words that start a command on a host, followed by the host and the command
	Command     []string      // the command that is an agent, as words for the host's shell or launcher
	Quote       bool          // the command goes through a shell there
	Children    []Boot        `json:",omitempty"` // agents that this one has to start
	Patience    time.Duration // how long it may take to reach the first agent
	Silence     time.Duration // for how long nothing may be heard of the first agent, or of this one
	Crashes     bool          // ranks go on elsewhere: the agent keeps copies for others
	Outlives    bool          // the job outlives hosts: the agent lives on when who started it ends
	Outlive     bool          // the job outlives its head, too: without one the agent looks for the next
	Grace       time.Duration // for ranks to be elsewhere before the agent leaves that is told to end; 0: it leaves at once
	Leads       int           // the agent that is the head for now, where Outlive is set
	Voters      []Voter       `json:",omitempty"` // who votes, for an agent that comes when there are such
	First       []byte        `json:",omitempty"` // for the agent that is to be the job's first head: the job
}

// A FromAgent is what an agent says to the job's first. Exactly one field is set.
type FromAgent struct {
	Joined       *Joined       `json:",omitempty"`
	LaunchFailed *LaunchFailed `json:",omitempty"`
	Forked       *Forked       `json:",omitempty"`
	Said         *Said         `json:",omitempty"`
	Exited       *Exited       `json:",omitempty"`
	Drained      *Drained      `json:",omitempty"`
	Stopped      *Stopped      `json:",omitempty"`
	Host         *HostReading  `json:",omitempty"`
	Output       *Output       `json:",omitempty"`
	Refused      *Refused      `json:",omitempty"`
	Taken        *Taken        `json:",omitempty"`
	Question     *Exchange     `json:",omitempty"`
	Leaving      *Leaving      `json:",omitempty"`
	Evicted      *Evicted      `json:",omitempty"`
	Metrics      *Metrics      `json:",omitempty"`
	Holds        *Holds        `json:",omitempty"`
	Uncopied     *Uncopied     `json:",omitempty"`
	Rejoined     *Rejoined     `json:",omitempty"`
	Brought      *Brought      `json:",omitempty"`
	Votes        *Votes        `json:",omitempty"`
	Alive        *Alive        `json:",omitempty"`
}

// A ToAgent is what the job's head says to an agent. Exactly one field is set. Unless
// the job outlives its head, the end of the connection is the end of the job: the agent
// kills what is left there.
type ToAgent struct {
	Run    *Run      `json:",omitempty"`
	Spawn  *Spawn    `json:",omitempty"` // one more, after Run
	Tell   *Tell     `json:",omitempty"`
	Kill   *Kill     `json:",omitempty"`
	Input  *Output   `json:",omitempty"`
	Taken  *Taken    `json:",omitempty"`
	Answer *Exchange `json:",omitempty"`
	Buddy  *Buddy    `json:",omitempty"`
	Copy   *Copy     `json:",omitempty"`
	Fence  *Fence    `json:",omitempty"`
	Close  *Close    `json:",omitempty"`
	Voters *Voters   `json:",omitempty"`
	Over   *Over     `json:",omitempty"`
	Leave  *Leave    `json:",omitempty"`
	Alive  *Alive    `json:",omitempty"`
}

// Joined is the first of an agent.
type Joined struct {
	Version int
	PID     int
	Cores   int
	Time    time.Time // its clock
	Address string    // of its end of the connection: another than where that seems to come from if an address translation lies between
	Copies  int       `json:",omitempty"` // the port at which it takes copies of snapshots. 0: it takes none
}

// LaunchFailed: the command that was to start an agent on a host has ended
// before that agent joined.
type LaunchFailed struct {
	Agent int
	Exit  int    // its exit code; -1: it could not be started
	Text  string // the last that it wrote to its standard error, or why it could not be started
}

// Run: start these processes.
type Run struct {
	Token     []byte
	Networks  []Network
	Options   Options
	Bind      bool
	Metrics   string `json:",omitempty"` // where to serve metrics: the ADDR of --metrics. Empty: nowhere
	Processes []Spawn
}

// A Spawn is one process to start.
type Spawn struct {
	Index       int
	Ranks       []int
	Path        string // as the user wrote it
	Args        []string
	Env         []string // "VAR=value", on top of the agent's own
	Dir         string   // working directory
	Input       bool     // its standard input is what comes as Input; otherwise it reads nothing
	Credentials *identity.Credentials
}

// Forked: a process runs, or could not be started.
type Forked struct {
	Process int
	PID     int
	Code    int    // exit code that stands for Error
	Error   string `json:",omitempty"`
}

// Said is a message of a process; nil: it has ended its connection.
type Said struct {
	Process int
	Message *Message `json:",omitempty"`
}

// Tell is a message for processes.
type Tell struct {
	Processes []int
	Message   *Message
}

// Exited: a process has ended. What it wrote may still follow, up to Drained.
type Exited struct {
	Process int
	Status  uint32 // as wait(2) gives it
}

// Output is what a process wrote, in whole lines where it could be, or what it
// is to read.
type Output struct {
	Process int
	Stderr  bool `json:",omitempty"`
	Data    []byte
	End     bool  `json:",omitempty"` // nothing follows
	Ends    int64 `json:",omitempty"` // where Data ends in all that the process has written there
}

// Refused: a connection of a process was, for this reason.
type Refused struct{ Reason string }

// Drained: all that a process wrote has been sent.
type Drained struct{ Process int }

// Stopped: a process stands still, or goes on again.
type Stopped struct {
	Process int
	Why     string `json:",omitempty"` // "is stopped". Empty: it goes on
}

// HostReading is how the host does since the last, if the job's Options.Paths want it. Shares are
// 0 to 1.
type HostReading struct {
	Over                            int64    // ns
	CPU, Steal, Pressure, Throttled float64  // shares
	Own                             float64  // cores that the job's processes there take
	MemoryFree                      float64  // bytes
	In, Out                         float64  // bytes a second, whoever's
	CopiesIn, CopiesOut             float64  // of these, copies of snapshots
	Machine                         string   // the same for hosts that share their cores; empty: not known
	Carried                         *Carried `json:",omitempty"`
}

// Carried is what the connection did over which copies of snapshots go to another agent.
type Carried struct {
	path.Reading
	Agent int    // its index
	Addr  string // that of its host, on the network they go over
}

// Taken gives back room for Output.
type Taken struct {
	Process int
	Stderr  bool `json:",omitempty"`
	Bytes   int
	Broken  bool `json:",omitempty"` // nobody reads it any more
}

// OutputWindow is how many bytes of a process's standard output, of its standard
// error and of its standard input may be on their way. Who has no room waits.
const OutputWindow = 256 << 10

// Kill sends a signal to a process.
type Kill struct{ Process, Signal int }

// Leaving is the last of an agent that ends before the job does.
type Leaving struct{ Reason string }

// Evicted: the agent is to end, and does so when it is told Leave, or when its grace is
// over. Until then the ranks on its host may go elsewhere.
type Evicted struct{ Reason string }

// Leave: nothing is left on the host of an agent that is Evicted, or nothing can be done.
type Leave struct{}

// An Exchange is a question that was put to an agent which is not the first, or
// its answer, as the lines of JSON that they are.
type Exchange struct {
	ID   uint64
	Text []byte
}

// FromAgentBytes is the longest message that an agent may send to the first.
const FromAgentBytes = 16 << 20

// Metrics: where the agent serves them, or why it does not.
type Metrics struct {
	Addr  string `json:",omitempty"` // host:port that it listens on
	Error string `json:",omitempty"`
}

// A Life of a rank: that which began in an epoch.
type Life struct {
	Rank  int
	Epoch uint32
}

// Buddy: copies of the snapshots that are saved on this host go to that agent from
// now on, the last of each rank first. Without Addrs they go nowhere.
type Buddy struct {
	Agent int
	Addrs []string // host:port where it takes them; one of them does
}

// Copy: send the snapshot in File to that agent, too. Without a File: send what is known
// here of the rank's choices.
type Copy struct {
	Rank  int
	Epoch uint32 // in which the life of the rank began that has saved it
	File  string
	To    Buddy
}

// Holds: the agent has a copy, whole.
type Holds struct {
	Rank   int
	Epoch  uint32
	Number uint64
	File   string
}

// Votes: this agent takes part in elections from now on.
type Votes struct{}

// Brought: what that agent knows of a rank's choices is known to this one. Rank -1: this one has become its buddy, and
// knows all that was chosen there until now, and will until there is another. None: that is nothing yet; it is told
// again when something is.
type Brought struct {
	Rank, Agent int
	None        bool `json:",omitempty"`
}

// Uncopied: a snapshot could not be sent to that agent. No other will be before there
// is another Buddy.
type Uncopied struct {
	Rank   int // -1: the choices of all ranks
	Agent  int
	Reason string
}

// Fence: that agent's host is lost, and the agent is refused from now on.
type Fence struct{ Agent int }

// Close: a rank goes on elsewhere, though the process of a life of it may still run. Whoever
// tells of choices of that life, or of one before, is refused for so long, so that nothing
// that hangs on them leaves their host; after that they are ignored.
type Close struct {
	Rank  int
	Epoch uint32 // in which that life began
	For   time.Duration
}

// Alive is said every AliveEvery, or ten times in the Silence of Boot if that is more
// often, so that a host which was cut off is known. In the first message of a head Term
// is that of its election: of two heads the one with the greater was elected later. 0: it
// was not elected. Later is what processes there are told that could wait until now.
type Alive struct {
	Term  uint64 `json:",omitempty"`
	Later []Tell `json:",omitempty"`
}

// How often Alive is said, and for how long nothing may be heard, unless the job says
// otherwise: at levels "crashes" and "report", where a lost host is survived, it is
// CrashPatient.
const (
	AliveEvery   = 500 * time.Millisecond
	AlivePatient = 15 * time.Second
	CrashPatient = 900 * time.Millisecond // so that within a second it is known
)

// Beat is how often Alive is said where nothing may be heard for that long.
func Beat(silence time.Duration) time.Duration {
	return min(max(silence/10, 10*time.Millisecond), AliveEvery)
}

// Protocols of the connections between agents where a job outlives its head, as ALPN
// names. What has none is copies of snapshots.
const (
	ProtocolHead  = "mpiv/head"  // an agent, to the head
	ProtocolAwait = "mpiv/await" // the same, to a voter that may soon be it
	ProtocolRaft  = "mpiv/raft"  // between voters
	ProtocolFront = "mpiv/front" // who shows the job to a user, to the head
	ProtocolAlive = "mpiv/alive" // the head, to an agent of which it has not heard for a while: nothing is said
)

// Voters are the agents one of which is the head, and among which its decisions are
// replicated. Raft is set in the copy for a voter itself.
type Voters struct {
	Voters []Voter
	Raft   bool
}

// A Voter is one of them.
type Voter struct {
	Agent int
	Host  string   // as processes are told
	Addrs []string // host:port of its door; one of them does
}

// Over: the job has ended.
type Over struct{}

// Rejoined is the first that an agent says to another head than the one it joined: what
// there is on its host, and what that head may have been told, or have told, in vain.
type Rejoined struct {
	Joined    Joined
	Processes []Account
	Copies    []Holds
	Heard     []Life // of whose choices, made on another host, something is known here
}

// An Account is what the agent knows of a process that it has started.
type Account struct {
	Process  int
	PID      int
	Error    string    `json:",omitempty"` // it could not be started
	Hello    *Hello    `json:",omitempty"`
	Ready    *Ready    `json:",omitempty"`
	Finished *Finished `json:",omitempty"`
	Failed   *Failed   `json:",omitempty"`
	Saved    []Saved   `json:",omitempty"` // the last of each rank
	Arrived  []Arrived `json:",omitempty"` // the last of each rank, in part and whole
	Stayed   []Stayed  `json:",omitempty"` // the last of each rank
	Parted   bool      `json:",omitempty"` // it has ended its connection
	Stopped  string    `json:",omitempty"` // why it stands still
	Exited   *Exited   `json:",omitempty"`
	Drained  bool      `json:",omitempty"`
	Input    int64     `json:",omitempty"` // bytes of its standard input that have come here

	// What it was told.
	Start uint32   `json:",omitempty"` // the epoch that Start was of; 0: it was not told Start
	Maps  []uint32 `json:",omitempty"` // epochs of Place and Adopt since
	Leave []uint32 `json:",omitempty"` // epochs of Depart
}
