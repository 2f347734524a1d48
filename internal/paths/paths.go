// Package paths decides over which of several paths two processes talk. It is a
// pure state machine: it is told the time and what was seen, and answers what to
// do. It dials nothing.
//
// A pair starts on the best class that both ends offer. It leaves a path that
// breaks or stalls for whichever other answers first, and goes back when the
// better one answers again. It also changes where another path is known to be
// faster, or where it is told to avoid a class. Only one end of a pair plans changes;
// either leaves a path that fails.
package paths

import (
	"math/rand/v2"
	"time"

	"github.com/mpiv/mpiv/topology"
)

// A Path is one of the ways between two processes.
type Path struct {
	Name  string // for people: "san tcp 10.1.0.2:4711"
	Class topology.Class
	// Network is the same for paths that fail together because they share what carries
	// them, such as TCP and QUIC between the same two addresses. Empty: shared with none.
	Network string
}

// A Config of a Pair. Paths must be set.
type Config struct {
	Paths    []Path        // best first, as long as nothing is measured
	Plans    bool          // this end decides of changes that need not be
	Patience time.Duration // how long the pair may be without any path, while this process looks for one. Zero means 30 s.
	Seed     uint64        // of the jitter
}

// What is waited for, and how long.
const (
	startStagger = 150 * time.Millisecond // before another path is dialed beside the first, at the start
	breakStagger = 50 * time.Millisecond  // after a path has failed

	stallMin    = 50 * time.Millisecond // without an acknowledgement: above the 40 ms for which a kernel may hold one back
	silenceMin  = 100 * time.Millisecond
	silenceFull = 500 * time.Millisecond // where the kernel's readings, which are better, see nothing wrong
	lateTick    = 100 * time.Millisecond // this process itself was held up: what it reads then says little

	firstRetry  = 4 * time.Millisecond
	urgentRetry = 250 * time.Millisecond
	firstProbe  = 250 * time.Millisecond
	lastProbe   = 1200 * time.Millisecond

	dialFor    = 500 * time.Millisecond
	dialForWAN = 4 * time.Second
	dialMost   = 3 * time.Second // where there is no other path to hope for
	takeFor    = time.Second

	margin     = 1.5 // by which another path must be faster
	slowFor    = time.Second
	slowHold   = 30 * time.Second
	slowHolds  = 10 * time.Minute
	paceAge    = 10 * time.Minute
	provenFor  = 10 * time.Second // a path that fails sooner after it was rejoined has to wait
	firstHold  = time.Second
	longestOut = time.Minute
)

// An Input is what has happened: [Want], [Tick], [Answered], [Failed],
// [Attached] or [Avoid].
type Input interface{ input() }

// Want: there is something to send and no connection. Err is why the last one was
// lost, if there was one.
type Want struct{ Err error }

// Tick: time has passed. Reading is of the path in use, if there is one.
type Tick struct{ Reading Reading }

// Answered: the other process has answered on a path that was dialed.
type Answered struct {
	Path   int
	RTT    time.Duration
	Stable bool // once the path is taken it is never left, and taking it is not given up
}

// Failed: a Dial, Connect or Take has.
type Failed struct {
	Path int
	Err  error
}

// Attached: the pair now uses a connection over this path, which this end has
// dialed, or the other.
type Attached struct {
	Path           int
	Dialed, Stable bool
}

// Avoid: until then planned changes leave paths of that class for one of another, and
// take none of it; one that is needed is used all the same. It takes the place of the
// Avoid before. A zero Until ends it, and lets the pair go back.
type Avoid struct {
	Class topology.Class
	Until time.Time
	Why   string // a phrase, for people
}

func (Want) input()     {}
func (Tick) input()     {}
func (Answered) input() {}
func (Failed) input()   {}
func (Attached) input() {}
func (Avoid) input()    {}

// A Reading is how the path in use does.
type Reading struct {
	RTT      time.Duration
	Measured bool          // the network tells Stalled
	Stalled  time.Duration // how long bytes have been under way without an acknowledgement
	Silent   time.Duration // how long something is due of the other process, and nothing has come
	Out, In  Pace          // of this end's messages, of the other's
}

// A Pace is how many bytes a second a path delivers; 0 if that is not known.
type Pace struct {
	Rate    float64
	Limited bool // by the path, now: not by a program
}

// A Verb is what to do with a path.
type Verb uint8

const (
	Dial    Verb = iota + 1 // connect and ask whether the other process is there
	Connect                 // Dial and Take in one
	Take                    // of an answered path: use it
	Drop                    // give up the Dial, Connect or Take under way
	GiveUp                  // the job cannot go on: Err
)

func (v Verb) String() string {
	return [...]string{"", "dial", "connect", "take", "drop", "give up"}[v]
}

// An Action is to be done.
type Action struct {
	Do   Verb
	Path int
	Err  error // of GiveUp
}

type state uint8

const (
	idle state = iota
	dialing
	ready // answered
	taking
)

func (s state) String() string { return [...]string{"idle", "dialing", "answered", "taken"}[s] }

// A route is what is known of a path.
type route struct {
	Path
	stable   bool
	state    state
	began    time.Time // of what is under way
	failures int       // dials in a row
	next     time.Time // not dialed before
	dead     time.Time // it failed; zero: it has not since it worked
	err      error     // of the last failure
	rtt      time.Duration
	pace     [2]float64
	paced    time.Time // when pace was measured
	faster   time.Duration

	own  standing
	net  *standing // of its network; own's if it shares none
	left bool      // it failed while in use, at some time
	slow bool      // own.hold is for that: forget its pace then
}

// A Pair is the paths between this process and another. Its methods are for one
// goroutine at a time.
type Pair struct {
	cfg    Config
	rng    *rand.Rand
	routes []route

	using     int // -1: none
	last      int // what was used last
	since     time.Time
	why       string
	switches  int
	stalled   bool
	stall     string    // how
	wanted    time.Time // there is no connection since then; zero: none is wanted
	lastTick  time.Time
	reason    string // of the Take under way, or of the last failure of a path in use
	fled      string // how the path in use failed that the Take under way is to leave; "": it did not
	avoid     Avoid  // the last that was heard
	hopeless  bool   // GiveUp was said
	everUsed  bool
	now       time.Time
	actions   []Action
	lastBegun time.Time
}

// New is a pair that has no connection yet.
func New(cfg Config) *Pair {
	if cfg.Patience == 0 {
		cfg.Patience = 30 * time.Second
	}
	p := &Pair{cfg: cfg, using: -1, last: -1, rng: rand.New(rand.NewPCG(cfg.Seed, 0))}
	p.routes = make([]route, len(cfg.Paths))
	nets := make(map[string]*standing)
	for i, path := range cfg.Paths {
		r := &p.routes[i]
		r.Path, r.net = path, &r.own
		if path.Network != "" {
			if nets[path.Network] == nil {
				nets[path.Network] = new(standing)
			}
			r.net = nets[path.Network]
		}
	}
	return p
}

// Step takes one input and says what to do. Dial and Connect are answered with
// Answered, Attached or Failed, Take with Attached or Failed, unless Drop comes
// before.
func (p *Pair) Step(now time.Time, in Input) []Action {
	if late := now.Sub(p.now) - lateTick; late > 0 && !p.wanted.IsZero() {
		p.wanted = p.wanted.Add(late) // nothing was tried meanwhile, and nothing heard
	}
	p.now, p.actions = now, nil
	switch in := in.(type) {
	case Want:
		p.lost(in.Err)
	case Tick:
		p.read(in.Reading)
	case Answered:
		if r := &p.routes[in.Path]; r.state == dialing {
			r.state, r.rtt, r.stable = ready, in.RTT, in.Stable
			p.kin(in.Path)
		}
	case Failed:
		p.failed(in.Path, in.Err)
	case Attached:
		p.attached(in)
	case Avoid:
		p.avoids(in)
	}
	p.expire()
	switch {
	case p.hopeless:
	case p.using < 0 && !p.wanted.IsZero():
		p.urgent()
	case p.using >= 0 && p.stalled:
		p.urgent()
	default:
		p.plan()
	}
	return p.actions
}

// Busy tells whether the pair waits for something that may take milliseconds.
func (p *Pair) Busy() bool {
	if p.stalled || !p.wanted.IsZero() {
		return !p.hopeless
	}
	for i := range p.routes {
		if p.routes[i].state != idle {
			return true
		}
	}
	return false
}

func (p *Pair) do(v Verb, path int) { p.actions = append(p.actions, Action{Do: v, Path: path}) }

func (p *Pair) count(s state) (n int) {
	for i := range p.routes {
		if p.routes[i].state == s {
			n++
		}
	}
	return n
}

// drop gives up what is under way on a path. That is no failure of it.
func (p *Pair) drop(path int) {
	p.do(Drop, path)
	p.routes[path].state = idle
}

// begin dials a path.
func (p *Pair) begin(path int) {
	r := &p.routes[path]
	r.began, p.lastBegun = p.now, p.now
	if len(p.routes) == 1 {
		r.state = taking
		p.do(Connect, path)
		return
	}
	r.state = dialing
	p.do(Dial, path)
}

// take uses an answered path.
func (p *Pair) take(path int, reason string) {
	r := &p.routes[path]
	r.state, r.began, p.reason, p.fled = taking, p.now, reason, ""
	if p.stalled {
		p.fled = p.stall
	}
	p.do(Take, path)
}

// pressed: the pair has no path that works.
func (p *Pair) pressed() bool { return p.using < 0 || p.stalled }

// jitter is d less up to a quarter.
func (p *Pair) jitter(d time.Duration) time.Duration {
	return d - time.Duration(p.rng.Int64N(int64(d/4)+1))
}
