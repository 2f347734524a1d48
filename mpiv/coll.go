package mpiv

import (
	"context"
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/engine"
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
	opBcastObj
	collOps
)

var collNames = [collOps]string{"", "Barrier", "Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv",
	"Alltoall", "Alltoallv", "Reduce", "Allreduce", "ReduceScatter", "ReduceScatterBlock", "Scan", "Exscan",
	"Split", "Create", "Dup", "BcastObj"}

func (op collOp) String() string { return collNames[op] }

// check is what the messages of a collective carry, so that ranks which are in
// different ones, or disagree on the root, find out.
func (op collOp) check(root int) uint16 { return uint16(op) | uint16(root+1)<<5 }

func init() {
	if collOps > 1<<5 {
		panic("mpiv: collOp does not fit its bits in check")
	}
}

// describeCheck is check in words. Roots are known modulo 2047.
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
	c    *Comm
	ctx  context.Context
	call engine.Call
	m    engine.Match // Peer is set for each message
}

// begin numbers a call of op. It must be called in the order of the program's
// calls, so before any goroutine is started for it.
func (c *Comm) begin(ctx context.Context, op collOp, root int) series {
	return series{c: c, ctx: ctx, call: engine.Call{Op: op.String()},
		m: engine.Match{Context: c.context + 1, Tag: int32(c.series.Add(1) & MaxTag), Check: op.check(root)}}
}

// send sends data to rank to of the Comm, in the standard mode.
func (s *series) send(data []byte, to int) error {
	m := s.m
	m.Peer = s.c.world(to)
	return s.explain(s.c.box.Send(s.ctx, s.call, m, data, engine.Standard), to)
}

// recv receives exactly len(into) bytes from rank from.
func (s *series) recv(into []byte, from int) error {
	m := s.m
	m.Peer = s.c.world(from)
	st, err := s.c.box.Recv(s.ctx, s.call, m, into)
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

// wait ends what isend or irecv began; into is nil for a send.
func (s *series) wait(r engine.Request, into []byte, peer int) error {
	st, err := r.Wait(s.ctx, s.call)
	if into != nil {
		err = wrongLength(st, into, err)
	}
	return s.explain(err, peer)
}

// sendrecv sends data to one rank while it receives into from another.
func (s *series) sendrecv(data []byte, to int, into []byte, from int) error {
	r := s.irecv(into, from)
	if err := s.send(data, to); err != nil {
		r.Cancel()
		r.Wait(context.Background(), s.call)
		return err
	}
	return s.wait(r, into, from)
}

// wrongLength: the ranks of a collective disagree on how much there is to send.
func wrongLength(st engine.Status, into []byte, err error) error {
	if (err == nil || errors.Is(err, ErrTruncate)) && st.Bytes != len(into) {
		return fmt.Errorf("%w: it sent %d bytes where %d were expected", ErrCount, st.Bytes, len(into))
	}
	return err
}

// explain wraps the error of a message to or from peer.
func (s *series) explain(err error, peer int) error {
	if err == nil {
		return nil
	}
	if ce, ok := errors.AsType[*engine.CheckError](err); ok {
		err = fmt.Errorf("%w: collective number %d on %s is %s on rank %d and %s on rank %d", ErrMismatch,
			s.m.Tag, s.c.name, describeCheck(ce.Want), s.c.rank, describeCheck(ce.Got), peer)
	}
	return s.c.fail(s.call.Op, peer, -1, err)
}

// later runs a collective in a goroutine of its own. The Request is done when
// it has ended.
func (s series) later(run func(s *series) error) Request {
	task, r := s.c.box.NewTask()
	s.c.box.Engine().Go(func() { task.Finish(run(&s)) })
	return Request{c: s.c, r: r, kind: kindCollective, peer: -1, tag: -1}
}

// usable says why no collective can be called on c; nil if it can.
func (c *Comm) usable(op collOp, root int) error {
	if c.freed.Load() {
		return c.fail(op.String(), -1, -1, ErrComm)
	}
	if root < -1 || root >= c.size {
		return c.fail(op.String(), -1, -1, fmt.Errorf("%w: %d, the ranks of %s are 0 to %d", ErrRoot, root, c.name, c.size-1))
	}
	return nil
}
