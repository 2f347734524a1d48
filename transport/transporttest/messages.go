package transporttest

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// What becomes of messages.

func testOne(t *testing.T, s *setup) {
	a, b := s.pair(t)
	come := func() (n uint64) {
		switch b := b.(type) {
		case transport.Measured:
			n = b.Path().Received
		case transport.Counted:
			_, n = b.Passed()
		}
		return n
	}
	before := come()
	h, body := number(7, 100)
	require.NoError(t, a.Send(transport.Message{Header: h, Body: body}))
	clear(h) // Send keeps nothing
	clear(body)
	require.NoError(t, a.Flush())
	in := new(inbox)
	until(t, "the message", func() bool { return len(in.got) == 1 }, poller(b, in))
	i, err := check(in.got[0])
	require.NoError(t, err)
	require.EqualValues(t, 7, i)
	require.Len(t, in.got[0].body, 100)
	_, measured := b.(transport.Measured)
	_, counted := b.(transport.Counted)
	if measured || counted {
		require.GreaterOrEqual(t, come()-before, uint64(100))
	}
	if c, counted := a.(transport.Counted); counted {
		sent, _ := c.Passed()
		require.GreaterOrEqual(t, sent, uint64(100))
	}
	moved, err := b.Poll(in)
	require.NoError(t, err)
	require.False(t, moved, "Poll of an empty connection moved something")
	require.GreaterOrEqual(t, a.MaxBody(), 32<<10)
}

// A sender sends its messages in order whenever the path has room.
type sender struct {
	conn  transport.Conn
	msgs  []transport.Message
	fulls int
}

func (s *sender) step() error {
	for len(s.msgs) > 0 {
		switch err := s.conn.Send(s.msgs[0]); {
		case errors.Is(err, transport.ErrFull):
			s.fulls++
			s.msgs[0].Last = false // more may have come to be sent in the meantime
			return s.conn.Flush()
		case err != nil:
			return err
		}
		s.msgs = s.msgs[1:]
	}
	return s.conn.Flush()
}

func messages(rng *rand.Rand, n, longest int, bulk func(i int) bool) []transport.Message {
	msgs := make([]transport.Message, n)
	for i := range msgs {
		size := 0
		switch rng.IntN(4) {
		case 0:
			size = rng.IntN(32)
		case 1:
			size = rng.IntN(2000)
		case 2:
			size = rng.IntN(longest + 1)
		}
		if i == n/2 {
			size = longest
		}
		h, body := number(uint64(i), size)
		msgs[i] = transport.Message{Header: h, Body: body, Bulk: bulk(i)}
	}
	return msgs
}

func testOrder(t *testing.T, s *setup) {
	a, b := s.pair(t)
	n := 2000
	if testing.Short() {
		n = 400
	}
	rng := rand.New(rand.NewPCG(1, 2))
	no := func(int) bool { return false }
	there := &sender{conn: a, msgs: messages(rng, n, a.MaxBody(), no)}
	back := &sender{conn: b, msgs: messages(rng, n, b.MaxBody(), no)}
	sizes := [2][]int{}
	for i := range n {
		sizes[0] = append(sizes[0], len(there.msgs[i].Body))
		sizes[1] = append(sizes[1], len(back.msgs[i].Body))
	}
	atB, atA := new(inbox), new(inbox)
	for some := n / 10; some <= n; some += n / 10 {
		until(t, fmt.Sprintf("%d messages of %d", some, n), func() bool { return len(atA.got) >= some && len(atB.got) >= some },
			there.step, poller(b, atB), back.step, poller(a, atA))
	}
	require.Len(t, atA.got, n)
	require.Len(t, atB.got, n)
	for k, in := range []*inbox{atB, atA} {
		for i, r := range in.got {
			got, err := check(r)
			require.NoError(t, err)
			require.EqualValues(t, i, got, "out of order")
			require.Len(t, r.body, sizes[k][i])
		}
	}
}

func testLanes(t *testing.T, s *setup) {
	a, b := s.pair(t)
	const n = 600
	rng := rand.New(rand.NewPCG(3, 4))
	all := messages(rng, n, a.MaxBody(), func(i int) bool { return i%3 == 0 })
	var bulk, rest sender
	bulk.conn, rest.conn = a, a
	for _, m := range all {
		if m.Bulk {
			bulk.msgs = append(bulk.msgs, m)
		} else {
			rest.msgs = append(rest.msgs, m)
		}
	}
	in := new(inbox)
	until(t, "all messages", func() bool { return len(in.got) == n }, bulk.step, rest.step, poller(b, in))
	var last [2]int64
	last[0], last[1] = -1, -1
	for _, r := range in.got {
		i, err := check(r)
		require.NoError(t, err)
		lane := 1
		if i%3 == 0 {
			lane = 0
		}
		require.Greater(t, int64(i), last[lane], "out of order in its lane")
		last[lane] = int64(i)
	}
}

func testDrop(t *testing.T, s *setup) {
	a, b := s.pair(t)
	for _, limit := range []int{1, 10, 20_000} {
		in := &inbox{limit: limit}
		out := &sender{conn: a}
		for i, size := range []int{a.MaxBody(), 5, 0, 30_000, 12} {
			h, body := number(uint64(i), size)
			out.msgs = append(out.msgs, transport.Message{Header: h, Body: body})
		}
		until(t, "all messages", func() bool { return len(in.got) == 5 }, out.step, poller(b, in))
		for i, r := range in.got {
			got, err := check(r)
			require.NoError(t, err)
			require.EqualValues(t, i, got)
			require.LessOrEqual(t, len(r.body), limit)
		}
	}
}

// Messages that are the last before a Flush may go another way than those that are not. A
// part of one has left when there is no room for the rest.
func testLast(t *testing.T, s *setup) {
	a, b := s.pair(t)
	rng := rand.New(rand.NewPCG(7, 8))
	out, in := &sender{conn: a}, new(inbox)
	end := time.Now().Add(patience)
	n := 0
	for out.fulls < 100 {
		h, body := number(uint64(n), rng.IntN(16<<10))
		out.msgs = append(out.msgs, transport.Message{Header: h, Body: body, Last: rng.IntN(4) > 0})
		n++
		require.NoError(t, out.step())
		if len(out.msgs) > 8 {
			require.NoError(t, poller(b, in)())
		}
		require.True(t, time.Now().Before(end), "the path never gets full")
	}
	until(t, "all messages", func() bool { return len(in.got) == n }, out.step, poller(b, in))
	for i, r := range in.got {
		got, err := check(r)
		require.NoError(t, err)
		require.EqualValues(t, i, got, "out of order")
	}
}

// Bodies that last may leave late. What is sent again and again is written over as soon as it may be.
func testLasting(t *testing.T, s *setup) {
	a, b := s.pair(t)
	lender, _ := a.(transport.Lender)
	lent := func() bool { return lender != nil && lender.Lent() }
	rng := rand.New(rand.NewPCG(9, 10))
	in := new(inbox)
	var sent [][]byte
	n, fulls, late := 0, 0, 0
	for n < 3000 || fulls < 50 {
		size := rng.IntN(100)
		if rng.IntN(2) == 0 {
			size = rng.IntN(32 << 10)
		}
		h, body := number(uint64(n), size)
		m := transport.Message{Header: h, Body: body, Last: rng.IntN(8) == 0}
		send, lasts := a.Send, lender != nil && rng.IntN(2) == 0
		if lasts {
			send = lender.SendLasting
		}
		for {
			err := send(m)
			if err == nil {
				break
			}
			require.ErrorIs(t, err, transport.ErrFull)
			fulls++
			m.Last = false
			require.NoError(t, poller(b, in)())
			require.NoError(t, a.Flush())
		}
		n++
		clear(h)
		if lasts {
			sent = append(sent, body)
		} else {
			clear(body)
		}
		if m.Last || rng.IntN(64) == 0 {
			require.NoError(t, a.Flush())
		}
		if lent() {
			late++
			continue
		}
		for _, body := range sent {
			clear(body)
		}
		sent = nil
	}
	if lender != nil && lender.Lends() {
		require.Positive(t, late)
	}
	until(t, "all messages", func() bool { return len(in.got) == n && !lent() }, a.Flush, poller(b, in))
	for i, r := range in.got {
		got, err := check(r)
		require.NoError(t, err)
		require.EqualValues(t, i, got, "out of order")
	}
}

func testFull(t *testing.T, s *setup) {
	a, b := s.pair(t)
	rng := rand.New(rand.NewPCG(5, 6))
	out := &sender{conn: a}
	end := time.Now().Add(patience)
	n := uint64(0)
	for out.fulls == 0 {
		h, body := number(n, rng.IntN(a.MaxBody()))
		out.msgs = append(out.msgs, transport.Message{Header: h, Body: body})
		n++
		require.NoError(t, out.step())
		require.True(t, time.Now().Before(end), "the path never gets full")
	}
	in := new(inbox)
	until(t, "all messages", func() bool { return len(in.got) == int(n) }, out.step, poller(b, in))
	for i, r := range in.got {
		got, err := check(r)
		require.NoError(t, err)
		require.EqualValues(t, i, got)
	}
}

func testBulkFull(t *testing.T, s *setup) {
	a, b := s.pair(t)
	bulk := &sender{conn: a}
	n := 0
	for end := time.Now().Add(patience); bulk.fulls == 0; n++ {
		h, body := number(uint64(n), a.MaxBody())
		bulk.msgs = append(bulk.msgs, transport.Message{Header: h, Body: body, Bulk: true})
		require.NoError(t, bulk.step())
		require.True(t, time.Now().Before(end), "the bulk lane never gets full")
	}
	const small = 1 << 40
	h, body := number(small, 8)
	require.NoError(t, a.Send(transport.Message{Header: h, Body: body}), "bulk delays other messages")
	require.NoError(t, a.Flush())
	in := new(inbox)
	until(t, "all messages", func() bool { return len(in.got) == n+1 }, bulk.step, poller(b, in))
	for _, r := range in.got {
		_, err := check(r)
		require.NoError(t, err)
	}
}

func testTooLong(t *testing.T, s *setup) {
	a, b := s.pair(t)
	h, body := number(1, a.MaxBody()+1)
	require.ErrorIs(t, a.Send(transport.Message{Header: h, Body: body}), transport.ErrTooLong)
	h, body = number(2, a.MaxBody())
	out := &sender{conn: a, msgs: []transport.Message{{Header: h, Body: body}}}
	in := new(inbox)
	until(t, "the message after it", func() bool { return len(in.got) == 1 }, out.step, poller(b, in))
	_, err := check(in.got[0])
	require.NoError(t, err)
}

func testPull(t *testing.T, s *setup) {
	a, b := s.pair(t)
	offers, ok := a.(transport.Puller)
	if !ok {
		t.Skip("this network cannot pull")
	}
	pulls := b.(transport.Puller)
	atA, atB := new(inbox), new(inbox)
	for i, size := range []int{1, 100, 4096, 1 << 16, 1<<20 + 17, 5 << 20} {
		_, body := number(uint64(i), size)
		ticket, ok := offers.Offer(body)
		if !ok {
			t.Skipf("%d bytes cannot be pulled here", size)
		}
		for _, n := range []int{size, size/2 + 1} {
			into := make([]byte, n+1)
			id := uint64(i)<<32 | uint64(n)
			require.NoError(t, pulls.Pull(ticket, into[:n], id))
			done := func() bool { _, ok := atB.pulled[id]; return ok }
			until(t, "the pull", done, poller(b, atB), poller(a, atA))
			require.NoError(t, atB.pulled[id])
			require.True(t, bytes.Equal(into[:n], body[:n]), "%d of %d bytes pulled are not those offered", n, size)
			require.Zero(t, into[n], "a pull wrote beyond its buffer")
		}
		offers.Withdraw(ticket)
	}
}
