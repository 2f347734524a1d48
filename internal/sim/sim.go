// Package sim steps whole jobs in one goroutine: real engines over the mem
// network, with every choice, of who does what next and of what breaks when,
// made by one seeded source. The same seed gives the same run to the bit.
package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport/mem"
)

// Tally counts what happened in runs, so that a test can tell that what it is
// for did happen.
type Tally struct {
	Messages, Cuts, Connections, Changes, DoubleDials, CancelledReceives, CancelledSends, RetractedSends, Probes, Steps int
}

func (t *Tally) add(o Tally) {
	t.Messages += o.Messages
	t.Cuts += o.Cuts
	t.Connections += o.Connections
	t.Changes += o.Changes
	t.DoubleDials += o.DoubleDials
	t.CancelledReceives += o.CancelledReceives
	t.CancelledSends += o.CancelledSends
	t.RetractedSends += o.RetractedSends
	t.Probes += o.Probes
	t.Steps += o.Steps
}

// Messages runs one job of random messages, of all sizes and modes, over links
// that are cut at random, and checks that each arrives once, in order, with the
// right bytes, and that the log keeps its bound.
func Messages(seed uint64, tally *Tally) error {
	s := newJob(seed)
	defer s.close()
	err := s.run()
	tally.add(s.tally)
	if err != nil {
		return fmt.Errorf("seed %d, step %d: %w", seed, s.tally.Steps, err)
	}
	return nil
}

const (
	logBytes = 64 << 10
	tags     = 3
	maxSteps = 400_000
)

type job struct {
	rng     *rand.Rand
	network *mem.Network
	engines []*engine.Engine
	ranks   []*rank // by rank, and then the envoy of each process
	dials   []*dial
	greets  []*engine.Greeter // of accepted connections
	fail    error
	quiet   bool // no more faults: let it end
	tally   Tally
}

// A rank sends and receives at random.
type rank struct {
	box      *engine.Box
	toSend   []int // by peer
	sent     []int // by peer: number of the next
	sends    []open
	receives []open
	expected map[topology.Rank]int    // by source: messages not received
	posted   int                      // receives posted, and messages taken by a probe
	order    map[topology.Rank][]got  // by source
	dropped  map[topology.Rank][]bool // by source: numbers whose send was cancelled in time
}

type open struct {
	r         engine.Request
	buf       []byte
	to        topology.Rank
	number    int
	order     int // of a receive, among those of its rank
	cancelled bool
}

// got is a message that was received.
type got struct{ order, number int }

// A dial is a process's attempt to connect to another.
type dial struct {
	from, to int
	over     uint32 // generation of the connection that it is to replace
	conn     *mem.Conn
	greet    *engine.Greeter
	with     uint32 // generation
}

func newJob(seed uint64) *job {
	s := &job{rng: rand.New(rand.NewPCG(seed, 0)), network: mem.NewNetwork(wide(seed))}
	var processes [][]topology.Rank
	size := topology.Rank(0)
	for range 2 + s.rng.IntN(3) {
		var of []topology.Rank
		for range 1 + s.rng.IntN(2) {
			of = append(of, size)
			size++
		}
		processes = append(processes, of)
	}
	for i, of := range processes {
		e := engine.New(engine.Config{
			Process: i, Processes: processes, Keep: true, Stepped: true, LogBytes: logBytes, Unexpected: 32 << 10,
			Connect: func(to int) { s.dials = append(s.dials, &dial{from: i, to: to}) },
			Fail:    func(err error) { s.fail = err },
		})
		s.engines = append(s.engines, e)
		for _, r := range of {
			s.ranks = append(s.ranks, &rank{box: e.Box(r)})
		}
	}
	for i, e := range s.engines {
		s.ranks = append(s.ranks, &rank{box: e.Box(e.Envoy(i))})
	}
	for _, r := range s.ranks {
		r.toSend, r.sent = make([]int, len(s.ranks)), make([]int, len(s.ranks))
		r.expected, r.order, r.dropped = make(map[topology.Rank]int), make(map[topology.Rank][]got), make(map[topology.Rank][]bool)
	}
	for from, r := range s.ranks {
		for to := range s.ranks {
			n := s.rng.IntN(12)
			if (from < int(size)) != (to < int(size)) {
				n = 0 // envoys and ranks have nothing to say to each other
			}
			r.toSend[to] = n
			p := s.ranks[to]
			p.expected[topology.Rank(from)] = n
			p.dropped[topology.Rank(from)] = make([]bool, n)
		}
	}
	return s
}

func (s *job) close() {
	for _, e := range s.engines {
		e.Close()
	}
}

func (s *job) run() error {
	for ; !s.over(); s.tally.Steps++ {
		if s.tally.Steps > maxSteps {
			return fmt.Errorf("not over after %d steps: %s", maxSteps, s.stuck())
		}
		s.quiet = s.tally.Steps > maxSteps/4
		if err := s.step(); err != nil {
			return err
		}
		if s.fail != nil {
			return s.fail
		}
	}
	return s.inOrder()
}

// inOrder checks that each rank's receives, in the order they were posted, got
// the messages of each source in the order they were sent.
func (s *job) inOrder() error {
	for to, r := range s.ranks {
		for from, all := range r.order {
			slices.SortFunc(all, func(a, b got) int { return a.order - b.order })
			if !slices.IsSortedFunc(all, func(a, b got) int { return a.number - b.number }) {
				return fmt.Errorf("rank %d received the messages of rank %d out of order: %v", to, from, all)
			}
		}
	}
	return nil
}

func (s *job) over() bool {
	for _, r := range s.ranks {
		if len(r.sends) > 0 || r.left() > 0 {
			return false
		}
		for to := range r.toSend {
			if r.sent[to] < r.toSend[to] {
				return false
			}
		}
	}
	return true
}

func (r *rank) left() (n int) {
	for _, e := range r.expected {
		n += e
	}
	return n
}

func (s *job) stuck() string {
	var b bytes.Buffer
	for i, r := range s.ranks {
		fmt.Fprintf(&b, "rank %d: %d sends open, %d receives posted, %d messages missing; ", i, len(r.sends), len(r.receives), r.left())
	}
	return b.String()
}

func (s *job) step() error {
	r := s.ranks[s.rng.IntN(len(s.ranks))]
	switch s.rng.IntN(16) {
	case 0, 1, 2:
		s.send(r)
	case 3, 4:
		s.post(r)
	case 5, 6:
		return s.testReceive(r)
	case 7:
		return s.testSend(r)
	case 8:
		s.cancel(r)
	case 9, 10, 11, 12:
		e := s.engines[s.rng.IntN(len(s.engines))]
		e.Progress()
		if held, bound := e.Logged(), (len(s.engines)-1)*logBytes; held > bound {
			return fmt.Errorf("the log holds %d bytes, its bound is %d", held, bound)
		}
	case 13:
		if !s.quiet && s.rng.IntN(12) == 0 && s.network.Cut(s.rng.IntN) {
			s.tally.Cuts++
		}
	default:
		s.connect()
	}
	return nil
}

// connect takes one step of making a connection.
func (s *job) connect() {
	if n := len(s.greets); n > 0 && s.rng.IntN(2) == 0 {
		i := s.rng.IntN(n)
		if done, _ := s.greets[i].Poll(); done {
			s.greets = append(s.greets[:i], s.greets[i+1:]...)
		}
		return
	}
	if s.rng.IntN(40) == 0 && !s.quiet {
		s.change()
	}
	if len(s.dials) == 0 {
		return
	}
	i := s.rng.IntN(len(s.dials))
	d := s.dials[i]
	e := s.engines[d.from]
	if d.conn == nil {
		generation, ok := e.Dial(d.to, d.over)
		if !ok {
			s.drop(i)
			return
		}
		for _, o := range s.dials {
			if o.conn != nil && o.from == d.to && o.to == d.from {
				s.tally.DoubleDials++
			}
		}
		there, here := s.network.Pipe("mem:a", "mem:b")
		d.conn, d.greet, d.with = here, e.Greet(here, true), generation
		d.greet.Expect(d.to)
		d.greet.Take(generation) // if it is cut already, Poll says so
		s.greets = append(s.greets, s.engines[d.to].Greet(there, false))
		return
	}
	done, err := d.greet.Poll()
	if !done {
		return
	}
	if err == nil {
		s.tally.Connections++
		if d.over > 0 {
			s.tally.Changes++
		}
	}
	if e.EndDial(d.to, d.with) || err == nil {
		s.drop(i)
	} else {
		d.conn, d.greet, d.over = nil, nil, 0 // and again
	}
}

// change begins to replace a connection that is well, as one does for a better
// path. Where the process dials the other already, it does not.
func (s *job) change() {
	from, to := s.rng.IntN(len(s.engines)), s.rng.IntN(len(s.engines))
	if from == to || slices.ContainsFunc(s.dials, func(d *dial) bool { return d.from == from && d.to == to }) {
		return
	}
	if i := s.engines[from].Link(to); i.Conn != nil {
		s.dials = append(s.dials, &dial{from: from, to: to, over: i.Generation})
	}
}

func (s *job) drop(i int) { s.dials = append(s.dials[:i], s.dials[i+1:]...) }

func (s *job) send(r *rank) {
	to := topology.Rank(s.rng.IntN(len(s.ranks)))
	if r.sent[to] == r.toSend[to] || len(r.sends) > 6 {
		return
	}
	n := r.sent[to]
	r.sent[to]++
	mode := engine.Standard
	if s.rng.IntN(4) == 0 {
		mode = engine.Synchronous
	}
	size := 8 + s.rng.IntN(64)
	if s.rng.IntN(4) == 0 {
		size = 8 + s.rng.IntN(100_000)
	}
	o := open{buf: content(r.box.Rank(), to, n, size), to: to, number: n}
	o.r = r.box.Isend(engine.Match{Peer: to, Tag: int32(n % tags)}, o.buf, mode)
	r.sends = append(r.sends, o)
}

func content(from, to topology.Rank, n, size int) []byte {
	b := make([]byte, size)
	binary.LittleEndian.PutUint64(b, uint64(n))
	for i := 8; i < size; i++ {
		b[i] = byte(i + n*3 + int(from)*5 + int(to)*7 + i>>7)
	}
	return b
}

// post posts a receive, or takes a message that a probe finds.
func (s *job) post(r *rank) {
	if len(r.receives) >= r.left() || len(r.receives) > 4 {
		return
	}
	m := engine.Match{Peer: engine.AnySource, Tag: engine.AnyTag}
	r.posted++
	buf := make([]byte, 100_100)
	if s.rng.IntN(4) == 0 {
		if msg, _, ok := r.box.Improbe(m); ok {
			s.tally.Probes++
			recv, _ := msg.Irecv(buf)
			r.receives = append(r.receives, open{r: recv, buf: buf, order: r.posted, cancelled: true})
			return
		}
	}
	r.receives = append(r.receives, open{r: r.box.Irecv(m, buf), buf: buf, order: r.posted})
}

func (s *job) testReceive(r *rank) error {
	if len(r.receives) == 0 {
		return nil
	}
	i := s.rng.IntN(len(r.receives))
	o := r.receives[i]
	st, done, err := o.r.Test()
	if !done {
		return nil
	}
	r.receives = append(r.receives[:i], r.receives[i+1:]...)
	if errors.Is(err, engine.ErrCancelled) {
		s.tally.CancelledReceives++
		return nil
	}
	if err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint64(o.buf))
	if !bytes.Equal(o.buf[:st.Bytes], content(st.Source, r.box.Rank(), n, st.Bytes)) {
		return fmt.Errorf("rank %d: message %d of rank %d has other bytes", r.box.Rank(), n, st.Source)
	}
	seen := r.dropped[st.Source]
	if n >= len(seen) || int(st.Tag) != n%tags || seen[n] {
		return fmt.Errorf("rank %d: message %d of rank %d came twice, or after its send was cancelled, or with another tag", r.box.Rank(), n, st.Source)
	}
	seen[n] = true
	r.order[st.Source] = append(r.order[st.Source], got{o.order, n})
	r.expected[st.Source]--
	s.tally.Messages++
	return nil
}

func (s *job) testSend(r *rank) error {
	if len(r.sends) == 0 {
		return nil
	}
	i := s.rng.IntN(len(r.sends))
	o := r.sends[i]
	_, done, err := o.r.Test()
	if !done {
		return nil
	}
	r.sends = append(r.sends[:i], r.sends[i+1:]...)
	clear(o.buf) // it is the program's again
	if errors.Is(err, engine.ErrCancelled) {
		s.tally.RetractedSends++
		p := s.ranks[o.to]
		if p.dropped[r.box.Rank()][o.number] {
			return fmt.Errorf("message %d of rank %d to rank %d arrived, but its send says it was cancelled", o.number, r.box.Rank(), o.to)
		}
		p.dropped[r.box.Rank()][o.number] = true
		p.expected[r.box.Rank()]--
		return nil
	}
	return err
}

// cancel takes back a receive or a send, now and then.
func (s *job) cancel(r *rank) {
	if s.rng.IntN(4) != 0 {
		return
	}
	if s.rng.IntN(2) == 0 && len(r.receives) > 0 {
		if o := &r.receives[s.rng.IntN(len(r.receives))]; !o.cancelled {
			o.cancelled = true
			o.r.Cancel()
		}
		return
	}
	if len(r.sends) > 0 && !s.quiet {
		s.tally.CancelledSends++
		r.sends[s.rng.IntN(len(r.sends))].r.Cancel()
	}
}
