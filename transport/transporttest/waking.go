package transporttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// Who sleeps is woken.

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

// testSated: a Poll may end before all that is there, but nothing is forgotten.
func testSated(t *testing.T, s *setup) {
	a, b := s.pair(t)
	const n = 40
	for i := range uint64(n) {
		h, body := number(i, int(i)*20)
		require.NoError(t, a.Send(transport.Message{Header: h, Body: body}))
	}
	require.NoError(t, a.Flush())
	in := new(sated)
	for len(in.got) < n {
		woken := make(chan struct{}, 100)
		b.Arm(func() { woken <- struct{}{} })
		select {
		case <-woken:
		case <-time.After(patience):
			t.Fatalf("not woken after %d of %d messages", len(in.got), n)
		}
		require.NoError(t, poller(b, in)())
	}
	for i, r := range in.got {
		number, err := check(r)
		require.NoError(t, err)
		require.Equal(t, uint64(i), number)
		require.Len(t, r.body, i*20)
	}
}

// sated is an inbox that wants one message at a time.
type sated struct{ inbox }

func (in *sated) Receive(header, body []byte) bool {
	transport.Receive(in, header, body)
	return false
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

// testArmBeforeFull: who is armed first, and then leaves something behind, is woken when there is room.
func testArmBeforeFull(t *testing.T, s *setup) {
	a, b := s.pair(t)
	woken := make(chan struct{}, 1000)
	asleep(t, a, new(inbox), func() { woken <- struct{}{} })
	sent := 0
	for ; ; sent++ {
		h, body := number(uint64(sent), 4000)
		if err := a.Send(transport.Message{Header: h, Body: body}); err != nil {
			require.ErrorIs(t, err, transport.ErrFull)
			break
		}
		require.NoError(t, a.Flush())
	}
	in, none := new(inbox), new(inbox)
	end := time.Now().Add(patience)
	for len(in.got) < sent {
		require.NoError(t, poller(b, in)())
		select {
		case <-woken:
			require.NoError(t, poller(a, none)())
			a.Arm(func() { woken <- struct{}{} })
		default:
		}
		require.True(t, time.Now().Before(end), "%d of %d messages came: an end that was armed before it was full was not woken when there was room", len(in.got), sent)
	}
}

// testArmBeforeRefused: who is armed first, and then refused, is woken when there is room.
func testArmBeforeRefused(t *testing.T, s *setup) {
	for _, bulk := range []bool{false, true} {
		a, b := s.pair(t)
		woken := make(chan struct{}, 1000)
		asleep(t, a, new(inbox), func() { woken <- struct{}{} })
		out := &sender{conn: a}
		for n := uint64(0); out.fulls == 0; n++ {
			h, body := number(n, 20_000)
			out.msgs = append(out.msgs, transport.Message{Header: h, Body: body, Bulk: bulk})
			require.NoError(t, out.step())
		}
		in := new(inbox)
		until(t, "an end that was armed before it was refused to be woken", func() bool { return len(woken) > 0 }, poller(b, in))
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
