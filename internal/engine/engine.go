// Package engine moves messages between the ranks of one process and those of
// others: it matches, numbers, logs and delivers. It is run by whoever waits:
// a goroutine that waits for a message polls the connections of its process,
// and sleeps only after a measured while (wait.go, poll.go, watch.go).
//
// Lock order: Engine.polling, then turns.mu, then Box.mu, then link.mu. No lock is held while
// a goroutine sleeps, but that a connection may be closed with all of them held: over
// shared memory that waits for a peer that is in the middle of a copy, for a second at most.
package engine

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/topology"
)

// Wildcards of receives and probes.
const (
	AnySource topology.Rank = -1
	AnyTag    int32         = -1
)

// What requests end with, for errors.Is.
var (
	ErrTruncate  = errors.New("message longer than the receive buffer")
	ErrCancelled = errors.New("request was cancelled")
	ErrStale     = errors.New("request was already waited for")
	ErrClosed    = errors.New("the process has left the job")
)

// A LostError is why an engine fails that has lost a process for good.
type LostError struct {
	Process int
	Err     error
	Waits   map[topology.Rank][]WaitInfo // the calls that it ends, of this process's ranks
}

func (e *LostError) Error() string {
	return fmt.Sprintf("connection to process %d: %v", e.Process, e.Err)
}
func (e *LostError) Unwrap() error { return e.Err }

// A Config says what an Engine is part of. All fields without a default must
// be set.
type Config struct {
	Process   int               // index of this process
	Processes [][]topology.Rank // the ranks of each process, by index
	Epoch     topology.Epoch    // of the map. Zero means 1.

	// Keep is the log's level "moves": a message is kept until the receiving
	// process has it, and a connection that breaks is made again. Without it
	// a broken connection ends the job.
	Keep     bool
	LogBytes int // bound of the log towards one process. Zero means 16 MiB.
	// Recorded is how long messages are at most that are sent, and recorded, with their bodies
	// where Replay is set. They may be sent again over any connection of the job, so each must take
	// that much. Zero means 64 KiB.
	Recorded int

	// Replay is the log's level "crashes", for which Keep must be set too: a
	// message is kept until a snapshot of its receiver covers it (Covered). When the
	// log holds LogBytes for a process, ranks there are asked to take a snapshot, and
	// more of it is in Spill. When that is full, what would be sent there waits.
	Replay bool
	Spill  Spill // nil: memory, without a bound
	// SaveBytes is by how much the log grows between two asks for a snapshot that its receiver
	// takes if it is cheap. Zero: nobody is asked before the log holds LogBytes.
	SaveBytes int
	// Witness tells when what hangs on choices may leave this host, to processes of which
	// SetFar was called. nil: at once.
	Witness Ledger
	// Save is told that a snapshot of a rank of this process is wanted, because rank from
	// keeps much for it: as much as it can, or, if bytes is not 0, so many, that it
	// would else write into a snapshot of its own, or that are SaveBytes. It must not wait.
	Save func(r, from topology.Rank, bytes int)
	// Room is how many processes more than Processes the job may come to have.
	Room int

	Unexpected int // bytes of unexpected messages a rank holds before its peers must offer. Zero means 4 MiB.

	// What collectives choose by, so it must be the same in all processes.
	Crowded bool // a host has more processes with ranks than cores. Calls that poll then give the core away
	Shared  bool // all processes are on one host and pull from each other's memory

	// Stepped leaves all work to the caller's Progress: the engine starts no
	// goroutine and no timer. For simulators.
	Stepped bool

	// Behind is told that a process, this one or another, has to hear of a map that it does
	// not know, so that messages go on. It must not wait and not call back.
	Behind func(process int)
	// Connect asks for a connection to a process; the answer is Dial and Greet. It is
	// called when there is a message for it and no connection, with locks
	// held: it must not wait and not call back.
	Connect func(process int)
	// Fail is told, once, that the job cannot go on, and then all calls that sleep
	// end. It must not wait.
	Fail func(err error)
	// Lost is told that a process cannot be reached, or that the connection to it
	// was lost for good. It must not wait. The answer is DeclareFailed, sooner or later.
	// Nil: the job cannot go on.
	Lost func(process int, err error)

	Log *slog.Logger // nil means slog.DiscardHandler
}

// A Spill is memory for what a log holds beyond its bound.
type Spill interface {
	Take(n int) []byte // n bytes or more; nil: there is no more
	Give(b []byte)     // gives them back
	Full() bool
}

func (c Config) withDefaults() Config {
	if c.Epoch == 0 {
		c.Epoch = 1
	}
	if c.LogBytes == 0 {
		c.LogBytes = 16 << 20
	}
	if c.Recorded == 0 {
		c.Recorded = 64 << 10
	}
	if c.SaveBytes == 0 || c.SaveBytes > c.LogBytes {
		c.SaveBytes = c.LogBytes
	}
	if c.Unexpected == 0 {
		c.Unexpected = 4 << 20
	}
	if c.Connect == nil {
		c.Connect = func(int) {}
	}
	if c.Behind == nil {
		c.Behind = func(int) {}
	}
	if c.Save == nil {
		c.Save = func(topology.Rank, topology.Rank, int) {}
	}
	if c.Fail == nil {
		c.Fail = func(error) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// An Engine is the message core of one process. All methods may be called by
// any goroutine.
type Engine struct {
	cfg      Config
	size     int                    // of the world
	peers    []peer                 // by rank in the world, and then one for each process
	links    []atomic.Pointer[link] // by process; nil for this one, and for some that nobody has spoken of
	linking  sync.Mutex             // held while one is made
	envoy    *Box                   // of this process; set once
	limbo    *link                  // to no process: what is for ranks that are on their way waits there
	epoch    atomic.Uint32          // of the newest map it has heard of
	whole    atomic.Uint32          // that map and all before it are known
	spin     spinPolicy             // set once
	ackEvery int                    // cost of messages after which the peer is told, asked or not; set once
	bufs     buffers                // has its own lock
	slabs    slabs                  // has its own lock
	ready    chan struct{}          // tells watch that there is a connection to look after
	woken    chan struct{}          // tells watch that something came
	roused   chan struct{}          // tells watch, while it dozes, that the engine is at rest no more
	wakeMe   func()                 // wake, made once
	stop     chan struct{}          // closed by Close
	done     sync.WaitGroup         // of watch

	polling  lock.Mutex                 // held by who polls; guards the receiving half of every link
	opened   *Box                       // whose mu is held, within a poll; guarded by polling
	pulling  int                        // pulls under way; guarded by polling
	leaving  map[topology.Rank]*parting // guarded by polling
	partings uint64                     // so far; guarded by polling
	missed   uint32                     // learned, plus 1, when Behind was told of this process; guarded by polling
	beyond   []uint32                   // maps that are known, above whole, ascending; guarded by polling
	left     map[int]uint32             // by process: the newest map by which a rank has left for it; guarded by polling
	learned  uint32                     // counts the maps that it was told, in whatever order; guarded by polling
	placings uint32                     // counts ranks that have come, left or moved; guarded by polling
	ackSoon  bool                       // some link's is set, or was; guarded by polling
	polls    uint32                     // counts those who polled; written while polling is held
	leftAt   time.Time                  // when who polled last left, where goroutines slept; guarded by polling
	inARow   int                        // of such, those that came soon after each other; guarded by polling

	active  atomic.Pointer[[]*link] // those with a connection; replaced as a whole
	boxes   atomic.Pointer[[]*Box]  // of this process, by rank ascending, its envoy not among them; replaced as a whole while polling is held
	parked  atomic.Int32            // goroutines that sleep until a message comes
	patient atomic.Int32            // and those that are patient
	waitIDs atomic.Uint64
	armed   atomic.Bool // every connection is, and none has called since
	dozing  atomic.Bool // watch does not tick
	closed  atomic.Bool
	dials   atomic.Int32 // links that are being dialed
	tasks   atomic.Int32 // goroutines of tasks
	guests  atomic.Int32 // who want polling for a moment, though somebody polls

	assisted  atomic.Bool // a connection needs cores to move bytes: nobody polls for long
	crowded   atomic.Bool // a polling caller has lost its core to others,
	crowdedAt time.Time   // at this time; guarded by polling
	company   company     // whether they still need it; guarded by polling
	neighbour neighbour   // who may share the core of who polls; guarded by polling

	lull     atomic.Pointer[alarm.Alarm]           // who polls puts it off; nil: watch ticks
	restedAt time.Time                             // when who polls last did so; guarded by polling
	restDue  atomic.Bool                           // it is time for it
	looks    atomic.Pointer[[]func(now time.Time)] // what they look at then; replaced as a whole while failMu is held

	flushDue   atomic.Bool // flushTimer runs
	flushTimer *time.Timer // has watch send what Isend held back and nobody else has sent

	failures atomic.Pointer[[]topology.Rank] // in the order of being told; replaced as a whole while polling is held

	failMu sync.Mutex // guards what follows
	cause  error      // why the job cannot go on
	dead   chan struct{}
}

// A peer is a rank, here or elsewhere. While it comes or goes both fields are set,
// and what counts is link, read again while its mu is held.
type peer struct {
	link atomic.Pointer[link]
	box  atomic.Pointer[Box]

	failed atomic.Bool // its process was declared so; set while polling is held
	past   []*link     // where it was before; guarded by polling

	// Of a rank at limbo, guarded by polling: by whose Depart, and which.
	letGo   *link
	parting uint64
}

// New makes the engine of one process. Close ends it.
func New(cfg Config) *Engine {
	e := &Engine{cfg: cfg.withDefaults(), ready: make(chan struct{}, 1), woken: make(chan struct{}, 1), roused: make(chan struct{}, 1), stop: make(chan struct{}), dead: make(chan struct{})}
	e.looks.Store(new([]func(now time.Time)))
	e.bufs.slabs = &e.slabs
	size := 0
	for _, ranks := range cfg.Processes {
		for _, r := range ranks {
			size = max(size, int(r)+1)
		}
	}
	e.size = size
	e.links = make([]atomic.Pointer[link], len(cfg.Processes)+cfg.Room)
	e.peers = make([]peer, size+len(e.links))
	e.limbo = newLink(e, -1)
	e.limbo.wanted = true // it never connects
	e.epoch.Store(uint32(e.cfg.Epoch))
	e.whole.Store(uint32(e.cfg.Epoch))
	for i, ranks := range cfg.Processes {
		if i == cfg.Process {
			continue
		}
		l := e.link(i)
		for _, r := range ranks {
			e.peers[r].link.Store(l)
		}
	}
	var own []topology.Rank
	if cfg.Process < len(cfg.Processes) {
		own = cfg.Processes[cfg.Process]
	}
	boxes := make([]*Box, len(own))
	for i, r := range own {
		boxes[i] = newBox(e, r)
		e.peers[r].box.Store(boxes[i])
	}
	e.boxes.Store(&boxes)
	e.envoy = newBox(e, e.Envoy(cfg.Process))
	e.peers[e.envoy.rank].box.Store(e.envoy)
	for r := range size {
		if p := &e.peers[r]; p.box.Load() == nil && p.link.Load() == nil {
			panic(fmt.Sprintf("engine: no process holds rank %d of %d", r, size))
		}
	}
	e.wakeMe = e.wake
	e.active.Store(new([]*link))
	e.spin = newSpinPolicy(e.cfg, len(*e.boxes.Load()))
	e.ackEvery = min(e.cfg.LogBytes/8, 256<<10) // so that the log stays in the cache
	e.flushTimer = time.NewTimer(time.Hour)
	e.flushTimer.Stop()
	if len(e.links) > 1 && !cfg.Stepped {
		e.done.Go(e.watch)
	}
	return e
}

// Crowded is Config.Crowded.
func (e *Engine) Crowded() bool { return e.cfg.Crowded }

// Shared is Config.Shared.
func (e *Engine) Shared() bool { return e.cfg.Shared }

// Size is the number of ranks in the world.
func (e *Engine) Size() int { return e.size }

// Envoy is the rank, beyond those of the world, as which a process itself sends
// and receives. Who has it can send to that process, which may be one that comes later.
func (e *Engine) Envoy(process int) topology.Rank {
	e.link(process)
	return topology.Rank(e.size + process)
}

// link is the link to a process, nil to this one. To processes that may come later there is
// one when it is asked for first.
func (e *Engine) link(process int) *link {
	p := &e.links[process]
	if l := p.Load(); l != nil || process == e.cfg.Process {
		return l
	}
	e.linking.Lock()
	defer e.linking.Unlock()
	if p.Load() == nil {
		l := newLink(e, process)
		e.peers[e.size+process].link.Store(l)
		p.Store(l)
	}
	return p.Load()
}

// known is the links that there are.
func (e *Engine) known() iter.Seq[*link] {
	return func(yield func(*link) bool) {
		for i := range e.links {
			if l := e.links[i].Load(); l != nil && !yield(l) {
				return
			}
		}
	}
}

// Box is the end of a rank of this process; nil for other ranks.
func (e *Engine) Box(r topology.Rank) *Box {
	if e.peers[r].link.Load() != nil {
		return nil
	}
	return e.peers[r].box.Load()
}

// Local is the ranks of this process, ascending.
func (e *Engine) Local() []topology.Rank {
	boxes := *e.boxes.Load()
	local := make([]topology.Rank, len(boxes))
	for i, b := range boxes {
		local[i] = b.rank
	}
	return local
}

// Close ends every connection and fails what is pending with ErrClosed. It
// waits for the engine's goroutines. Twice is harmless.
func (e *Engine) Close() {
	if !e.closed.Swap(true) {
		close(e.stop)
	}
	e.fail(ErrClosed, true)
	e.done.Wait()
	e.polling.Lock()
	for _, l := range *e.active.Load() {
		l.mu.Lock()
		l.conn.Close()
		l.conn = nil
		l.mu.Unlock()
	}
	e.active.Store(new([]*link))
	e.polling.Unlock()
}

// fail ends every pending and later call with err.
func (e *Engine) fail(err error, quiet bool) {
	e.failMu.Lock()
	first := e.cause == nil
	if first {
		e.cause = err
	}
	e.failMu.Unlock()
	if !first {
		return
	}
	if !quiet {
		e.cfg.Fail(err)
	}
	close(e.dead)
}

// err is why the engine failed; nil while it has not.
func (e *Engine) err() error {
	e.failMu.Lock()
	defer e.failMu.Unlock()
	return e.cause
}

// Drain waits until everything sent so far is stable: its receivers' processes
// have it. Offers that no one received do not count.
func (e *Engine) Drain(ctx context.Context) error {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 5*time.Millisecond) {
		e.tellAcks()
		e.Progress()
		if e.drained() {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.dead:
			return e.err()
		case <-time.After(pause):
		}
	}
}

// tellAcks tells every peer what has arrived.
func (e *Engine) tellAcks() {
	e.polling.Lock()
	for _, l := range *e.active.Load() {
		if l.owedBytes > 0 {
			l.mu.Lock()
			l.sendAcks()
			l.mu.Unlock()
		}
	}
	e.leave()
}

func (e *Engine) drained() bool {
	for l := range e.known() {
		l.mu.Lock()
		busy := l.queue.head != nil || l.ctl.size() > 0 || l.logged > 0 && !e.cfg.Replay
		l.mu.Unlock()
		if busy {
			return false
		}
	}
	return true
}

// Logged is how many bytes the log holds towards all processes, for tests and
// metrics.
func (e *Engine) Logged() (bytes int) {
	for l := range e.known() {
		l.mu.Lock()
		bytes += l.logged
		l.mu.Unlock()
	}
	return bytes
}

// Fail ends every pending and later call with err: the job cannot go on.
func (e *Engine) Fail(err error) { e.fail(err, false) }

// Go runs f in a goroutine that Close waits for. f must end soon after the
// engine fails its calls.
func (e *Engine) Go(f func()) { e.done.Go(f) }
