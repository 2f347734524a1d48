// Package ledger is what the next head of a job must know: who is in it, which process
// has which rank by which map, what of the past nobody can repeat. It is the fold of the
// head's decisions, in the order in which they were made; how those are replicated is not
// known here.
//
// What deputies and processes can say again to a new head is not in it.
package ledger

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// A State is the fold of entries. The zero value is that of none. For one goroutine.
type State struct {
	Applied   uint64 // entries that were
	Job       *Job   // nil before the first
	Voters    []int
	Hosts     []Host
	Processes []Process
	Started   bool
	Copied    bool // a snapshot covers what others keep only when it has a copy
	// The map of epoch n is that of n-1 and Changes[n-2]. All are kept, though they grow with
	// each move: which of them a process has heard is known to that process alone, and a new
	// head tells it the others ([State.Due]), from those that it began with on.
	Changes  []Change
	Covered  map[int]Version
	Orders   []Order
	Promises []byte
	Verdict  *Verdict

	Interrupted int // the signal that is to end the job, and was passed on to its processes; 0: there is none
}

// A Host of the job.
type Host struct {
	Added *HostAdded      `json:",omitempty"` // nil: the job began with it
	Agent json.RawMessage `json:",omitempty"` // as it Joined; empty: it has not
	Lost  bool            `json:",omitempty"`
}

// A Process of the job, which may be no more.
type Process struct {
	Added                // Ranks are those it has now
	Condemned, Gone bool `json:",omitempty"`
}

// A Kind of change.
type Kind string

const (
	Open      Kind = "open"      // a move, of which nobody knows how it ends
	Moved     Kind = "moved"     // a move, and the rank is there
	Voided    Kind = "void"      // a move that came to nothing
	Recovery  Kind = "recovered" // of ranks whose processes were lost
	firstMap       = 1
	noProcess      = -1
)

// A Change is what one map has other than the one before.
type Change struct {
	Kind      Kind
	Move      *Moving    `json:",omitempty"` // of a move
	Ended     bool       `json:",omitempty"` // nothing more is expected of it
	Recovered *Recovered `json:",omitempty"`
}

// ErrJob is for an entry before the job's.
var ErrJob = errors.New("the ledger has no job yet")

// Epoch is that of the newest map.
func (s *State) Epoch() uint32 { return uint32(firstMap + len(s.Changes)) }

// Change is that of an epoch; nil if there is none.
func (s *State) Change(epoch uint32) *Change {
	if i := int64(epoch) - firstMap - 1; i >= 0 && i < int64(len(s.Changes)) {
		return &s.Changes[i]
	}
	return nil
}

// ProcessOf is the process that has a rank; -1: none.
func (s *State) ProcessOf(rank int) int {
	for i := range s.Processes {
		if slices.Contains(s.Processes[i].Ranks, rank) {
			return i
		}
	}
	return noProcess
}

// Apply adds e, or says why it cannot follow what is there, which then stays as it is.
func (s *State) Apply(e Entry) error {
	if (s.Job == nil) != (e.Job != nil) {
		if e.Job != nil {
			return errors.New("the ledger has a job already")
		}
		return ErrJob
	}
	if err := s.apply(e); err != nil {
		return err
	}
	s.Applied++
	return nil
}

func (s *State) apply(e Entry) error {
	switch {
	case e.Job != nil:
		return s.begin(*e.Job)
	case e.Voters != nil:
		for _, h := range e.Voters.Hosts {
			if err := s.isHost(h); err != nil {
				return err
			}
		}
		s.Voters = slices.Clone(e.Voters.Hosts)
	case e.Joined != nil:
		if err := s.isHost(e.Joined.Host); err != nil {
			return err
		}
		s.Hosts[e.Joined.Host].Agent = slices.Clone(e.Joined.Agent)
	case e.HostAdded != nil:
		s.Hosts = append(s.Hosts, Host{Added: e.HostAdded})
	case e.HostLost != nil:
		if err := s.isHost(e.HostLost.Host); err != nil {
			return err
		}
		s.loseHost(e.HostLost.Host)
	case e.Started != nil:
		s.Started, s.Copied = true, e.Started.Copied
	case e.Added != nil:
		if err := s.isHost(e.Added.Host); err != nil {
			return err
		}
		if len(e.Added.Ranks) > 0 {
			return errors.New("a process that is added has no ranks")
		}
		s.Processes = append(s.Processes, Process{Added: *e.Added})
	case e.Moving != nil:
		return s.moving(*e.Moving)
	case e.Came != nil:
		return s.came(e.Came.Epoch)
	case e.MoveEnded != nil:
		c, err := s.moveOf(e.MoveEnded.Epoch)
		if err != nil {
			return err
		}
		c.Ended = true
	case e.Void != nil:
		c, err := s.moveOf(e.Void.Epoch)
		if err != nil {
			return err
		}
		if c.Kind != Open {
			return fmt.Errorf("the map of epoch %d is known: %s", e.Void.Epoch, c.Kind)
		}
		c.Kind, c.Ended = Voided, true
	case e.Condemned != nil:
		if err := s.isProcess(e.Condemned.Process); err != nil {
			return err
		}
		s.Processes[e.Condemned.Process].Condemned = true
	case e.Recovered != nil:
		return s.recovered(*e.Recovered)
	case e.Covered != nil:
		if s.ProcessOf(e.Covered.Rank) == noProcess {
			return fmt.Errorf("there is no rank %d", e.Covered.Rank)
		}
		if s.Covered == nil {
			s.Covered = map[int]Version{}
		}
		if s.Covered[e.Covered.Rank].Before(e.Covered.Version) {
			s.Covered[e.Covered.Rank] = e.Covered.Version
		}
	case e.Order != nil:
		if e.Order.Op == "cordon" && slices.Contains(s.Orders, Order{"drain", e.Order.Host}) {
			break // the host is still to be emptied
		}
		s.Orders = slices.DeleteFunc(s.Orders, func(o Order) bool { return o.Host == e.Order.Host })
		if e.Order.Op != "uncordon" {
			s.Orders = append(s.Orders, *e.Order)
		}
	case e.Promises != nil:
		s.Promises = slices.Clone(e.Promises.Text)
	case e.Interrupted != nil:
		s.Interrupted = e.Interrupted.Signal
	case e.Verdict != nil:
		if s.Verdict == nil { // only the first counts
			s.Verdict = e.Verdict
		}
	default:
		return errors.New("an entry that says nothing")
	}
	return nil
}

// loseHost loses a host. The processes of one that was added and has not joined are no more,
// as they never took part.
func (s *State) loseHost(h int) {
	s.Hosts[h].Lost = true
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Host == h && s.Hosts[h].Added != nil && s.Hosts[h].Agent == nil {
			p.Gone = true
		}
	}
}

func (s *State) isHost(h int) error {
	if h < 0 || h >= len(s.Hosts) {
		return fmt.Errorf("there is no host %d", h)
	}
	return nil
}

func (s *State) isProcess(p int) error {
	if p < 0 || p >= len(s.Processes) {
		return fmt.Errorf("there is no process %d", p)
	}
	return nil
}

func (s *State) begin(j Job) error {
	seen := map[int]bool{}
	for _, p := range j.Processes {
		if p.Host < 0 || p.Host >= len(j.Hosts) {
			return fmt.Errorf("there is no host %d", p.Host)
		}
		for _, r := range p.Ranks {
			if r < 0 || seen[r] {
				return fmt.Errorf("rank %d is none, or in two processes", r)
			}
			seen[r] = true
		}
	}
	s.Job = &j
	s.Hosts = make([]Host, len(j.Hosts))
	s.Processes = make([]Process, len(j.Processes))
	for i, p := range j.Processes {
		p.Ranks = slices.Clone(p.Ranks)
		s.Processes[i].Added = p
	}
	return nil
}

// takes is nil if a process can be given a rank by the next map.
func (s *State) takes(p int) error {
	if err := s.isProcess(p); err != nil {
		return err
	}
	if q := &s.Processes[p]; q.Gone || q.Condemned || len(q.Ranks) > 0 {
		return fmt.Errorf("process %d takes no rank", p)
	}
	for _, c := range s.Changes {
		if c.Kind == Open && c.Move.To == p {
			return fmt.Errorf("process %d is to take rank %d", p, c.Move.Rank)
		}
	}
	return nil
}

func (s *State) moving(m Moving) error {
	switch {
	case m.Epoch != s.Epoch()+1:
		return fmt.Errorf("a map of epoch %d cannot follow that of %d", m.Epoch, s.Epoch())
	case m.Rank < 0 || s.ProcessOf(m.Rank) != m.From || m.From < 0 || s.Processes[m.From].Gone:
		return fmt.Errorf("rank %d is not in process %d", m.Rank, m.From)
	}
	for _, c := range s.Changes {
		if c.Move != nil && !c.Ended && c.Move.Rank == m.Rank {
			return fmt.Errorf("rank %d is being moved", m.Rank)
		}
	}
	if err := s.takes(m.To); err != nil {
		return err
	}
	s.Changes = append(s.Changes, Change{Kind: Open, Move: &m})
	return nil
}

// moveOf is the move of an epoch, which has not ended.
func (s *State) moveOf(epoch uint32) (*Change, error) {
	c := s.Change(epoch)
	if c == nil || c.Move == nil || c.Ended {
		return nil, fmt.Errorf("the map of epoch %d is of no move that goes on", epoch)
	}
	return c, nil
}

func (s *State) came(epoch uint32) error {
	c, err := s.moveOf(epoch)
	if err != nil {
		return err
	}
	if c.Kind != Open {
		return fmt.Errorf("the map of epoch %d is known: %s", epoch, c.Kind)
	}
	c.Kind = Moved
	from, to := &s.Processes[c.Move.From], &s.Processes[c.Move.To]
	from.Ranks = slices.DeleteFunc(from.Ranks, func(r int) bool { return r == c.Move.Rank })
	to.Ranks = []int{c.Move.Rank}
	return nil
}

func (s *State) recovered(r Recovered) error {
	if r.Epoch != s.Epoch()+1 {
		return fmt.Errorf("a map of epoch %d cannot follow that of %d", r.Epoch, s.Epoch())
	}
	taken := map[int]bool{}
	for _, x := range r.Ranks {
		from := s.ProcessOf(x.Rank)
		if x.Rank < 0 || from == noProcess || !slices.Contains(r.Lost, from) {
			return fmt.Errorf("rank %d is in no process that is lost", x.Rank)
		}
		if err := s.takes(x.Process); err != nil {
			return err
		}
		if taken[x.Process] || taken[-1-x.Rank] || slices.Contains(r.Lost, x.Process) {
			return fmt.Errorf("process %d takes no rank, or rank %d is given twice", x.Process, x.Rank)
		}
		taken[x.Process], taken[-1-x.Rank] = true, true
	}
	for _, p := range r.Lost {
		if err := s.isProcess(p); err != nil {
			return err
		}
		for _, rank := range s.Processes[p].Ranks {
			if !taken[-1-rank] {
				return fmt.Errorf("rank %d of process %d is left behind", rank, p)
			}
		}
	}
	for _, p := range r.Lost {
		s.Processes[p].Gone, s.Processes[p].Ranks = true, nil
	}
	for _, x := range r.Ranks {
		s.Processes[x.Process].Ranks = []int{x.Rank}
	}
	s.Changes = append(s.Changes, Change{Kind: Recovery, Recovered: &r})
	return nil
}

// Snapshot is all of s.
func (s *State) Snapshot() []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic(fmt.Sprintf("ledger: %v", err)) // there is nothing in it that could
	}
	return text
}

// Restore makes s what Snapshot was taken of.
func (s *State) Restore(text []byte) error {
	var t State
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("a snapshot of the ledger that is none: %w", err)
	}
	*s = t
	return nil
}

// Lives is the epochs in which the lives of a rank began, the oldest first.
func (s *State) Lives(rank int) []uint32 {
	lives := []uint32{firstMap}
	for i, c := range s.Changes {
		began := c.Kind == Moved && c.Move.Rank == rank
		if c.Kind == Recovery {
			began = slices.ContainsFunc(c.Recovered.Ranks, func(x Revived) bool { return x.Rank == rank })
		}
		if began {
			lives = append(lives, uint32(i+firstMap+1))
		}
	}
	return lives
}
