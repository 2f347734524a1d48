package mpiv

import (
	"fmt"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/brief"
	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/internal/trace"
	"github.com/mpiv/mpiv/topology"
)

// Special ranks and tags.
const (
	AnySource = -1 // of a receive or probe: from whomever
	AnyTag    = -1 // of a receive or probe: with whatever tag
	ProcNull  = -2 // nobody: a send to it and a receive from it end at once, with nothing

	// MaxTag is the largest tag.
	MaxTag = 1<<31 - 1
)

// A Comm is a group of ranks that exchange messages apart from those of every
// other Comm. Each rank has its own value for it. Any goroutine may use it;
// collectives must be called by all its ranks in the same order. Ranks that are
// in different ones, or disagree on the root or a length, get ErrMismatch or
// ErrCount where a message shows it.
//
// When a rank gives up a collective, because of an error, a panic of its
// reduction or the end of its context, all ranks that have not finished theirs
// end it soon, with ErrAbandoned and what made the first give up. Later
// collectives on the Comm work: each call has a number, and no message of one
// can be taken for that of another. All ranks must go on with the same call.
//
// A nil Comm has no ranks, as MPI_COMM_NULL has none. What is called on it fails with ErrComm; methods that
// return no error panic with it.
type Comm struct {
	box     *engine.Box
	rank    int
	group   Group // of its ranks
	size    int
	name    atomic.Pointer[string]
	context uint32 // of point-to-point messages; those after it are below

	state   *rankState
	series  atomic.Uint32 // number of the next collective
	freed   atomic.Bool
	wary    atomic.Bool // it was freed, or the rank looks: collectives look closer before they begin
	odd     atomic.Bool // it was freed, or Options.Check is set: calls look closer
	isWorld bool
	health
	agreements agreements
	late       bool // made after Restore
}

// rankState is what all Comms of a rank share.
type rankState struct {
	contexts atomic.Uint32 // this and all later ones this rank has not used
	buffered bsendBuffer
	agreeing agreeSends
	taken    messageSet
	pendings pendings
	history  history
	options  Options
	state    *State
	life     *process.Life // nil: the rank lives and dies with its process
	left     chan struct{} // closed when it goes on elsewhere
	prologue prologue
	recorder atomic.Pointer[trace.Rank] // nil: calls are not recorded
	looks    atomic.Bool                // Options.Check is set, or the rank has heard of an abandoned collective
	witness  *witness
}

// Options of a world.
type Options struct {
	// Check has costly checks made of the program: buffers that are changed,
	// or used twice, while a request is pending (those of collectives apart), requests that are pending at
	// a SafePoint, state that cannot be saved there, and messages that a rank has not
	// received when it finishes.
	Check bool
}

// The contexts of a Comm.
const (
	collectives = 1 // after that of its point-to-point messages
	groups      = 2 // of CreateGroup on it
	survivors   = 3 // of Agree and Shrink: these messages go on when it is revoked

	contextStep  = 4
	firstContext = 16 // the world's; below it are those of the library itself
)

// worldOf is the Comm of all ranks, as the rank of b has it. life is nil where the
// rank cannot go on elsewhere.
func worldOf(b *engine.Box, opt Options, life *process.Life) *Comm {
	c := &Comm{box: b, rank: int(b.Rank()), size: b.Engine().Size(), context: firstContext, isWorld: true,
		group: Group{self: b.Rank(), size: b.Engine().Size()}, state: &rankState{options: opt, life: life, left: make(chan struct{})}}
	c.state.state = &State{c: c}
	c.state.witness = newWitness(b)
	c.state.prologue.comms, c.state.prologue.stays = []*Comm{c}, life == nil
	if life != nil && life.From != nil {
		c.state.state.err = c.state.recall(life.From.Extra)
	}
	c.odd.Store(opt.Check)
	c.state.looks.Store(opt.Check)
	b.Alarm(&c.state.looks)
	c.state.contexts.Store(firstContext + contextStep)
	c.SetName("world")
	c.state.witness.has(c)
	return c
}

// Rank is the number of the calling rank in c, 0 … Size()-1.
func (c *Comm) Rank() int {
	if c == nil {
		panicNoComm("Rank")
	}
	return c.rank
}

// Size is the number of ranks in c.
func (c *Comm) Size() int {
	if c == nil {
		panicNoComm("Size")
	}
	return c.size
}

// Name is what errors and explanations call c: "world", or what made it.
func (c *Comm) Name() string {
	if c == nil {
		panicNoComm("Name")
	}
	return *c.name.Load()
}

// called is c's name in a line that people read.
func (c *Comm) called() string { return engine.Quoted(c.Name()) }

// nameMost is how long a name may be, in bytes: it is part of errors and reports.
const nameMost = 1000

// SetName gives c a name for people, who see it in quotes if there is a line end or something
// else in it that cannot be printed. Of a name that is longer than 1000 bytes both ends are left.
func (c *Comm) SetName(name string) {
	if c == nil {
		panicNoComm("SetName")
	}
	name = brief.Text(name, nameMost)
	c.name.Store(&name)
	c.box.NameContext(c.context, name)
}

// world is the rank in the world of rank r of c.
func (c *Comm) world(r int) topology.Rank {
	if c.group.ranks == nil {
		return topology.Rank(r)
	}
	return c.group.ranks[r]
}

// local is the rank in c of rank w of the world.
func (c *Comm) local(w topology.Rank) int {
	if c.group.ranks == nil {
		return int(w)
	}
	return c.group.index(w)
}

// Free ends the use of c by the calling rank; later calls fail with ErrComm, and
// what is under way ends as usual. The world cannot be freed.
func (c *Comm) Free() error {
	if c == nil {
		return c.fail("Free", -1, -1, ErrComm)
	}
	if c.isWorld {
		return c.fail("Free", -1, -1, fmt.Errorf("%w: the world cannot be freed", ErrComm))
	}
	c.odd.Store(true)
	c.wary.Store(true)
	if c.freed.Swap(true) {
		return c.fail("Free", -1, -1, ErrComm)
	}
	if c.late {
		c.state.prologue.late.Add(-1)
	}
	c.state.witness.leaves(c)
	if !c.state.options.Check { // which names it in what it finds at the end
		c.box.ForgetContext(c.context)
	}
	return nil
}

// fail is the error of a call; of a Comm that is nil that is all that is wrong.
func (c *Comm) fail(op string, peer, tag int, err error) error {
	if c == nil || c == noComm {
		return &RankError{Op: op, Rank: -1, Peer: peer, Tag: tag, Where: callsite.Here(), Err: errNoComm}
	}
	return &RankError{Op: op, Comm: c.Name(), Rank: c.rank, Peer: peer, Tag: tag, Where: callsite.Here(), Err: err}
}

// noComm is in the place of a Comm that is nil where a collective begins, so that what checks its arguments
// has one to look at. It has been freed.
var noComm = func() *Comm {
	c := &Comm{size: 1, state: &rankState{state: &State{}}}
	c.freed.Store(true)
	c.wary.Store(true)
	c.state.state.restored.Store(true)
	name := "no communicator"
	c.name.Store(&name)
	return c
}()

// panicNoComm is what a method does that has no error to return.
func panicNoComm(op string) { panic(noComm.fail(op, -1, -1, ErrComm)) }
