package mpiv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// Dup makes a Comm of the same ranks as c whose messages are apart from those
// of c. All ranks of c must call it.
func Dup(ctx context.Context, c *Comm) (*Comm, error) {
	s := c.begin(ctx, opDup, -1)
	defer s.done(nil)
	id, err := s.agree()
	if err != nil {
		return nil, err
	}
	return c.derive("dup of "+c.Name(), id, c.group), nil
}

// Split makes a Comm of those ranks of c that give the same color, in the order
// of their keys and, of equal keys, of their ranks in c. A rank whose color is
// Undefined, or negative, gets a nil Comm, on which all fails with ErrComm. All ranks of c must call it.
func Split(ctx context.Context, c *Comm, color, key int) (*Comm, error) {
	s := c.begin(ctx, opSplit, -1)
	defer s.done(nil)
	type choice struct{ Color, Key int64 }
	choices := make([]choice, s.c.size)
	mine := choice{int64(max(color, -1)), int64(key)}
	told, err := s.agreed(noteChoices, func() ([]byte, error) {
		if err := s.enter(); err != nil {
			return nil, err
		}
		l := equal(sizeOf[choice](), 1, s.c.size)
		choices[c.rank] = mine
		err := s.allgatherBlocks(bytesOf(choices[c.rank:c.rank+1]), bytesOf(choices), &l)
		return bytes.Clone(bytesOf(choices)), err
	})
	if err != nil {
		return nil, err
	}
	copy(bytesOf(choices), told)
	var members []int
	for r, x := range choices {
		if x.Color == mine.Color {
			members = append(members, r)
		}
	}
	id, err := s.agree()
	if err != nil || color < 0 {
		return nil, err
	}
	slices.SortStableFunc(members, func(a, b int) int { return cmp.Compare(choices[a].Key, choices[b].Key) })
	ranks := make([]topology.Rank, len(members))
	for i, r := range members {
		ranks[i] = c.world(r)
	}
	return c.derive(fmt.Sprintf("part %d of %s", color, c.Name()), id, groupOf(ranks, c.box.Rank())), nil
}

// Create makes a Comm of the ranks of g, which must be ranks of c. All ranks of
// c must call it, with the same g; those that are not in g get nil.
func Create(ctx context.Context, c *Comm, g Group) (*Comm, error) {
	s := c.begin(ctx, opCreate, -1)
	defer s.done(nil)
	if err := s.groupOf(g); err != nil {
		return nil, err
	}
	id, err := s.agree()
	if err != nil || g.index(c.box.Rank()) < 0 {
		return nil, err
	}
	return c.derive("group of "+c.Name(), id, g), nil
}

// CreateGroup is Create that only the ranks of g call. The tag tells apart
// calls that go on at the same time, and those that failed: after an error use
// another.
func CreateGroup(ctx context.Context, c *Comm, g Group, tag int) (*Comm, error) {
	if c == nil {
		return nil, c.fail(opCreateGroup.String(), -1, -1, ErrComm)
	}
	part := c.derive(c.Name(), c.context, g)
	s := series{c: part, ctx: ctx, call: opCreateGroup.call(),
		m:     engine.Match{Context: c.context + groups, Tag: int32(tag), Check: opCreateGroup.check(-1)},
		freed: c.freed.Load()}
	of := series{c: c, call: s.call} // for errors before there is a group to tell of them
	part.freed.Store(c.freed.Load())
	part.revoked.Store(c.revoked.Load())
	part.wary.Store(c.ended() != nil || c.state.looks.Load())
	switch err := of.groupOf(g); {
	case err != nil:
		return nil, err
	case uint(tag) > MaxTag:
		return nil, of.fail(fmt.Errorf("%w: %d, want 0 to %d", ErrTag, tag, MaxTag))
	case part.rank == Undefined:
		return nil, of.fail(fmt.Errorf("%w: rank %d is not in it, and must not call this", ErrGroup, c.rank))
	}
	id, err := s.agree()
	if err != nil {
		c.box.PassOn(s.m, part.members())
		return nil, err
	}
	return c.derive("group of "+c.Name(), id, g), nil
}

// groupOf says why g is no group of ranks of the Comm.
func (s *series) groupOf(g Group) error {
	for i := range g.size {
		if w := g.at(i); s.c.group.index(w) < 0 {
			return s.fail(fmt.Errorf("%w: rank %d of it, rank %d of the world, is not in %s", ErrGroup, i, w, s.c.called()))
		}
	}
	return nil
}

// derive is a Comm of g that shares the rank's state with c.
func (c *Comm) derive(name string, id uint32, g Group) *Comm {
	d := &Comm{box: c.box, rank: g.index(c.box.Rank()), group: g, size: g.size, context: id, state: c.state}
	d.name.Store(&name)
	d.odd.Store(c.state.options.Check)
	if id != c.context {
		c.box.NameContext(id, name)
		if g.ranks != nil {
			c.box.ContextRanks(id, g.ranks)
		}
		c.state.made(d)
		c.state.witness.has(d)
	}
	return d
}

// agree is the context of a new Comm: one that none of the ranks has used. It
// enters the collective.
//
// The highest of what the ranks could use is taken, if no other goroutine of a
// rank has taken it meanwhile. If one has, all try again, further up by a step
// that depends on the Comm, so that two Comms do not get in each other's way
// forever.
func (s *series) agree() (uint32, error) {
	b, err := s.agreed(noteContext, func() ([]byte, error) {
		id, err := s.agreeNow()
		return binary.LittleEndian.AppendUint32(nil, id), err
	})
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

func (s *series) agreeNow() (uint32, error) {
	if err := s.enter(); err != nil {
		return 0, err
	}
	next := &s.c.state.contexts
	for try := uint32(0); ; try++ {
		id := [1]uint32{next.Load()}
		if err := s.all(id[:], &maxs); err != nil {
			return 0, err
		}
		candidate := id[0] + contextStride(s.m.Context, try)
		taken := [1]uint32{1}
		if s.c.state.claimContext(candidate) {
			taken[0] = 0
		}
		if err := s.all(taken[:], &maxs); err != nil {
			return 0, err
		}
		if taken[0] == 0 {
			return candidate, nil
		}
	}
}

// contextStride is how far above the highest the ranks of a Comm try.
func contextStride(context, try uint32) uint32 {
	if try == 0 {
		return 0
	}
	return (context*2654435761 ^ try) >> 8 % (1 << min(try, 10)) * contextStep
}

// claimContext takes that context and all below it; false if it is taken.
func (rs *rankState) claimContext(id uint32) bool {
	for was := rs.contexts.Load(); was <= id; was = rs.contexts.Load() {
		if rs.contexts.CompareAndSwap(was, id+contextStep) {
			return true
		}
	}
	return false
}

// all is an Allreduce within another collective.
func (s *series) all(v []uint32, op *kinds) error {
	b := bytesOf(v)
	return s.allreduceBytes(b, b, 4, len(v), &op[kindOf[uint32]()])
}
