// Package transporttest is the contract of package transport as a test suite.
// Every network passes it:
//
//	func TestContract(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) transport.Endpoint { … })
//	}
package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// patience bounds every wait of the suite; no test waits so long when it passes.
const patience = 20 * time.Second

// An Exception is something that a network cannot promise.
type Exception string

// Allocates is for networks whose library allocates for each message.
const Allocates Exception = "sending and receiving allocate nothing"

// Run tests the network whose endpoints listen makes. Endpoints of one test can
// dial each other; Run closes them.
func Run(t *testing.T, listen func(t *testing.T) transport.Endpoint, except ...Exception) {
	tests := []struct {
		name string
		run  func(t *testing.T, s *setup)
	}{
		{"a message arrives with its header and body", testOne},
		{"an address has a network and a place", testAddr},
		{"messages of all sizes arrive in order, both ways at once", testOrder},
		{"bulk and other messages keep their order in their lanes", testLanes},
		{"a receiver takes less than was sent", testDrop},
		{"a full path says so, and goes on where it was", testFull},
		{"the last message before a Flush goes on as it began", testLast},
		{"a lasting body is the sender's again when it is not lent", testLasting},
		{"a full bulk lane does not stop the other", testBulkFull},
		{"a body that is too long is refused", testTooLong},
		{"an armed end is woken by a message", testArm},
		{"an end armed too late is woken at once", testArmLate},
		{"a full end is woken when there is room", testArmFull},
		{"an end armed after room came is woken at once", testArmRoom},
		{"closing one end breaks the other and wakes it", testClose},
		{"a closed endpoint accepts nobody and its goroutines are gone", testEndpointClose},
		{"nobody listens where one is dialed", testDialNobody},
		{"waiting to accept ends with the context", testAcceptContext},
		{"a body is pulled out of the peer's memory", testPull},
		{string(Allocates), testAllocs},
	}
	for _, tt := range tests {
		if slices.Contains(except, Exception(tt.name)) {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s := &setup{listen: listen}
			t.Cleanup(func() { s.close(t) }) // also of what skips or fails
			tt.run(t, s)
			s.close(t)
			for end := time.Now().Add(time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(end), "goroutines are left over after Close")
			}
		})
	}
}

type setup struct {
	listen    func(t *testing.T) transport.Endpoint
	endpoints []transport.Endpoint
}

func (s *setup) endpoint(t *testing.T) transport.Endpoint {
	e := s.listen(t)
	s.endpoints = append(s.endpoints, e)
	return e
}

func (s *setup) close(t *testing.T) {
	for _, e := range s.endpoints {
		require.NoError(t, e.Close())
		require.NoError(t, e.Close(), "the second Close")
	}
}

// pair is two connected ends.
func (s *setup) pair(t *testing.T) (a, b transport.Conn) {
	x, y := s.endpoint(t), s.endpoint(t)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = y.Accept(ctx)
		accepted <- err
	}()
	a, err := x.Dial(ctx, y.Addr())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return a, b
}

// inbox is a Receiver that keeps everything.
type inbox struct {
	limit  int // of a body; 0: none
	got    []received
	pulled map[uint64]error
}

type received struct{ header, body []byte }

func (in *inbox) Place(header []byte, n int) []byte {
	if in.limit > 0 {
		n = min(n, in.limit)
	}
	return make([]byte, n)
}

func (in *inbox) Arrived(header, body []byte) {
	in.got = append(in.got, received{bytes.Clone(header), body})
}

func (in *inbox) Pulled(id uint64, err error) {
	if in.pulled == nil {
		in.pulled = make(map[uint64]error)
	}
	in.pulled[id] = err
}

// number makes a header that carries i, and a body of n bytes that depends on it.
func number(i uint64, n int) (header, body []byte) {
	header = make([]byte, transport.HeaderLen)
	binary.LittleEndian.PutUint64(header, i)
	header[transport.HeaderLen-1] = byte(i)
	body = make([]byte, n)
	fill(body, i)
	return header, body
}

func fill(body []byte, i uint64) {
	for k := range body {
		body[k] = byte(i*31 + uint64(k)*7 + uint64(k)>>8)
	}
}

func check(r received) (uint64, error) {
	i := binary.LittleEndian.Uint64(r.header)
	want := make([]byte, len(r.body))
	fill(want, i)
	if !bytes.Equal(r.body, want) {
		return i, fmt.Errorf("message %d: the body of %d bytes is not what was sent", i, len(want))
	}
	if r.header[transport.HeaderLen-1] != byte(i) {
		return i, fmt.Errorf("message %d: the end of the header is not what was sent", i)
	}
	return i, nil
}

// until polls both ends until ok says so.
func until(t *testing.T, what string, ok func() bool, polls ...func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		for _, poll := range polls {
			require.NoError(t, poll(), what)
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
		runtime.Gosched()
	}
}

func poller(c transport.Conn, in transport.Receiver) func() error {
	return func() error { _, err := c.Poll(in); return err }
}

func testOne(t *testing.T, s *setup) {
	a, b := s.pair(t)
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
	moved, err := b.Poll(in)
	require.NoError(t, err)
	require.False(t, moved, "Poll of an empty connection moved something")
	require.GreaterOrEqual(t, a.MaxBody(), 32<<10)
}

func testAddr(t *testing.T, s *setup) {
	e := s.endpoint(t)
	require.NotEmpty(t, e.Addr().Network())
	require.NotEmpty(t, e.Addr().Local())
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
	const n = 2000
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

// asleep polls until nothing moves, and arms.
func asleep(t *testing.T, c transport.Conn, in transport.Receiver, wake func()) {
	for {
		moved, err := c.Poll(in)
		require.NoError(t, err)
		if !moved {
			break
		}
	}
	c.Arm(wake)
}

func testArm(t *testing.T, s *setup) {
	a, b := s.pair(t)
	in := new(inbox)
	for i := range 20 {
		woken := make(chan struct{}, 100)
		asleep(t, b, in, func() { woken <- struct{}{} })
		h, body := number(uint64(i), i*1000)
		require.NoError(t, a.Send(transport.Message{Header: h, Body: body, Bulk: i%2 == 1}))
		require.NoError(t, a.Flush())
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatal("an armed end was not woken by a message")
		}
		until(t, "the message", func() bool { return len(in.got) == i+1 }, poller(b, in))
	}
}

func testArmLate(t *testing.T, s *setup) {
	a, b := s.pair(t)
	h, body := number(1, 8)
	require.NoError(t, a.Send(transport.Message{Header: h, Body: body}))
	require.NoError(t, a.Flush())
	time.Sleep(10 * time.Millisecond)
	woken := make(chan struct{}, 100)
	b.Arm(func() { woken <- struct{}{} })
	select {
	case <-woken:
	case <-time.After(patience):
		t.Fatal("a message that was there before Arm did not wake")
	}
}

func testArmFull(t *testing.T, s *setup) {
	a, b := s.pair(t)
	out := &sender{conn: a}
	n := 0
	for ; out.fulls == 0; n++ {
		h, body := number(uint64(n), 20_000)
		out.msgs = append(out.msgs, transport.Message{Header: h, Body: body})
		require.NoError(t, out.step())
	}
	in, none := new(inbox), new(inbox)
	end := time.Now().Add(patience)
	for len(in.got) < n {
		woken := make(chan struct{}, 1000)
		a.Arm(func() { woken <- struct{}{} })
		for woke := false; !woke; {
			select {
			case <-woken:
				woke = true
			default:
				require.NoError(t, poller(b, in)())
				woke = len(in.got) == n
			}
			require.True(t, time.Now().Before(end), "a full end was not woken when there was room")
		}
		require.NoError(t, poller(a, none)())
		require.NoError(t, out.step())
	}
}

func testArmRoom(t *testing.T, s *setup) {
	for _, size := range []int{100, 20_000} {
		a, b := s.pair(t)
		h, body := number(0, size)
		sent := 0
		for a.Send(transport.Message{Header: h, Body: body}) == nil {
			sent++
		}
		in, none := new(inbox), new(inbox)
		until(t, "what was sent", func() bool { return len(in.got) >= sent }, poller(b, in), poller(a, none))
		woken := make(chan struct{}, 100)
		a.Arm(func() { woken <- struct{}{} })
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatal("Arm after ErrFull did not wake, though there is room")
		}
		require.NoError(t, a.Send(transport.Message{Header: h, Body: body}))
	}
}

func testClose(t *testing.T, s *setup) {
	a, b := s.pair(t)
	woken := make(chan struct{}, 100)
	in := new(inbox)
	asleep(t, b, in, func() { woken <- struct{}{} })
	require.NoError(t, a.Close())
	require.NoError(t, a.Close(), "the second Close")
	select {
	case <-woken:
	case <-time.After(patience):
		t.Fatal("the peer's Close did not wake")
	}
	end := time.Now().Add(patience)
	for {
		if _, err := b.Poll(in); err != nil {
			require.ErrorIs(t, err, transport.ErrBroken)
			break
		}
		require.True(t, time.Now().Before(end), "Poll does not tell that the peer has closed")
	}
	h, body := number(1, 8)
	require.ErrorIs(t, a.Send(transport.Message{Header: h, Body: body}), net.ErrClosed)
	_, err := a.Poll(in)
	require.ErrorIs(t, err, net.ErrClosed)
}

func testEndpointClose(t *testing.T, s *setup) {
	x, y := s.endpoint(t), s.endpoint(t)
	accepted := make(chan error, 1)
	go func() {
		_, err := y.Accept(t.Context())
		accepted <- err
	}()
	time.Sleep(time.Millisecond)
	require.NoError(t, y.Close())
	require.ErrorIs(t, <-accepted, net.ErrClosed)
	_, err := y.Accept(t.Context())
	require.ErrorIs(t, err, net.ErrClosed)
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err = x.Dial(ctx, y.Addr())
	require.Error(t, err)
}

func testDialNobody(t *testing.T, s *setup) {
	x, y := s.endpoint(t), s.endpoint(t)
	gone := y.Addr()
	require.NoError(t, y.Close())
	ctx, stop := context.WithTimeout(t.Context(), time.Second)
	defer stop()
	_, err := x.Dial(ctx, gone)
	require.Error(t, err)
	require.Contains(t, err.Error(), string(gone), "the error does not say who was dialed")
}

func testAcceptContext(t *testing.T, s *setup) {
	ctx, stop := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer stop()
	_, err := s.endpoint(t).Accept(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
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

// keeper is a Receiver that allocates nothing.
type keeper struct {
	buf []byte
	n   int
}

func (k *keeper) Place(_ []byte, n int) []byte { return k.buf[:n] }
func (k *keeper) Arrived(_, _ []byte)          { k.n++ }
func (k *keeper) Pulled(uint64, error)         {}

func testAllocs(t *testing.T, s *setup) {
	a, b := s.pair(t)
	if sealed, ok := a.(transport.Authenticated); ok && sealed.Certificate() != nil {
		t.Skip("what encrypts may allocate")
	}
	for _, size := range []int{8, 4096, 32 << 10} {
		in := &keeper{buf: make([]byte, a.MaxBody())}
		h, body := number(1, size)
		one := func() {
			want := in.n + 1
			for errors.Is(a.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
				b.Poll(in)
			}
			a.Flush()
			for in.n < want {
				b.Poll(in)
				a.Poll(in)
			}
		}
		for range 2000 {
			one() // to the steady state
		}
		require.Zero(t, testing.AllocsPerRun(500, one), "allocations per message of %d bytes", size)
	}
}

// Bench measures half the round trip of small and large messages between two
// connections of the network, both polled by the caller.
func Bench(b *testing.B, listen func(b *testing.B) transport.Endpoint) {
	for _, size := range []int{0, 8, 1 << 10, 4 << 10, 16 << 10, 32 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			x, y := listen(b), listen(b)
			defer x.Close()
			defer y.Close()
			var far transport.Conn
			accepted := make(chan error, 1)
			go func() {
				var err error
				far, err = y.Accept(b.Context())
				accepted <- err
			}()
			near, err := x.Dial(b.Context(), y.Addr())
			require.NoError(b, err)
			require.NoError(b, <-accepted)
			var echo sync.WaitGroup
			stop := make(chan struct{})
			echo.Go(func() {
				in := &keeper{buf: make([]byte, far.MaxBody())}
				h, body := number(1, size)
				for sent := 0; ; {
					if _, err := far.Poll(in); err != nil {
						return
					}
					if in.n > sent {
						for errors.Is(far.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
						}
						far.Flush()
						sent++
					}
					select {
					case <-stop:
						return
					default:
					}
				}
			})
			in := &keeper{buf: make([]byte, near.MaxBody())}
			h, body := number(1, size)
			b.ReportAllocs()
			b.SetBytes(int64(2 * size))
			for b.Loop() {
				want := in.n + 1
				for errors.Is(near.Send(transport.Message{Header: h, Body: body}), transport.ErrFull) {
				}
				near.Flush()
				for in.n < want {
					if _, err := near.Poll(in); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/half-rtt")
			close(stop)
			echo.Wait()
		})
	}
}
