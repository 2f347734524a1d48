package engine

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/wire"
)

// some is a capsule with everything in it.
func some() *Capsule {
	h := wire.Header{Kind: wire.Eager, Context: 16, Source: 2, Dest: 0, Tag: 5, Epoch: 3, Seq: 7}
	var sent past
	for _, seq := range []uint64{5, 6, 8} {
		var header [wire.HeaderLen]byte
		(&wire.Header{Kind: wire.Eager, Context: 16, Source: 2, Dest: 0, Tag: 5, Epoch: 3, Seq: seq, Ack: 2}).Put(header[:])
		sent.add(new(freeChunks), seq, header[:], []byte("sent"))
	}
	back := wire.Header{Kind: wire.Offer, Context: 16, Source: 0, Dest: 2, Tag: 5, Epoch: 3, Seq: 4}
	return &Capsule{Rank: 2, Epoch: 3, Streams: []StreamState{
		{Peer: 0, Sent: 9, Got: 4, Offers: []uint64{2, 4}, Log: []Logged{{h, []byte("seven")}, {func() wire.Header { h := h; h.Seq = 9; return h }(), []byte{}}}, Past: sent.records(9)},
		{Peer: 2, Sent: 1, Got: 1},
	}, Unread: []Unread{{back, 100_000, nil}, {func() wire.Header { h := back; h.Seq = 3; return h }(), 3, []byte("abc")}},
		Abandoned: []AbandonedCalls{{16, 4, 6, AbandonedError{0, "why"}}, {20, 1, 1, AbandonedError{2, ""}}}, Revoked: []Revocation{{16, 0}, {20, 1}}, Begun: []BegunOf{{7, 3, 1 << 31}, {4095, 1 << 30, 1}}}
}

func TestCapsulesTravel(t *testing.T) {
	c := some()
	got, err := ParseCapsule(c.Append(nil))
	require.NoError(t, err)
	require.Equal(t, c, got)
}

func TestMalformedCapsulesAreRefused(t *testing.T) {
	tests := []struct {
		name string
		bad  func(c *Capsule)
	}{
		{"a log of another rank's messages", func(c *Capsule) { c.Streams[0].Log[0].Header.Source = 1 }},
		{"a log to another rank", func(c *Capsule) { c.Streams[0].Log[0].Header.Dest = 1 }},
		{"a log of more than was sent", func(c *Capsule) { c.Streams[0].Sent = 8 }},
		{"a log out of order", func(c *Capsule) { c.Streams[0].Log[1].Header.Seq = 7 }},
		{"sent to another rank", func(c *Capsule) { c.Streams[0].Past[0][shortLen+12] = 1 }},
		{"sent out of order", func(c *Capsule) { c.Streams[0].Past[0][shortLen+seqAt] = 8 }},
		{"sent later than the last", func(c *Capsule) { c.Streams[0].Past[0][recordLen+4+shortLen+4+shortLen+seqAt] = 10 }},
		{"an offer that was sent with its body", func(c *Capsule) { c.Streams[0].Past[0][shortLen] = byte(wire.Offer) }},
		{"a body longer than all", func(c *Capsule) { c.Streams[0].Past[0][2] = 1 }},
		{"a body longer than all, without a header", func(c *Capsule) { c.Streams[0].Past[0][recordLen+4+2] = 1 }},
		{"the first without a header", func(c *Capsule) { c.Streams[0].Past[0][7] = 0x80 }},
		{"an offer of what has not come", func(c *Capsule) { c.Streams[0].Offers[1] = 5 }},
		{"an offer twice", func(c *Capsule) { c.Streams[0].Offers[1] = 2 }},
		{"streams out of order", func(c *Capsule) { c.Streams[1].Peer = 0 }},
		{"unread messages of no rank", func(c *Capsule) { c.Unread[1].Header.Source = -5 }},
		{"unread messages of another rank", func(c *Capsule) { c.Unread[1].Header.Dest = 1 }},
		{"a run of calls backwards", func(c *Capsule) { c.Abandoned[0].Last = 3 }},
		{"calls given up by no rank", func(c *Capsule) { c.Abandoned[0].By = -1 }},
		{"a communicator revoked twice", func(c *Capsule) { c.Revoked[1].Base = 16 }},
		{"receives counted beyond all", func(c *Capsule) { c.Begun[1].At++ }},
		{"receives counted twice", func(c *Capsule) { c.Begun[0].At = 4095 }},
		{"no receives", func(c *Capsule) { c.Begun[0].N = 0 }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := some()
			tt.bad(c)
			_, err := ParseCapsule(c.Append(nil))
			require.ErrorIs(t, err, ErrCapsule)
		})
	}
	whole := some().Append(nil)
	for n := range whole {
		_, err := ParseCapsule(whole[:n])
		require.ErrorIs(t, err, ErrCapsule, "%d bytes of %d", n, len(whole))
	}
	_, err := ParseCapsule(append(whole, 0))
	require.ErrorIs(t, err, ErrCapsule)
}

func FuzzCapsule(f *testing.F) {
	f.Add(some().Append(nil))
	f.Add((&Capsule{Rank: 1}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseCapsule(b)
		if err == nil && !bytes.Equal(c.Append(nil), b) {
			t.Fatalf("%x is parsed and written as %x", b, c.Append(nil))
		}
	})
}

// A capsule that something has damaged is an error, no panic.
func TestUnreadMessagesOfNoRank(t *testing.T) {
	c := some()
	c.Streams, c.Unread = nil, c.Unread[:1]
	c.Unread[0].Header.Source = 77
	e := New(Config{Process: 2, Processes: [][]topology.Rank{{0, 1}, {2}, {}}, Keep: true})
	defer e.Close()
	_, err := e.Adopt(c, 4, nil, Placement{Rank: 2, Process: 2})
	require.ErrorContains(t, err, "the world has 3")
}

// Decisions that could not be told apart are not made.
func TestDecisionsAreNumberedOnce(t *testing.T) {
	var failed error
	e := New(Config{Processes: [][]topology.Rank{{0}}, Keep: true, Replay: true, Fail: func(err error) { failed = err }})
	defer e.Close()
	b := e.Box(0)
	b.Record(Recording{Record: func(Choice) {}})
	b.choices.polls.Store(math.MaxUint32)
	b.Decide()
	require.ErrorContains(t, failed, "call SafePoint")
}

func TestSafePointsAreWhereNothingIsPending(t *testing.T) {
	e := New(Config{Processes: [][]topology.Rank{{0, 1}}})
	defer e.Close()
	b := e.Box(0)
	require.NoError(t, b.Idle())
	buf := make([]byte, 8)
	r := b.Irecv(Match{Peer: 1, Tag: 3}, buf)
	_, _, err := b.Capture()
	require.ErrorIs(t, err, ErrPending)
	require.ErrorContains(t, err, "a receive from rank 1 with tag 3")
	require.True(t, e.Box(1).TrySend(Match{Peer: 0, Tag: 3}, []byte("message!")))
	require.ErrorIs(t, b.Idle(), ErrPending, "it was not waited for")
	_, err = r.Wait(context.Background(), &Call{Op: "Wait"})
	require.NoError(t, err)
	written, covers, err := b.Capture()
	require.NoError(t, err)
	require.Equal(t, Covers{{Source: 1, Dest: 0, Seq: 1}}, covers)
	c, err := ParseCapsule(written)
	require.NoError(t, err)
	require.Equal(t, []StreamState{{Peer: 1, Got: 1}}, c.Streams)
}
