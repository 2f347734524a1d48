package replica

import (
	"strconv"
	"time"

	"github.com/hashicorp/raft"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/patient"
)

// A speech is how voters talk: over connections of their own, but for signs of life where the
// head has one with the other's agent. On that either end says that it is alive whatever the other does,
// and it is known what comes over a link that is full; raft itself waits for each answer.
type speech struct {
	*raft.NetworkTransport
	ear     func(agent int) *patient.Conn // the connection over which an agent is heard; nil: there is none
	silence time.Duration
	asked   <-chan raft.RPC // what other voters ask of raft
	over    <-chan struct{}

	beat func(raft.RPC) // takes what raft takes as a sign of life of its leader
	told time.Time      // when it was told last; for relay
}

// agreeTime is how long an answer may take to what is to be agreed on, where links are full.
const agreeTime = 5 * time.Second

// Consumer is called by raft, once.
func (s *speech) Consumer() <-chan raft.RPC { return s.asked }

// SetHeartbeatHandler is called by raft, once.
func (s *speech) SetHeartbeatHandler(beat func(raft.RPC)) {
	s.beat = beat
	s.NetworkTransport.SetHeartbeatHandler(beat)
}

// AppendEntries is called by raft for each other voter. Where there is nothing to append it is a
// sign of life that wants to be answered.
func (s *speech) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	agent, err := strconv.Atoi(string(id))
	if err != nil || len(args.Entries) > 0 || args.PrevLogEntry > 0 || args.LeaderCommitIndex > 0 {
		return s.NetworkTransport.AppendEntries(id, to, args, resp)
	}
	begun := time.Now()
	tick := alarm.NewTicker(s.silence / 20)
	defer tick.Stop()
	for {
		ear := s.ear(agent)
		if ear == nil {
			return s.NetworkTransport.AppendEntries(id, to, args, resp)
		}
		if ear.Sign(begun) {
			*resp = raft.AppendEntriesResponse{RPCHeader: args.RPCHeader, Term: args.Term, Success: true}
			return nil
		}
		if time.Since(begun) > s.silence {
			return patient.Silent(ear.Heard())
		}
		select {
		case <-tick.C:
		case <-s.over:
			return raft.ErrTransportShutdown
		}
	}
}

// A follower is raft as a voter that does not lead sees it.
type follower interface {
	CurrentTerm() uint64
	LeaderWithID() (raft.ServerAddress, raft.ServerID)
}

// relay tells raft of a sign of life of its leader, if there was one since the last time.
func (s *speech) relay(r follower) {
	term := r.CurrentTerm()
	addr, id := r.LeaderWithID()
	agent, err := strconv.Atoi(string(id))
	if err != nil || r.CurrentTerm() != term {
		return // there is none, or another is about to be
	}
	now := time.Now()
	if ear := s.ear(agent); ear == nil || !ear.Sign(s.told) {
		return
	}
	s.told = now
	s.beat(raft.RPC{RespChan: make(chan raft.RPCResponse, 1), Command: &raft.AppendEntriesRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte(id), Addr: s.EncodePeer(id, addr)}, Term: term,
	}})
}
