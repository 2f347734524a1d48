package mpiv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/mpiv/mpiv/internal/callsite"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/internal/trace"
)

// A collOp is a collective operation. Its number is on the wire, as part of the
// check that all ranks are in the same one.
type collOp uint8

const (
	opBarrier collOp = iota + 1
	opBcast
	opGather
	opGatherv
	opScatter
	opScatterv
	opAllgather
	opAllgatherv
	opAlltoall
	opAlltoallv
	opReduce
	opAllreduce
	opReduceScatter
	opReduceScatterBlock
	opScan
	opExscan
	opSplit
	opCreate
	opDup
	opCreateGroup
	opCartCreate
	opBcastObj
	opGatherObj
	opScatterObj
	opAllgatherObj
	opAgree // Agree and Shrink
	collOps
)

var collNames = [collOps]string{"", "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
	"Alltoall", "Alltoallv", "Reduce", "Allreduce", "ReduceScatter", "ReduceScatterBlock", "Scan", "Exscan",
	"Split", "Create", "Dup", "CreateGroup", "CartCreate", "BcastObj", "GatherObj", "ScatterObj", "AllgatherObj", "Agree"}

func (op collOp) String() string { return collNames[op] }

var collCalls = func() (calls [collOps]engine.Call) {
	for op := range calls {
		calls[op].Op = collNames[op]
	}
	return calls
}()

func (op collOp) call() *engine.Call { return &collCalls[op] }

// check is what the messages of a collective carry, so that ranks which are in
// different ones, or disagree on the root, find out.
func (op collOp) check(root int) uint16 { return uint16(op) | uint16(root+1)<<5 }

func init() {
	if collOps > 1<<5 {
		panic("mpiv: collOp does not fit its bits in check")
	}
}

// describeCheck is check in words. Roots are known modulo 2048.
func describeCheck(check uint16) string {
	op, root := collOp(check&(1<<5-1)), int(check>>5)-1
	if op == 0 || op >= collOps {
		return "no collective"
	}
	if root < 0 {
		return op.String()
	}
	return fmt.Sprintf("%v with root %d", op, root)
}

// A series is one call of a collective on one rank: its messages match only
// those of the same call on the other ranks.
type series struct {
	c     *Comm
	ctx   context.Context
	call  *engine.Call
	m     engine.Match // Peer is set for each message
	span  trace.Span
	freed bool   // c was, when it was called
	early *early // of one that is not blocking, and sends all that it sends when it begins
}

// early is what was sent when a collective began.
type early struct {
	begins bool // it begins, and ends in errLater where it would wait
	stuck  bool // it ended there because it could not send
	sent   int  // messages, which are not sent again
}

// errLater ends the begin of a collective that is not blocking.
var errLater = errors.New("mpiv: what is left is done later")

// begins tells whether s must not wait: then errLater is what it ends with.
func (s *series) begins() bool { return s.early != nil && s.early.begins }

// begin numbers a call of op. It must be called in the order of the program's
// calls, so before any goroutine is started for it.
func (c *Comm) begin(ctx context.Context, op collOp, root int) series {
	if c == nil {
		c = noComm
	}
	s := series{c: c, ctx: ctx, call: op.call(),
		m:     engine.Match{Context: c.context + collectives, Tag: int32(c.series.Add(1) & MaxTag), Check: op.check(root)},
		freed: c.freed.Load()}
	if c.state.looks.Load() {
		c.look(s.m.Tag, op)
	}
	if rec := c.state.recorder.Load(); rec != nil {
		s.span = rec.Begin()
	}
	return s
}

// trySend sends data to rank to of the Comm if that can be done at once, as short data
// nearly always can: not while the rank holds too much that nobody there has asked for.
func (s *series) trySend(data []byte, to int) bool {
	if s.early != nil && s.early.again() {
		return true
	}
	m := s.m
	m.Peer = s.c.world(to)
	sent := s.c.box.TrySend(m, data)
	if sent && s.begins() {
		s.early.sent++
	}
	return sent
}

// again tells whether the next message went when the collective began.
func (e *early) again() bool {
	if e.begins || e.sent == 0 {
		return false
	}
	e.sent--
	return true
}

// stuck is begins of who has something to send that does not go at once.
func (s *series) stuck() bool {
	if !s.begins() {
		return false
	}
	s.early.stuck = true
	return true
}

// send sends data to rank to of the Comm, in the standard mode: it may wait until that rank
// receives.
func (s *series) send(data []byte, to int) error {
	if s.trySend(data, to) {
		return nil
	}
	if s.stuck() {
		return errLater
	}
	m := s.m
	m.Peer = s.c.world(to)
	return s.explain(s.c.box.Send(s.ctx, s.call, m, data, engine.Standard), to)
}

// recv receives exactly len(into) bytes from rank from.
func (s *series) recv(into []byte, from int) error {
	if s.begins() {
		return errLater
	}
	m := s.m
	m.Peer = s.c.world(from)
	st, err := s.c.box.Recv(s.ctx, s.call, m, into)
	if err == nil && st.Bytes == len(into) {
		return nil
	}
	return s.explain(wrongLength(st, into, err), from)
}

func (s *series) isend(data []byte, to int) engine.Request {
	m := s.m
	m.Peer = s.c.world(to)
	return s.c.box.Isend(m, data, engine.Standard)
}

func (s *series) irecv(into []byte, from int) engine.Request {
	m := s.m
	m.Peer = s.c.world(from)
	return s.c.box.Irecv(m, into)
}

// wait ends what irecv began.
func (s *series) wait(r engine.Request, into []byte, from int) error {
	st, err := r.Wait(s.ctx, s.call)
	return s.explain(wrongLength(st, into, err), from)
}

// sent ends what isend began.
func (s *series) sent(r engine.Request, to int) error {
	_, err := r.Wait(s.ctx, s.call)
	return s.explain(err, to)
}

// sendrecv sends data to one rank while it receives into from another.
func (s *series) sendrecv(data []byte, to int, into []byte, from int) error {
	if s.small(data) && s.trySend(data, to) {
		return s.recv(into, from)
	}
	if s.stuck() {
		return errLater
	}
	r := s.irecv(into, from)
	if err := s.send(data, to); err != nil {
		s.drop(r)
		return err
	}
	return s.wait(r, into, from)
}

// copyMeanwhile copies from to to, both of one length, while messages are under way:
// between two stretches of a long copy it polls.
func (s *series) copyMeanwhile(to, from []byte) {
	const stretch = 128 << 10
	for len(from) > stretch && !same(to, from) {
		n := copy(to, from[:stretch])
		to, from = to[n:], from[n:]
		s.c.box.Engine().Progress()
	}
	copy(to, from)
}

// drop takes r back, or waits for it where it is too late for that: its buffer
// is the caller's again.
func (s *series) drop(r engine.Request) {
	r.Cancel()
	r.Wait(context.Background(), s.call)
}

// wrongLength: the ranks of a collective disagree on how much there is to send.
func wrongLength(st engine.Status, into []byte, err error) error {
	if (err == nil || errors.Is(err, ErrTruncate)) && st.Bytes != len(into) {
		return fmt.Errorf("%w: the peer sent %d bytes where %d were expected", ErrCount, st.Bytes, len(into))
	}
	return err
}

// explain wraps the error of a message to or from peer.
func (s *series) explain(err error, peer int) error {
	if err == nil {
		return nil
	}
	if why, ok := errors.AsType[*engine.AbandonedError](err); ok {
		return s.told(why)
	}
	if ce, ok := errors.AsType[*engine.CheckError](err); ok {
		err = fmt.Errorf("%w: collective number %d on %s is %s on rank %d and %s on rank %d", ErrMismatch,
			s.m.Tag, s.c.called(), describeCheck(ce.Want), s.c.rank, describeCheck(ce.Got), peer)
	}
	return s.failed(err, peer)
}

// fail wraps an error that concerns no one peer.
func (s *series) fail(err error) error { return s.failed(err, -1) }

// wants says of a length of the caller's that it does not fit.
func (s *series) wants(what string, got, want int) error {
	return s.fail(fmt.Errorf("%w: %s is %d, want %d", ErrCount, what, got, want))
}

// later runs a collective in a goroutine of its own. The Request is done when
// it has ended.
func (s series) later(run func(s *series) error) Request {
	if s.c == noComm {
		return failedRequest(nil, s.fail(ErrComm))
	}
	s.call = &engine.Call{Op: s.call.Op, Begun: new([16]uintptr)}
	runtime.Callers(2, s.call.Begun[:])
	s.c.under.Add(1)
	task, r := s.c.box.NewTask(s.m)
	task.Go(func() { s.guard(run, task.Finish) })
	return Request{c: s.c, r: r}
}

// atOnce tells whether parts as long as this one go at once, and few ranks exchange them each with each.
func atOnce[T Elem](c *Comm, part []T) bool {
	return c.atMost(directRanksShort) && len(part)*sizeOf[T]() <= eagerLen
}

// atMost tells whether c has no more than n ranks; false if it is nil.
func (c *Comm) atMost(n int) bool { return c != nil && c.size <= n }

// soon is later of a collective that, if atOnce, sends no more than short messages, and all of them before it
// receives any. They go now. What is left, to receive and to combine, is for who waits for the Request: a
// goroutine costs several times as much as all else.
func (s series) soon(atOnce bool, run func(s *series) error) Request {
	if !atOnce || s.c.box.Chooses() {
		return s.later(run)
	}
	b := &begun{series: s, run: run}
	b.own = engine.Call{Op: s.call.Op, Begun: &b.stack}
	b.call, b.early = &b.own, &b.first
	runtime.Callers(3, b.stack[:3]) // the program's line; more would take longer than the rest
	s.c.under.Add(1)
	task, r := s.c.box.NewTask(s.m)
	b.task = task
	b.first.begins = true
	err := run(&b.series)
	b.first.begins = false
	switch {
	case err != errLater:
		b.guard(func(*series) error { return err }, task.Finish)
	case b.first.stuck:
		task.Go(b.finish)
	default:
		task.Defer(s.ctx, b.finish)
	}
	return Request{c: s.c, r: r}
}

// begun is a collective that has sent what it sends.
type begun struct {
	series
	run   func(s *series) error
	task  engine.Task
	first early
	own   engine.Call
	stack [16]uintptr
}

func (b *begun) finish() { b.guard(b.run, b.task.Finish) }

// guard has finish called with the error of run. That of a reduction of the program's
// which panicked, or called runtime.Goexit, is one, too. Errors are those of the line that
// began it.
func (s *series) guard(run func(s *series) error, finish func(error)) {
	var err error
	returned := false
	defer func() {
		if p := recover(); p != nil {
			err = s.fail(&PanicError{Value: p, Stack: debug.Stack()})
		} else if !returned {
			err = s.fail(exited())
		}
		if re, ok := errors.AsType[*RankError](err); ok && (re.Where == "" || s.early != nil) {
			re.Where = cmp.Or(callsite.Of(s.call.Begun[:]), re.Where)
		}
		s.c.under.Add(-1)
		finish(s.done(err))
	}()
	err = run(s)
	returned = true
}

// usable refuses elements of a type that is not plain.
func (s *series) usable(plain bool) error {
	if !plain {
		return s.fail(fmt.Errorf("%w; use BcastObj and its kind", ErrType))
	}
	return nil
}

// rooted is usable for a collective with a root: it refuses one that there is not.
func (s *series) rooted(plain bool, root int) error {
	if err := s.usable(plain); err != nil {
		return err
	}
	if uint(root) >= uint(s.c.size) {
		return s.fail(fmt.Errorf("%w: %d, the ranks of %s are 0 to %d", ErrRoot, root, s.c.called(), s.c.size-1))
	}
	return nil
}

// A window is sends and receives under way, so many at most; the oldest is
// waited for to make room. What has failed once fails every later call.
type window struct {
	s     series
	err   error
	first int
	n     int
	ring  [windowLen]pending
}

// windowLen is how many messages a rank of a collective has under way at most.
const windowLen = 32

type pending struct {
	r    engine.Request
	recv bool
	into []byte
	peer int
}

func (w *window) send(data []byte, to int) {
	if w.s.small(data) {
		if w.err == nil {
			w.err = w.s.send(data, to)
		}
		return
	}
	if w.room() {
		w.add(pending{r: w.s.isend(data, to), peer: to})
	}
}

func (w *window) recv(into []byte, from int) {
	if w.room() {
		w.add(pending{r: w.s.irecv(into, from), recv: true, into: into, peer: from})
	}
}

func (w *window) add(p pending) {
	w.ring[(w.first+w.n)%windowLen] = p
	w.n++
}

// room waits until another message can be added; false after an error.
func (w *window) room() bool {
	if w.n == windowLen {
		w.one()
	}
	return w.err == nil
}

// one ends the oldest message.
func (w *window) one() {
	p := &w.ring[w.first]
	w.first = (w.first + 1) % windowLen
	w.n--
	switch {
	case w.err != nil:
		w.s.drop(p.r)
	case p.recv:
		w.err = w.s.wait(p.r, p.into, p.peer)
	default:
		w.err = w.s.sent(p.r, p.peer)
	}
	*p = pending{}
}

// wait ends all that is under way.
func (w *window) wait() error {
	for w.n > 0 {
		w.one()
	}
	return w.err
}

// small tells whether data is so short that a send goes at once, unless trySend is false:
// ranks that send to each other may not both wait for that.
func (s *series) small(data []byte) bool { return len(data) <= eagerLen }

// eagerLen is what every way between two ranks sends without waiting.
const eagerLen = 4 << 10
