package sim

import (
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// In some wild runs processes are on hosts, and choices are where they were made, until
// another host knows them, too. A host can be lost with all its processes. What a rank has
// done since then counts for nothing, as long as nobody elsewhere has heard of it.

// A host is what its processes and its agent share.
type host struct {
	index               int
	recorded, witnessed uint64
}

func (h *host) Recorded() uint64  { return h.recorded }
func (h *host) Witnessed() uint64 { return h.witnessed }
func (h *host) Wake()             {}

// hostOf is where a process is: the first ones in pairs.
func (s *survival) hostOf(process int) *host {
	if process < len(s.first) {
		process /= 2
	}
	return s.hosts[process%len(s.hosts)]
}

// settle tells the engine of a process which others are on other hosts.
func (s *survival) settle(process int, e *engine.Engine) {
	for other := range lives {
		if s.hostOf(other) != s.hostOf(process) {
			e.SetFar(other)
		}
	}
}

// chose records a choice of a rank.
func (s *survival) chose(r topology.Rank, c engine.Choice) {
	s.choices[r] = append(s.choices[r], c)
	if s.hosts != nil {
		h := s.hostOf(s.places[r])
		s.madeOn[r] = append(s.madeOn[r], h.index)
		h.recorded++
	}
}

// testify has another host know the choices that were made on h.
func (s *survival) testify(h *host) {
	if h.witnessed != h.recorded {
		s.tally.Testified++
	}
	h.witnessed = h.recorded
	for r, on := range s.madeOn {
		for s.known[r] < len(on) && (on[s.known[r]] == h.index || s.hostOf(s.places[r]) == h) {
			s.known[r]++
		}
	}
}

// forget is told that a snapshot covers the choices of a rank.
func (s *survival) forget(r topology.Rank) {
	s.choices[r] = nil
	if s.hosts != nil {
		s.madeOn[r], s.known[r] = nil, 0
	}
}

// lose loses a host: its processes end, and with them what only they knew.
func (s *survival) lose(h *host) {
	s.tally.Lost++
	for r := range s.choices {
		all := s.madeOn[r]
		for i := s.known[r]; i < len(all); i++ {
			if now := s.hostOf(s.places[r]); now != h && all[i] == h.index { // it has gone on elsewhere, which has them
				all[i] = now.index
			} else if all[i] == h.index {
				s.tally.Unknown += len(all) - i
				s.choices[r], s.madeOn[r] = slices.Clip(s.choices[r][:i]), slices.Clip(all[:i])
				break
			}
		}
	}
	for _, w := range s.ranks {
		if w.box != nil && s.hostOf(s.places[w.rank]) == h {
			s.kill(w)
		}
	}
	h.witnessed = h.recorded // there are none left
}

// account notes what a rank has sent and received in an iteration, in its last life.
func (s *survival) account(w *worker) {
	if s.hosts == nil {
		return
	}
	for to := range s.ranks0() {
		s.mail[mail{w.iteration, int(w.rank), to}] = nil
	}
	for _, o := range w.sends {
		k := mail{w.iteration, int(w.rank), int(o.m.Peer)}
		s.mail[k] = append(s.mail[k], fold(0, o.body))
	}
	for _, t := range w.tasks {
		for _, o := range t.outs {
			k := mail{w.iteration, int(w.rank), o.peer}
			s.mail[k] = append(s.mail[k], o.sum)
		}
	}
	for from := range s.ranks0() {
		s.came[mail{w.iteration, from, int(w.rank)}] = nil
	}
	for _, o := range w.receives {
		k := mail{w.iteration, o.from, int(w.rank)}
		s.came[k] = append(s.came[k], fold(0, o.buf))
	}
	for _, t := range w.tasks {
		for _, o := range t.ins {
			k := mail{w.iteration, o.peer, int(w.rank)}
			s.came[k] = append(s.came[k], o.sum)
		}
	}
}

// A mail is what went from a rank to another in an iteration.
type mail struct{ iteration, from, to int }

// agree is an error if somebody has received what nobody has sent.
func (s *survival) agree() error {
	for k, sent := range s.mail {
		came := s.came[k]
		slices.Sort(sent)
		slices.Sort(came)
		if !slices.Equal(sent, came) {
			return fmt.Errorf("rank %d has sent rank %d other messages in iteration %d than came: %x, not %x", k.from, k.to, k.iteration, sent, came)
		}
	}
	return nil
}
