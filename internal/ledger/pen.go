package ledger

// A Pen is what a head writes a ledger with. What is written counts at once for who writes;
// what others are told because of it waits until it is agreed on. For one goroutine.
type Pen struct {
	State *State // with all that was written

	written uint64 // entries
	agreed  uint64 // of them
	held    []held
}

// held is what waits until entries are agreed on.
type held struct {
	until uint64
	do    func()
}

// NewPen goes on with s, which is agreed on.
func NewPen(s *State) Pen { return Pen{State: s} }

// Write adds e to the ledger. Once it is agreed on, Agreed is to be told of n.
func (p *Pen) Write(e Entry) (n uint64, err error) {
	if err := p.State.Apply(e); err != nil {
		return 0, err
	}
	p.written++
	return p.written, nil
}

// Again has what follows wait until the ledger as it is has been agreed on as a whole. Then
// Agreed is to be told of n.
func (p *Pen) Again() (n uint64) {
	p.written++
	return p.written
}

// Waits tells whether something is not agreed on.
func (p *Pen) Waits() bool { return p.agreed != p.written }

// Then runs do when all that was written is agreed on, which may be now; in the order of
// calls.
func (p *Pen) Then(do func()) {
	if !p.Waits() && len(p.held) == 0 {
		do()
		return
	}
	p.held = append(p.held, held{p.written, do})
}

// Agreed is told that what was written is agreed on, up to n.
func (p *Pen) Agreed(n uint64) {
	p.agreed = max(p.agreed, n)
	for len(p.held) > 0 && p.held[0].until <= p.agreed {
		do := p.held[0].do
		p.held = p.held[1:]
		do()
	}
}
