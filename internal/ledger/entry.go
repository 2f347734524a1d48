package ledger

import (
	"encoding/json"
	"fmt"
)

// An Entry is one decision of the job's head. Exactly one field is set.
type Entry struct {
	Job         *Job         `json:",omitempty"` // the first of all
	Voters      *Voters      `json:",omitempty"`
	Joined      *Joined      `json:",omitempty"`
	HostAdded   *HostAdded   `json:",omitempty"`
	HostLost    *HostLost    `json:",omitempty"`
	Started     *Started     `json:",omitempty"`
	Added       *Added       `json:",omitempty"`
	Moving      *Moving      `json:",omitempty"`
	Came        *Came        `json:",omitempty"`
	MoveEnded   *MoveEnded   `json:",omitempty"`
	Void        *Void        `json:",omitempty"`
	Condemned   *Condemned   `json:",omitempty"`
	Recovered   *Recovered   `json:",omitempty"`
	Covered     *Covered     `json:",omitempty"`
	Order       *Order       `json:",omitempty"`
	Promises    *Promises    `json:",omitempty"`
	Verdict     *Verdict     `json:",omitempty"`
	Interrupted *Interrupted `json:",omitempty"`
}

// Job is what does not change while the job runs.
type Job struct {
	Name      string
	Plan      json.RawMessage // what else a head needs to know of it; opaque here, and secret
	Hosts     []string        // by index
	Processes []Added         // those that it begins with, by index
}

// Voters are the agents among which the ledger is replicated, by index of their hosts.
type Voters struct{ Hosts []int }

// Joined: the agent of a host is there.
type Joined struct {
	Host  int
	Agent json.RawMessage // what the head needs to know of it; opaque here
}

// HostAdded is one more host, the next: its agent is being started, and has Joined when its
// processes take part.
type HostAdded struct {
	Name string
	Host json.RawMessage // what the head needs to know of it; opaque here
}

// HostLost: the host is lost, and its processes with it.
type HostLost struct{ Host int }

// Started: all processes are told Start, by the map of epoch 1.
type Started struct{ Copied bool }

// Added is one more process.
type Added struct {
	Host    int
	Slot    int // it is the Slot-th there
	Program int
	Ranks   []int `json:",omitempty"` // of a process that the job begins with
}

// Moving: a rank is to go from one process to another, by the map of an epoch, the next.
type Moving struct {
	Rank, From, To int
	Epoch          uint32
}

// Came: a rank that was Moving is in its new process.
type Came struct{ Epoch uint32 }

// MoveEnded: nothing more is expected of the move of that epoch.
type MoveEnded struct{ Epoch uint32 }

// Void: the map of an epoch, of a move that came to nothing, is the one before.
type Void struct{ Epoch uint32 }

// Condemned: a process is being killed, and takes no rank any more.
type Condemned struct{ Process int }

// Recovered: ranks of processes that are lost go on in others, by the map of an epoch,
// the next.
type Recovered struct {
	Epoch uint32
	Lost  []int // processes that are no more
	Ranks []Revived
}

// Revived is one of those ranks.
type Revived struct {
	Rank, Process int
	From          Version // it goes on from this snapshot; zero: from the beginning
	File          string  `json:",omitempty"`
}

// A Version of a rank's state: a snapshot of the life that began in an epoch.
type Version struct {
	Epoch  uint32
	Number uint64
}

// Before tells whether v is older than w.
func (v Version) Before(w Version) bool {
	return v.Epoch < w.Epoch || v.Epoch == w.Epoch && v.Number < w.Number
}

// Covered: others forget what that snapshot of a rank has.
type Covered struct {
	Rank int
	Version
}

// Order is one of the operator's that lasts.
type Order struct{ Op, Host string }

// Promises is what links were seen to deliver under normal load; opaque here.
type Promises struct{ Text []byte }

// Interrupted: a signal that is to end the job is passed on to its processes.
type Interrupted struct{ Signal int }

// Verdict is why the job ends.
type Verdict struct {
	Code int
	Text string `json:",omitempty"`
}

// String is e as JSON.
func (e Entry) String() string {
	text, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("ledger: %v", err)) // there is nothing in it that could
	}
	return string(text)
}
