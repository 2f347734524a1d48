package events

import (
	"maps"
	"slices"
	"time"
)

// A Phase is how far a job or a process has come.
type Phase string

const (
	PhaseStarting Phase = "starting"
	PhaseRunning  Phase = "running"
	PhaseFinished Phase = "finished" // a process: all its ranks have
	PhaseEnding   Phase = "ending"   // a job: something failed, or it was interrupted
	PhaseExited   Phase = "exited"   // a process
	PhaseEnded    Phase = "ended"    // a job
)

// A State is a job as its events tell it. The zero value knows nothing.
type State struct {
	Job       *Job // nil before JobStarted
	Began     time.Time
	Leads     time.Time // since then the agent whose events these are
	At        time.Time // of the last event
	Seq       uint64    // of the last event
	Phase     Phase
	Hosts     []Host
	Processes []Process
	Deadlock  *Event // that is suspected or proven now
	Verdict   *Event
	Ended     *Ended
	Cut       bool // this stream has ended before the job

	last     map[slot]Event // what is still true: the last event of each slot
	deadlock uint64         // the last event that tells of one
}

// A Host of the job.
type Host struct {
	Name    string
	Joined  bool
	Lost    bool
	Agent   Agent
	Refused uint64 // connections, by its agent

	joined, lost uint64 // the last events that tell so
}

// A Process of the job.
type Process struct {
	Index    int
	Host     string
	Ranks    []int // ascending
	Phase    Phase
	PID      int
	Exit     string         // how it ended
	Finished map[int]bool   // ranks that have finished here
	Failed   map[int]string // ranks, and why
	Refused  uint64         // connections
	Paths    map[int]Path   // by peer

	Reading  *Reading // the last; nil: none
	Before   *Reading // the one before
	ReadAt   time.Time
	readSeq  uint64
	spoken   bool // it has said Hello
	allReady bool
}

// A slot is what an event replaces another of.
type slot struct {
	kind                Kind
	host                string
	process, rank, peer int
}

func (e *Event) slot() slot {
	s := slot{kind: e.Kind, host: e.Host, process: -1, rank: -1, peer: -1}
	if e.Kind == RankMoved || e.Kind == RankArrived || e.Kind == RankStayed {
		s.host = ""
	} else if e.Process != nil {
		s.process = *e.Process
	}
	if e.Rank != nil {
		s.rank = *e.Rank
	}
	if e.Path != nil {
		s.peer = e.Path.Peer
	}
	return s
}

// Apply has s know of e. An event that is known, or older than what is known in
// its place, or about what is not part of the job, changes nothing: false.
func (s *State) Apply(e Event) bool {
	if s.Job == nil && e.Kind != JobStarted && e.Kind != StreamCut {
		return false
	}
	if e.Kind == JobStarted && s.Job != nil || e.Process != nil && s.process(e) == nil && !s.next(e) {
		return false
	}
	if e.Rank != nil && (e.Process == nil || *e.Rank < 0 || *e.Rank >= s.Job.Ranks) {
		return false
	}
	if e.Path != nil && (e.Path.Peer < 0 || e.Path.Peer >= len(s.Processes)) {
		return false
	}
	if e.Kind == StreamCut {
		s.Cut = true
		return true
	}
	if e.Kind == ProcessReading {
		if !s.read(e) {
			return false
		}
	} else {
		key := e.slot()
		if before, known := s.last[key]; known && before.Seq >= e.Seq {
			return false
		}
		if s.last == nil {
			s.last = map[slot]Event{}
		}
		s.last[key] = e
		s.apply(e)
	}
	if e.Seq > s.Seq {
		s.Seq, s.At = e.Seq, e.Time
	}
	return true
}

// Events is events that give a State which knows what s does, but for readings.
func (s *State) Events() []Event {
	return slices.SortedFunc(maps.Values(s.last), func(a, b Event) int {
		if a.Seq < b.Seq {
			return -1
		}
		return 1
	})
}

// Readings is the last of each process that was read after a time, as events.
func (s *State) Readings(after time.Time) (all []Event) {
	for i := range s.Processes {
		if p := &s.Processes[i]; p.Reading != nil && p.ReadAt.After(after) {
			all = append(all, Event{V: Version, Seq: p.readSeq, Time: p.ReadAt, Kind: ProcessReading, Host: p.Host, Process: new(i), Reading: p.Reading})
		}
	}
	return all
}

func (s *State) apply(e Event) {
	p, h := s.process(e), s.host(e.Host)
	switch e.Kind {
	case JobStarted:
		s.begin(e)
	case HostJoined:
		if h == nil {
			h = s.addHost(e.Host)
		}
		h.Joined, h.Agent, h.joined = true, *e.Agent, e.Seq
		h.Lost = h.lost > h.joined
	case HostLost:
		if h != nil {
			h.lost = e.Seq
			h.Lost = h.lost > h.joined // it may have been added again
		}
		for i := range s.Processes {
			if p := &s.Processes[i]; p.Host == e.Host && p.Exit == "" {
				p.Exit = "was lost with its host"
				p.advance()
			}
		}
	case ProcessStarted:
		p.PID = e.Started.PID
		p.advance()
	case ProcessHello:
		p.spoken = true
		p.advance()
	case AllReady:
		s.reach(PhaseRunning)
		for i := range s.Processes {
			s.Processes[i].allReady = true
			s.Processes[i].advance()
		}
	case RankFinished:
		p.Finished[*e.Rank] = true
		p.advance()
	case RankFailed:
		p.Failed[*e.Rank] = e.Text
	case RankMoved:
		s.move(*e.Rank, p)
	case ProcessAdded:
		if p == nil {
			s.add(e.Host, nil)
			p = &s.Processes[len(s.Processes)-1]
			p.allReady = true
		}
	case ProcessExited:
		p.Exit = e.Text
		p.advance()
	case LinkPath:
		p.Paths[e.Path.Peer] = *e.Path
	case StrangerRefused:
		if p != nil {
			p.Refused = e.Refused.Total
		} else if h != nil {
			h.Refused = e.Refused.Total
		}
	case DeadlockSuspected, DeadlockProven:
		if e.Seq > s.deadlock {
			s.Deadlock, s.deadlock = &e, e.Seq
		}
	case DeadlockOver:
		if e.Seq > s.deadlock {
			s.Deadlock, s.deadlock = nil, e.Seq
		}
	case JobVerdict:
		s.Verdict = &e
		s.reach(PhaseEnding)
	case JobEnded:
		s.Ended = e.Ended
		s.reach(PhaseEnded)
	}
}

// began is when the job of a JobStarted began. Streams from before there was Began tell it by their time.
func (e Event) began() time.Time {
	if e.Job.Began.IsZero() {
		return e.Time
	}
	return e.Job.Began
}

func (s *State) begin(e Event) {
	s.Job, s.Began, s.Leads, s.Phase = e.Job, e.began(), e.Time, PhaseStarting
	for _, name := range e.Job.Hosts {
		s.Hosts = append(s.Hosts, Host{Name: name})
	}
	for _, p := range e.Job.Processes {
		s.add(p.Host, p.Ranks)
	}
}

// addHost adds a host to those that the job began with. Such are in the order of their names.
func (s *State) addHost(name string) *Host {
	i := len(s.Job.Hosts)
	for i < len(s.Hosts) && s.Hosts[i].Name < name {
		i++
	}
	s.Hosts = slices.Insert(s.Hosts, i, Host{Name: name})
	return &s.Hosts[i]
}

func (s *State) add(host string, ranks []int) {
	s.Processes = append(s.Processes, Process{Index: len(s.Processes), Host: host, Ranks: slices.Clone(ranks), Phase: PhaseStarting,
		Finished: map[int]bool{}, Failed: map[int]string{}, Paths: map[int]Path{}})
}

// next tells whether e adds the next process.
func (s *State) next(e Event) bool {
	return e.Kind == ProcessAdded && *e.Process == len(s.Processes)
}

// move notes that rank is in process to now.
func (s *State) move(rank int, to *Process) {
	for i := range s.Processes {
		p := &s.Processes[i]
		if k := slices.Index(p.Ranks, rank); k >= 0 {
			p.Ranks = slices.Delete(p.Ranks, k, k+1)
			p.advance()
		}
	}
	to.Ranks = append(to.Ranks, rank)
	slices.Sort(to.Ranks)
	to.advance()
}

// reach is the job's next phase, if it has not come further.
func (s *State) reach(p Phase) {
	order := []Phase{PhaseStarting, PhaseRunning, PhaseEnding, PhaseEnded}
	if slices.Index(order, p) > slices.Index(order, s.Phase) {
		s.Phase = p
	}
}

// advance sets the phase by what is known.
func (p *Process) advance() {
	switch {
	case p.Exit != "":
		p.Phase = PhaseExited
	case len(p.Ranks) > 0 && !slices.ContainsFunc(p.Ranks, func(r int) bool { return !p.Finished[r] }):
		p.Phase = PhaseFinished
	case p.PID != 0 && (!p.spoken || p.allReady):
		p.Phase = PhaseRunning
	default:
		p.Phase = PhaseStarting
	}
}

func (s *State) process(e Event) *Process {
	if e.Process == nil || *e.Process < 0 || *e.Process >= len(s.Processes) {
		return nil
	}
	return &s.Processes[*e.Process]
}

func (s *State) host(name string) *Host {
	i := slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Hosts[i]
}

// On is the processes of a host.
func (s *State) On(host string) (all []*Process) {
	for i := range s.Processes {
		if s.Processes[i].Host == host {
			all = append(all, &s.Processes[i])
		}
	}
	return all
}

// FinishedRanks is how many ranks have. One that goes on elsewhere since has not.
func (s *State) FinishedRanks() (n int) {
	for i := range s.Processes {
		for _, r := range s.Processes[i].Ranks {
			if s.Processes[i].Finished[r] {
				n++
			}
		}
	}
	return n
}

func (s *State) read(e Event) bool {
	p := s.process(e)
	if p.Reading != nil && e.Reading.Up <= p.Reading.Up {
		return false
	}
	p.Before, p.Reading, p.ReadAt, p.readSeq = p.Reading, e.Reading, e.Time, e.Seq
	p.Refused = max(p.Refused, e.Reading.Strangers)
	return true
}
