// Package agree is uniform agreement among the members of a group, any of which may
// crash at any moment: all that end with a value end with the same, those that crash
// afterwards too. It is pure: messages and crashes in, messages out.
//
// It relies on channels that deliver in order, and what a live member has sent to
// another that lives; and on crashes that are told to all, sooner or later, and only of
// members of whom nothing more is accepted.
//
// The member of the lowest number that lives leads. It gathers what all contribute,
// proposes what that makes, and has decided when all that live have accepted. Whoever
// leads after a crash hears what was accepted last, and proposes that again: so a
// decision stays. A member may return, and never answer again, when it knows that all
// who live know the decision: the leader says Release then. Should the leader crash before, who
// knows the decision tells everybody, and returns.
//
// The proposal is that of Chandra and Toueg, "Unreliable Failure Detectors for Reliable
// Distributed Systems" (JACM 43, 1996), with a detector that does not err; the end, for
// members that leave, is after Buntinas, "Scalable Distributed Consensus to Support
// MPI Fault Tolerance" (IPDPS 2012).
package agree

// A Value is what members contribute, and what they agree on.
type Value struct {
	Flag   uint64 // agreed: that of all who contributed, combined by and
	Floor  uint32 // agreed: the highest
	Failed Set    // members that are known to have crashed. Agreed: all that were known to anybody
	Acked  Set    // members whose crash the program has acknowledged. Agreed: those of which all had
	Quit   Set    // agreed: members that have given up before they contributed
}

func (v Value) clone() Value {
	return Value{v.Flag, v.Floor, v.Failed.Clone(), v.Acked.Clone(), v.Quit.Clone()}
}

// combine makes v the combination of v and w.
func (v *Value) combine(w Value) {
	v.Flag &= w.Flag
	v.Floor = max(v.Floor, w.Floor)
	v.Failed.union(w.Failed)
	v.Acked.intersect(w.Acked)
	v.Quit.union(w.Quit)
}

// A Kind says what a Message is for.
type Kind uint8

// The kinds, in the order of an agreement in which nobody crashes.
const (
	Contribute Kind = iota + 1 // to the leader: what the member brings, or has accepted of an earlier leader
	Propose                    // of the leader: accept this
	Accept                     // to the leader
	Decide                     // of the leader: this is the decision, and Release will follow
	Know                       // to the leader: the member knows
	Release                    // of the leader: all know
	Tell                       // of anybody whose leader has crashed: this is the decision
	Quit                       // of anybody: it gives up
	kinds
)

// nobody is the leader of what was not accepted of any.
const nobody = -1

// A Message is between two members. Value is set for Contribute, Propose, Decide and
// Tell.
type Message struct {
	Kind     Kind
	Accepted int // of Contribute: the leader whose proposal Value is; -1: it is the member's own
	Value    Value
}

// An Out is a Message to be sent.
type Out struct {
	To int
	Message
}

// A Machine is one member's part in one agreement.
type Machine struct {
	self, size int
	crashed    Set // and told to this member
	quit       Set
	gone       Set // both
	leader     int

	value    Value // its contribution, or what it has accepted, or the decision
	accepted int   // whose proposal value is

	phase   phase
	decided bool  // value is the decision
	own     Value // of the leader: what the contributions make so far
	from    int   // of the leader: whose proposal is the latest of those that were accepted
	last    Value // that proposal
	heard   Set   // of the leader: who has answered in this phase
	early   []out // contributions to this member while another led

	outs []Out
}

type out struct {
	from int
	Message
}

type phase uint8

const (
	gathering phase = iota // and for who does not lead: until it knows the decision
	proposing
	telling // the decision is known
	over
)

// New begins the agreement for member self of size. v is its contribution, whose Failed
// are the crashes that it knows of. What is to be sent is in the answer, as for all
// methods that return it.
func New(self, size int, v Value) (*Machine, []Out) {
	m := &Machine{self: self, size: size, crashed: NewSet(size), quit: NewSet(size), gone: NewSet(size), value: v.clone(), accepted: nobody}
	m.value.Quit = NewSet(size)
	m.crashed.union(v.Failed)
	m.gone.union(v.Failed)
	m.leader = m.lowest()
	m.turn()
	return m, m.take()
}

// Result is what was agreed on; false while that is not known to all, and for who has
// given up before.
func (m *Machine) Result() (Value, bool) { return m.value, m.decided && m.phase == over }

// Receive takes a message of a member.
func (m *Machine) Receive(from int, msg Message) []Out {
	if m.gone.Has(from) || m.phase == over {
		return nil
	}
	switch msg.Kind {
	case Contribute:
		if m.leader == m.self {
			m.contributed(from, msg)
		} else {
			m.early = append(m.early, out{from, msg})
		}
	case Propose:
		if from == m.leader && m.phase == gathering {
			m.value, m.accepted = msg.Value.clone(), from
			m.send(from, Message{Kind: Accept})
		}
	case Accept:
		m.answered(from, proposing)
	case Decide:
		if from == m.leader && m.phase == gathering {
			m.value, m.decided, m.phase = msg.Value.clone(), true, telling
			m.send(from, Message{Kind: Know})
		}
	case Know:
		m.answered(from, telling)
	case Release:
		if from == m.leader {
			m.phase = over
		}
	case Tell:
		m.value, m.decided = msg.Value.clone(), true
		m.tellAll()
	case Quit:
		m.quit.Add(from)
		m.lost(from)
	}
	return m.take()
}

// Crashed takes that a member has.
func (m *Machine) Crashed(r int) []Out {
	if m.crashed.Has(r) || m.phase == over {
		return nil
	}
	m.crashed.Add(r)
	m.lost(r)
	return m.take()
}

// Quit gives up: nothing more is to be done with m. If the decision is known it is told
// to all, and Result has it.
func (m *Machine) Quit() []Out {
	switch m.phase {
	case over:
	case telling:
		m.tellAll()
	default:
		m.phase = over
		m.toAll(Message{Kind: Quit})
	}
	return m.take()
}

// lost goes on without r, which was not gone.
func (m *Machine) lost(r int) {
	if m.gone.Has(r) {
		return
	}
	m.gone.Add(r)
	switch {
	case r == m.leader && m.phase == telling:
		m.tellAll() // nobody else may
	case r == m.leader:
		m.leader = m.lowest()
		m.turn()
	case m.leader == m.self:
		m.advance()
	}
}

// turn begins with the leader that there is now.
func (m *Machine) turn() {
	if m.leader != m.self {
		m.send(m.leader, Message{Contribute, m.accepted, m.value})
		return
	}
	m.own, m.from = m.value.clone(), m.accepted
	m.last = m.own
	m.heard = NewSet(m.size)
	early := m.early
	m.early = nil
	for _, c := range early {
		if !m.gone.Has(c.from) {
			m.contributed(c.from, c.Message)
		}
	}
	m.advance()
}

func (m *Machine) contributed(from int, msg Message) {
	if m.phase != gathering || m.heard.Has(from) {
		return
	}
	switch {
	case msg.Accepted > m.from:
		m.from, m.last = msg.Accepted, msg.Value.clone()
	case msg.Accepted == nobody && m.from == nobody:
		m.own.combine(msg.Value)
	}
	m.heard.Add(from)
	m.advance()
}

func (m *Machine) answered(from int, in phase) {
	if m.leader == m.self && m.phase == in {
		m.heard.Add(from)
		m.advance()
	}
}

// advance does what is due of the leader when all that live have answered.
func (m *Machine) advance() {
	for m.phase != over && m.allHeard() {
		m.heard = NewSet(m.size)
		switch m.phase {
		case gathering:
			if m.from == nobody {
				m.own.Failed.union(m.crashed)
				m.own.Quit.union(m.quit)
				m.last = m.own
			}
			m.value, m.accepted, m.phase = m.last.clone(), m.self, proposing
			m.toAll(Message{Kind: Propose, Value: m.value})
		case proposing:
			m.decided, m.phase = true, telling
			m.toAll(Message{Kind: Decide, Value: m.value})
		case telling:
			m.phase = over
			m.toAll(Message{Kind: Release})
		}
	}
}

func (m *Machine) allHeard() bool {
	for i := range m.heard {
		want := ^uint64(0)
		if rest := m.size - 64*i; rest < 64 {
			want = 1<<rest - 1
		}
		have := m.heard[i] | m.gone[i]
		if m.self/64 == i {
			have |= 1 << (m.self % 64)
		}
		if have&want != want {
			return false
		}
	}
	return true
}

// tellAll ends m, which knows the decision.
func (m *Machine) tellAll() {
	m.phase = over
	m.toAll(Message{Kind: Tell, Value: m.value})
}

func (m *Machine) lowest() int {
	for r := range m.size {
		if r == m.self || !m.gone.Has(r) {
			return r
		}
	}
	panic("agree: a member that is none")
}

func (m *Machine) send(to int, msg Message) { m.outs = append(m.outs, Out{to, msg}) }

func (m *Machine) toAll(msg Message) {
	for r := range m.size {
		if r != m.self && !m.gone.Has(r) {
			m.send(r, msg)
		}
	}
}

// take is what is to be sent. Values in it are not changed any more.
func (m *Machine) take() []Out {
	outs := m.outs
	m.outs = nil
	for i := range outs {
		if outs[i].Value.Failed != nil {
			outs[i].Value = outs[i].Value.clone()
		}
	}
	return outs
}
