package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/dirty"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/pages"
	"github.com/mpiv/mpiv/internal/trace"
	"github.com/mpiv/mpiv/migrate"
	"github.com/mpiv/mpiv/topology"
)

// A luggage is the head of the first message about a rank that moves. Its parts are
// its capsule, extra, manifest and segments: what has to be there for the rank to
// begin, and what is short, is in that message too. Each other part is a message.
type luggage struct {
	Rank     int
	Epoch    uint32
	Lengths  []int64 // of the parts
	SafeTime int64   // Unix time in ns

	Saved   *control.Saved           `json:",omitempty"` // the rank's last snapshot, if it has one
	Number  uint64                   // of it
	Choices []checkpoint.Determinant `json:",omitempty"` // since the last that is covered
	Chosen  engine.Counts            // since then

	Ahead   bool    `json:",omitempty"` // it is of what goes ahead, and Lengths of its pieces
	Patches []patch `json:",omitempty"` // of segments that went ahead
}

const (
	moveContext = 1 // of messages between the envoys of processes
	moveTag     = 0
	heraldTag   = 1 // of an empty message: a rank is about to come
	partTag     = 1
	pieceMost   = 1 << 46 // bytes
)

var moveMatch = engine.Match{Context: moveContext, Peer: engine.AnySource, Tag: engine.AnyTag}

var (
	moveCall   = &engine.Call{Op: "Move"}
	awaitMoves = &engine.Call{Op: "Move", Patient: true}
)

// Parts that are in the first message.
const (
	firstParts = 3       // so many always,
	shortPart  = 4 << 10 //   and those up to this length
)

func inFirst(i int, length int64) bool { return i < firstParts || length <= shortPart }

// pack is the first message.
func (g *luggage) pack(parts [][]byte) ([]byte, error) {
	head, err := json.Marshal(g)
	if err != nil {
		return nil, err
	}
	first := binary.LittleEndian.AppendUint32(nil, uint32(len(head)))
	first = append(first, head...)
	for i, part := range parts {
		if inFirst(i, int64(len(part))) {
			first = append(first, part...)
		}
	}
	return first, nil
}

var errLuggage = errors.New("a malformed message about a rank that moves")

// unpack reads what pack wrote. Parts that are not in first are nil; the others alias
// it.
func (g *luggage) unpack(first []byte) (parts [][]byte, err error) {
	if len(first) < 4 || int64(binary.LittleEndian.Uint32(first)) > int64(len(first)-4) {
		return nil, errLuggage
	}
	n := binary.LittleEndian.Uint32(first)
	head, rest := first[4:4+n], first[4+n:]
	if err := json.Unmarshal(head, g); err != nil {
		return nil, fmt.Errorf("%w: %w", errLuggage, err)
	}
	if g.Ahead {
		if len(rest) > 0 || slices.ContainsFunc(g.Lengths, func(n int64) bool { return n < aheadPart || n > pieceMost }) {
			return nil, fmt.Errorf("%w: what goes ahead has %d pieces, and %d bytes too many", errLuggage, len(g.Lengths), len(rest))
		}
		return nil, nil
	}
	if len(g.Lengths) < firstParts {
		return nil, fmt.Errorf("%w: %d parts", errLuggage, len(g.Lengths))
	}
	parts = make([][]byte, len(g.Lengths))
	for i, n := range g.Lengths {
		if n < 0 || inFirst(i, n) && n > int64(len(rest)) {
			return nil, fmt.Errorf("%w: part %d of %d bytes", errLuggage, i, n)
		}
		if inFirst(i, n) {
			parts[i], rest = rest[:n:n], rest[n:]
		}
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes too many", errLuggage, len(rest))
	}
	return parts, nil
}

// leave takes the rank to another process. ErrLeft: it is gone from here.
func (l *Life) leave(ctx context.Context, d control.Depart, image migrate.Image, extra []byte) error {
	since := time.Now()
	l.forget()
	ctx, stop := context.WithTimeout(ctx, d.Patience)
	defer stop()
	c, err := l.Box.Depart(ctx, d.To, topology.Epoch(d.Epoch))
	if err != nil {
		return err
	}
	parts := append([][]byte{c, extra, image.Manifest}, image.Segments...)
	g := luggage{Rank: int(l.Rank), Epoch: d.Epoch, SafeTime: since.UnixNano(), Number: l.number, Saved: l.saved}
	if l.choices != nil {
		g.Chosen = l.Box.Chosen()
		for _, rec := range l.choices.From(0) {
			g.Choices = append(g.Choices, rec)
		}
	}
	if v := l.ahead; v != nil && !v.failed {
		g.Patches = v.follow(image.Segments, parts)
	}
	for _, part := range parts {
		g.Lengths = append(g.Lengths, int64(len(part)))
	}
	first, err := g.pack(parts)
	if err != nil {
		return err
	}
	err = l.p.moves.send(context.WithoutCancel(ctx), d, first, parts)
	l.traced(trace.Left, "Leave", since, d.Epoch)
	l.p.mu.Lock()
	delete(l.p.living, l.Rank)
	l.p.mu.Unlock()
	l.close()
	if err != nil {
		return fmt.Errorf("%w, and its state may not have arrived: %w", ErrLeft, err)
	}
	return ErrLeft
}

// partContext is that of what belongs to a rank which moves by the map of an epoch:
// beyond those of communicators.
func partContext(epoch uint32) uint32 { return 1<<31 | epoch }

// moves is the ranks that come from other processes.
type moves struct {
	p     *Process
	envoy *engine.Box
	ctx   context.Context // ends with the job
	stop  context.CancelFunc

	mu     sync.Mutex      // guards what follows
	coming map[int]*coming // by rank: what has come ahead of it
}

func newMoves(p *Process) *moves {
	m := &moves{p: p, envoy: p.engine.Box(p.engine.Envoy(p.index)), coming: map[int]*coming{}}
	m.ctx, m.stop = context.WithCancel(context.Background())
	return m
}

// receive takes ranks until the job ends.
func (m *moves) receive() {
	defer m.stop()
	m.p.finished.Go(func() {
		select {
		case <-m.p.stopped:
			m.stop()
		case <-m.ctx.Done():
		}
	})
	heralded := false
	for {
		msg, st, err := m.next(heralded)
		if err != nil {
			return
		}
		first := make([]byte, st.Bytes)
		r, _ := msg.Irecv(first)
		if _, err := r.Wait(m.ctx, moveCall); err != nil {
			return
		}
		if heralded = st.Tag == heraldTag; heralded {
			continue
		}
		if rank, err := m.take(st.Source, first); err != nil {
			err = fmt.Errorf("take it from process %d: %w", int(st.Source)-m.p.engine.Size(), err)
			m.p.agent.Send(control.Message{Failed: &control.Failed{Rank: rank, Code: 1, Error: err.Error()}}) // it is nowhere
			m.p.engine.Fail(err)
			return
		}
	}
}

// next is the next message to m. Who has been told that a rank is coming polls for it at first, and so is awake
// for all that has to be answered before it comes.
func (m *moves) next(heralded bool) (*engine.Message, engine.Status, error) {
	if heralded {
		ctx, stop := context.WithTimeout(m.ctx, heraldTime)
		defer stop()
		if msg, st, err := m.envoy.Mprobe(ctx, moveCall, moveMatch); err == nil {
			return msg, st, nil
		}
	}
	return m.envoy.Mprobe(m.ctx, awaitMoves, moveMatch)
}

// heraldTime is how long a rank is expected at once. Later it has to wake who waits for it.
const heraldTime = 10 * time.Millisecond

// herald tells a process that a rank is about to come to it: the connection is made, if there is none, and
// the process awake, when the rank stands still.
func (m *moves) herald(to int) {
	at := engine.Match{Context: moveContext, Peer: m.p.engine.Envoy(to), Tag: heraldTag}
	if !m.envoy.TrySend(at, nil) {
		m.p.finished.Go(func() { m.envoy.Send(m.ctx, moveCall, at, nil, engine.Standard) }) // the rank's messages find out, too, what fails here
	}
}

// send sends the first message, and the parts that are not in it, all at once.
func (m *moves) send(ctx context.Context, d control.Depart, first []byte, parts [][]byte) error {
	to := engine.Match{Context: moveContext, Peer: m.p.engine.Envoy(d.To), Tag: moveTag}
	var sends []engine.Request
	if !m.envoy.TrySend(to, first) {
		sends = append(sends, m.envoy.Isend(to, first, engine.Standard))
	}
	to.Context = partContext(d.Epoch)
	for i, part := range parts {
		if !inFirst(i, int64(len(part))) {
			to.Tag = partTag + int32(i)
			sends = append(sends, m.envoy.Isend(to, part, engine.Standard))
		}
	}
	return waitFor(ctx, sends)
}

func waitFor(ctx context.Context, requests []engine.Request) (err error) {
	for _, r := range requests {
		if _, e := r.Wait(ctx, moveCall); err == nil {
			err = e
		}
	}
	return err
}

// take adopts the rank that first is about.
func (m *moves) take(from topology.Rank, first []byte) (rank int, err error) {
	came := time.Now()
	var g luggage
	parts, err := g.unpack(first)
	if err != nil {
		return g.Rank, err
	}
	if g.Ahead {
		m.takeAhead(from, g)
		return g.Rank, nil
	}
	ahead := m.came(g)
	c, err := engine.ParseCapsule(parts[0])
	if err != nil {
		return g.Rank, err
	}
	if int(c.Rank) != g.Rank {
		return g.Rank, fmt.Errorf("capsule of rank %d for rank %d", c.Rank, g.Rank)
	}
	l := &Life{p: m.p, Rank: c.Rank, epoch: topology.Epoch(g.Epoch), number: g.Number, saved: g.Saved}
	r, err := l.recording(g.Choices, g.Chosen)
	if err != nil {
		return g.Rank, err
	}
	if l.Box, err = m.p.engine.Adopt(c, l.epoch, r); err != nil {
		return g.Rank, err
	}
	l.From = &Past{Extra: parts[1], Manifest: parts[2], left: time.Unix(0, g.SafeTime), came: came, fill: func(ctx context.Context, segments [][]byte) error {
		return m.fill(ctx, from, g, ahead, segments, parts[firstParts:])
	}}
	if ahead != nil {
		l.From.ahead = ahead.bytes(g.Patches)
	}
	l.told = make(chan struct{})
	defer close(l.told)
	m.p.live(l)
	runtime.Gosched() // it begins before the agent is told
	m.p.agent.Send(control.Message{Arrived: &control.Arrived{Rank: g.Rank, Epoch: g.Epoch, Saved: g.Saved}})
	return g.Rank, nil
}

// fill has the segments of the state received, or takes them from those that have
// come, or have come ahead.
func (m *moves) fill(ctx context.Context, from topology.Rank, g luggage, ahead *coming, segments, come [][]byte) (err error) {
	lengths := g.Lengths[firstParts:]
	if len(segments) != len(lengths) {
		return fmt.Errorf("the state has %d segments, want %d", len(lengths), len(segments))
	}
	if !ahead.fits(segments, g.Patches) {
		return fmt.Errorf("%w: it does not fit what went ahead of it", errLuggage)
	}
	into := slices.Clone(segments)
	for _, x := range g.Patches {
		into[x.Segment] = make([]byte, dirty.Total(x.Ranges))
	}
	at := engine.Match{Context: partContext(g.Epoch), Peer: from}
	var receives []engine.Request
	var ready sync.WaitGroup
	defer ready.Wait()
	for i, s := range into {
		switch {
		case int64(len(s)) != lengths[i]:
			return errors.Join(fmt.Errorf("segment %d of the state has %d bytes, want %d", i, lengths[i], len(s)), waitFor(ctx, receives))
		case come[i] != nil:
			copy(s, come[i])
		default:
			if !m.p.reserve.Under(s) {
				pages.Ready(s, &ready)
			}
			at.Tag = partTag + firstParts + int32(i)
			receives = append(receives, m.envoy.Irecv(at, s))
		}
	}
	if err := waitFor(ctx, receives); err != nil || ahead == nil {
		return err
	}
	defer ahead.end()
	if <-ahead.received; ahead.err != nil && len(g.Patches) > 0 {
		return fmt.Errorf("what goes ahead of the rank: %w", ahead.err)
	}
	ahead.put(segments, g.Patches, into)
	return nil
}
