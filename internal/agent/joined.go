package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
	"github.com/mpiv/mpiv/topology"
)

// joined is told that the agent of r's host is there: this host is here to it,
// and it there to this one. False: it is refused.
func (a *Agent) joined(r *remote, j control.Joined, here, there string) bool {
	h := r.host
	switch {
	case a.ending || h.lost || h.here:
		return false
	case h.place != nil:
		a.warn("host %s: a second agent was refused; is it named twice under two names?", h.name)
		return false
	case j.Version != control.AgentVersion:
		text := fmt.Sprintf("host %s: its mpivrun speaks version %d of the protocol of agents, this one %d: install the same on all hosts", h.name, j.Version, control.AgentVersion)
		if h.adding != nil {
			a.notAdded(h, errors.New(text))
		} else {
			a.fail(verdict{code: 1, text: text})
		}
		return false
	}
	h.clock = r.clock
	if h.clock.surely() > clockSkew {
		where := "behind"
		if h.clock.behind < 0 {
			where = "ahead of"
		}
		a.warn("host %s: its clock is %v %s the one here: times in its output and logs are off by that", h.name, h.clock.behind.Abs().Round(100*time.Millisecond), where)
	}
	h.place, h.cores, h.copies = r, min(max(j.Cores, 1), coresMost), j.Copies
	h.networks = h.Networks
	own := a.deputy != nil && h.index == a.own()
	if len(h.networks) == 0 && !own {
		h.networks = []control.Network{{Class: topology.LAN, Address: there}}
		if h.translated(j, there) {
			h.networks[0].Address, h.router = j.Address, there
			a.detail("host %s is behind an address translation: its own address is %s", h.name, j.Address)
		}
	}
	if a.hereAddress == "" && !own {
		a.hereAddress = here
	}
	a.emit(events.Event{Kind: events.HostJoined, Host: h.name, Agent: &events.Agent{PID: j.PID, Cores: j.Cores, Address: there}})
	a.detail("host %s: its agent has joined from %s, PID %d, %d cores", h.name, there, j.PID, j.Cores)
	if h.adding != nil {
		a.populate(h)
		return true
	}
	if len(a.notJoined()) == 0 {
		a.allJoined()
		a.startAll()
	}
	return true
}

// translated tells whether h, whose agent seems to come from there, is behind an address translation. Where the
// user says at which addresses it is, others reach it at those.
func (h *host) translated(j control.Joined, there string) bool {
	at, err := netip.ParseAddr(j.Address)
	return err == nil && at.String() != there && len(h.Networks) == 0
}

// joinedHost is what the next head has to know of a host.
type joinedHost struct {
	Networks []control.Network
	Cores    int
	Copies   int
	Router   string `json:",omitempty"`
}

// allJoined writes down where the agents are, and has some of them decide together.
func (a *Agent) allJoined() {
	if a.deputy == nil {
		return
	}
	for _, h := range a.hosts {
		if h.able() {
			if len(h.networks) == 0 {
				h.networks = []control.Network{{Class: topology.LAN, Address: a.hereAddress}}
			}
			a.recordJoined(h)
		}
	}
	a.foundVoters()
}

// recordJoined writes down where the agent of h is.
func (a *Agent) recordJoined(h *host) {
	text, err := json.Marshal(joinedHost{h.networks, h.cores, h.copies, h.router})
	if err != nil {
		panic(fmt.Sprintf("agent: %v", err)) // there is nothing in it that could
	}
	a.record(ledger.Entry{Joined: &ledger.Joined{Host: h.index, Agent: text}})
}

// coresMost is how many cores a host is believed to have.
const coresMost = 1 << 16

// clockSkew is by how much the clocks of two hosts may differ without a word.
const clockSkew = 2 * time.Second
