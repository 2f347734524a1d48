package replica

// Who leads next, and when that is found out: raft by itself takes one to three silences.

import (
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// aLittle is how much longer than the silence raft waits by itself.
const aLittle = time.Millisecond

// impatient has this voter ask for an election soon after it has heard of no head for the
// silence. Raft by itself looks at random times, one to two silences apart, so nearly three
// can go by; and a voter that has not looked yet refuses its vote. Raft looks when it is
// given a shorter time to wait. So here the voters look in turn, and the last that is
// needed is elected: were two to ask at the same time, neither might be, for a silence or two.
func (r *Replica) impatient(silence time.Duration) {
	clock := time.NewTimer(silence)
	defer clock.Stop()
	for {
		select {
		case <-clock.C:
		case <-r.ctx.Done():
			return
		}
		turn := r.turn()
		if r.raft.State() == raft.Follower {
			r.trans.relay(r.raft)
		}
		quiet := time.Since(r.raft.LastContact())
		rest := silence + time.Duration(turn)*silence/VoterTurns + aLittle - quiet
		if r.raft.State() == raft.Follower {
			r.mu.Lock()
			r.quiet = quiet
			r.mu.Unlock()
			if rest <= 0 {
				r.look(silence)
			}
		}
		clock.Reset(min(max(rest, silence/20), silence/10))
	}
}

// look has raft see how long it has heard of no head.
func (r *Replica) look(silence time.Duration) {
	c := r.raft.ReloadableConfig()
	for _, c.HeartbeatTimeout = range []time.Duration{silence, silence + aLittle} {
		if err := r.raft.ReloadConfig(c); err != nil {
			panic(fmt.Sprintf("replica: %v", err)) // it began with as much
		}
	}
}

// Lost is the agent that led before this one asked for an election, if it had not been heard of for the
// silence, or is dead; -1: it is neither, as one that hands over, or nobody led.
func (r *Replica) Lost() (agent int, dead bool) {
	silence, contact := r.trans.silence, r.raft.LastContact()
	r.mu.Lock()
	defer r.mu.Unlock()
	agent, err := strconv.Atoi(string(r.head))
	dead = r.head == r.dead && contact.Before(r.deadAt.Add(silence/2)) // what was under way comes after the end
	if err != nil || !dead && r.quiet < silence-silence/VoterTurns {
		return -1, false
	}
	return agent, dead
}

// Dead is told that the process of who leads has ended: that takes no silence to find out. The voter whose turn it
// is first asks for an election at once. Were the others to ask too, none might
// be elected; they look after the silence, as ever.
func (r *Replica) Dead(agent int) {
	turn := r.turn()
	r.mu.Lock()
	known := r.head == voterID(agent)
	if known {
		r.dead, r.deadAt = r.head, time.Now()
	}
	r.mu.Unlock()
	if known && turn == 0 {
		r.ask()
	}
}

// Begin has this voter ask for the first election at once. Most of the others are to take part by now: without
// them the next attempt is after a silence or two.
func (r *Replica) Begin() {
	if _, head := r.raft.LeaderWithID(); head == "" {
		r.ask()
	}
}

// ask asks for an election, as one does to which the lead is handed over.
func (r *Replica) ask() {
	if r.raft.State() != raft.Follower {
		return
	}
	select {
	case r.asked <- raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax}}, RespChan: make(chan raft.RPCResponse, 1)}:
	case <-r.ctx.Done():
	}
}

// VoterTurns make a silence: each is longer than the time between two signs of life,
// which raft sends to each voter at random times, a tenth to a fifth of the silence apart.
const VoterTurns = 5

// turn is how many voters look before this one, where the head is lost. It notes who that is.
func (r *Replica) turn() (n int) {
	_, head := r.raft.LeaderWithID()
	r.mu.Lock()
	defer r.mu.Unlock()
	if head != "" && head != voterID(r.agent) {
		r.head = head
	}
	for _, v := range r.voters {
		if v.Agent < r.agent && voterID(v.Agent) != r.head {
			n++
		}
	}
	return n
}
