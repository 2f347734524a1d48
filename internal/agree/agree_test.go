package agree

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
)

// A tally counts what happened, so that a test in which nothing does fails.
type tally struct {
	steps, crashes, inTheMiddle, leaders, ofDecided, quits, unheard, late, alone int
}

// A member of a simulated group.
type member struct {
	m       *Machine
	flag    uint64
	begun   bool
	crashed bool // it does nothing more
	fenced  bool // it was declared dead, and may not know
	quit    bool
	told    Set // who it was told has crashed
	value   Value
	ended   bool
}

// A stepped group: channels in order, and everything else in whatever order the seed says.
type stepped struct {
	rng      *rand.Rand
	members  []*member
	channels map[[2]int][]Message
	events   []event // that may happen next
	tally    *tally
}

// An event is that a member begins (from is -1), that it takes the next message of
// another, or is told that this has crashed.
type event struct {
	from, to int
	crash    bool
}

func newStepped(seed uint64, t *tally) *stepped {
	w := &stepped{rng: rand.New(rand.NewPCG(seed, 1)), channels: map[[2]int][]Message{}, tally: t}
	size := 1 + w.rng.IntN(9)
	if w.rng.IntN(100) == 0 {
		size = 60 + w.rng.IntN(10) // sets of more than one word
	}
	for r := range size {
		w.members = append(w.members, &member{flag: w.rng.Uint64() | 1<<40, told: NewSet(size)})
		w.events = append(w.events, event{from: -1, to: r})
	}
	return w
}

// send puts outs of r into channels; crashing: only some of them, as r crashes.
func (w *stepped) send(r int, outs []Out, crashing bool) {
	if crashing && len(outs) > 0 {
		n := w.rng.IntN(len(outs))
		if n > 0 {
			w.tally.inTheMiddle++
		}
		outs = outs[:n]
	}
	for _, o := range outs {
		c := [2]int{r, o.To}
		w.channels[c] = append(w.channels[c], o.Message)
		w.events = append(w.events, event{from: r, to: o.To})
	}
	m := w.members[r]
	if v, over := m.m.Result(); over && !m.ended && !m.quit && !crashing {
		m.ended, m.value = true, v
	}
}

// act has r do something; perhaps it crashes over it.
func (w *stepped) act(r int, crash bool, do func(m *member) []Out) {
	m := w.members[r]
	outs := do(m)
	if crash {
		w.crash(r)
	}
	w.send(r, outs, crash)
}

func (w *stepped) crash(r int) {
	m := w.members[r]
	if m.crashed {
		return
	}
	m.crashed = true
	w.tally.crashes++
	if m.m != nil && m.m.leader == r {
		w.tally.leaders++
		if m.m.phase == telling {
			w.tally.ofDecided++
		}
	}
	if !m.begun {
		w.tally.unheard++
	}
	w.declare(r)
}

func (w *stepped) declare(r int) {
	if !w.members[r].fenced {
		w.members[r].fenced = true
		for to, m := range w.members {
			if to != r && !m.fenced { // who was declared dead before is told nothing more
				w.events = append(w.events, event{from: r, to: to, crash: true})
			}
		}
	}
}

// run steps until nothing is left to be done. crashes is how many members may.
func (w *stepped) run(crashes, quits int) error {
	size := len(w.members)
	for steps := 0; len(w.events) > 0; steps++ {
		w.tally.steps++
		if steps > 10000*size*size {
			return errors.New("it goes on and on")
		}
		if quits > 0 && w.rng.IntN(20*size) == 0 {
			quits--
			w.giveUp(w.rng.IntN(size))
			continue
		}
		crash := crashes > 0 && w.rng.IntN(3+2*size) == 0
		if crash {
			crashes--
			switch w.rng.IntN(6) {
			case 0: // for no reason
				w.crash(w.rng.IntN(size))
				continue
			case 1, 2: // it is declared dead, and goes on for a while
				w.declare(w.rng.IntN(size))
				continue
			}
		}
		i := w.rng.IntN(len(w.events))
		e := w.events[i]
		if m := w.members[e.to]; !m.crashed && !m.begun && e.from >= 0 && !e.crash {
			continue // the message waits
		}
		w.events[i] = w.events[len(w.events)-1]
		w.events = w.events[:len(w.events)-1]
		w.happen(e, crash)
	}
	return w.check()
}

// happen has e happen; crash: and its member crash over it.
func (w *stepped) happen(e event, crash bool) {
	m, c := w.members[e.to], [2]int{e.from, e.to}
	size := len(w.members)
	switch {
	case m.crashed:
	case e.from < 0:
		m.begun = true
		v := Value{Flag: m.flag, Floor: uint32(e.to), Failed: m.told.Clone(), Acked: m.told.Clone(), Quit: NewSet(size)}
		w.act(e.to, crash, func(m *member) (outs []Out) { m.m, outs = New(e.to, size, v); return outs })
	case e.crash:
		m.told.Add(e.from)
		if w.rng.IntN(2) == 0 { // what it had sent is refused from now on
			w.channels[c] = nil
		}
		if m.begun && !m.ended && !m.quit {
			w.act(e.to, crash, func(m *member) []Out { return m.m.Crashed(e.from) })
		}
	case len(w.channels[c]) > 0:
		msg := w.channels[c][0]
		w.channels[c] = w.channels[c][1:]
		if m.ended || m.quit {
			w.tally.late++
			return
		}
		again, n, err := Parse(msg.Append(nil, 7), size)
		if err != nil || n != 7 {
			panic(fmt.Sprintf("message %v does not parse: %v", msg, err))
		}
		w.act(e.to, crash, func(m *member) []Out { return m.m.Receive(e.from, again) })
	}
}

// giveUp has r give up, unless that is too late.
func (w *stepped) giveUp(r int) {
	m := w.members[r]
	if !m.begun || m.crashed || m.ended || m.quit {
		return
	}
	if outs := m.m.Quit(); m.m.decided {
		w.send(r, outs, false)
	} else {
		m.quit = true
		w.tally.quits++
		w.send(r, outs, false)
	}
}

// check is what must hold at the end.
func (w *stepped) check() error {
	var first *member
	alive := 0
	for r, m := range w.members {
		if !m.crashed && !m.fenced {
			alive++
			if !m.ended && !m.quit {
				return fmt.Errorf("member %d never ends: it is in phase %d under leader %d", r, m.m.phase, m.m.leader)
			}
		}
		if !m.ended {
			continue
		}
		if first == nil {
			first = m
		}
		if fmt.Sprint(m.value) != fmt.Sprint(first.value) {
			return fmt.Errorf("member %d ends with %v, another with %v", r, m.value, first.value)
		}
	}
	if alive == 1 {
		w.tally.alone++
	}
	if first == nil {
		return nil
	}
	// What was agreed on is what some contributed, all of those who ended among them.
	v := first.value
	least := ^uint64(0)
	for r, m := range w.members {
		least &= m.flag
		if m.ended && !m.fenced && (v.Flag&^m.flag != 0 || v.Floor < uint32(r)) {
			return fmt.Errorf("%x was agreed on, without the contribution %x of member %d", v.Flag, m.flag, r)
		}
		if v.Failed.Has(r) && !m.fenced {
			return fmt.Errorf("member %d lives, and was agreed to have crashed", r)
		}
		if v.Quit.Has(r) && !m.quit {
			return fmt.Errorf("member %d was agreed to have given up, and has not", r)
		}
		if m.quit && !m.fenced && (v.Flag&^m.flag != 0 || v.Floor < uint32(r)) && !v.Quit.Has(r) {
			return fmt.Errorf("member %d has given up, and neither that nor what it contributed was agreed on", r)
		}
	}
	if v.Flag&least != least {
		return fmt.Errorf("%x was agreed on, without bits that all have: %x", v.Flag, least)
	}
	return nil
}

// All that end agree, and all that live end, whoever crashes at whatever moment.
func TestAgreement(t *testing.T) {
	var tally tally
	n := seeds.Each(t, 10_000, func(s uint64) {
		w := newStepped(s, &tally)
		crashes := w.rng.IntN(len(w.members))
		quits := 0
		if s%4 == 0 {
			quits = 2
		}
		if err := w.run(crashes, quits); err != nil {
			t.Fatalf("%v\n%s", err, seeds.Replay("./internal/agree", "TestAgreement", s))
		}
	})
	t.Logf("%+v", tally)
	if n >= 1000 {
		require.Greater(t, tally.crashes, n/2)
		for _, n := range []int{tally.inTheMiddle, tally.leaders, tally.ofDecided, tally.quits, tally.unheard, tally.late, tally.alone} {
			require.Greater(t, n, 20, "%+v", tally)
		}
	}
}

// Each message that the leader sends is the last, once: in a group of four, with every
// delivery in order otherwise.
func TestLeaderCrashesAtEveryMessage(t *testing.T) {
	const size = 4
	for cut := 0; ; cut++ {
		var ms [size]*Machine
		queue := [][3]any{}
		sent := 0
		crashed := false
		push := func(from int, outs []Out) {
			for _, o := range outs {
				if from == 0 {
					if sent++; sent > cut {
						crashed = true
						return
					}
				}
				queue = append(queue, [3]any{from, o.To, o.Message})
			}
		}
		for r := range size {
			var outs []Out
			ms[r], outs = New(r, size, Value{Flag: ^uint64(1 << r), Failed: NewSet(size), Acked: NewSet(size)})
			push(r, outs)
		}
		deliver := func() {
			for len(queue) > 0 {
				q := queue[0]
				queue = queue[1:]
				if to := q[1].(int); to != 0 || !crashed {
					push(to, ms[to].Receive(q[0].(int), q[2].(Message)))
				}
			}
		}
		deliver()
		if crashed {
			for r := 1; r < size; r++ {
				push(r, ms[r].Crashed(0))
				deliver()
			}
		}
		for r := 1; r < size; r++ {
			v, over := ms[r].Result()
			require.True(t, over, "cut %d: member %d", cut, r)
			first, _ := ms[1].Result()
			require.Equal(t, first, v, "cut %d: member %d", cut, r)
		}
		if !crashed {
			require.Equal(t, 9, cut, "of so many messages of the leader, none was cut")
			return
		}
	}
}

// Who crashes while contributions are gathered is among those that are agreed to have, though nobody knew when it began.
func TestACrashWhileContributionsAreGathered(t *testing.T) {
	own := func(r int) Value {
		return Value{Flag: ^uint64(0), Floor: uint32(r), Failed: NewSet(3), Acked: NewSet(3)}
	}
	leader, outs := New(0, 3, own(0))
	require.Empty(t, outs)
	require.Empty(t, leader.Crashed(2))
	_, outs = New(1, 3, own(1))
	outs = leader.Receive(1, outs[0].Message)
	require.Len(t, outs, 1)
	require.Equal(t, Propose, outs[0].Kind)
	require.True(t, outs[0].Value.Failed.Has(2))
}

// A decision of a leader that gives up and crashes before anybody hears of it stays: who has accepted it leads, and
// changes nothing of it, though it knows of a crash more.
func TestWhatWasAcceptedIsNotChanged(t *testing.T) {
	own := Value{Flag: ^uint64(0), Failed: NewSet(2), Acked: NewSet(2)}
	first, _ := New(0, 2, own)
	second, outs := New(1, 2, own)
	outs = second.Receive(0, first.Receive(1, outs[0].Message)[0].Message)
	first.Receive(1, outs[0].Message) // it has accepted
	first.Quit()
	decided, over := first.Result()
	require.True(t, over)
	second.Crashed(0)
	again, over := second.Result()
	require.True(t, over)
	require.Equal(t, decided, again)
}

func TestParseRefuses(t *testing.T) {
	good := Message{Kind: Propose, Value: Value{Failed: NewSet(3), Acked: NewSet(3), Quit: NewSet(3)}}.Append(nil, 1)
	_, _, err := Parse(good, 3)
	require.NoError(t, err)
	for name, b := range map[string][]byte{
		"nothing":             nil,
		"no kind":             {1, 0, 0, 0, 0},
		"an unknown kind":     {1, 0, 0, 0, byte(kinds)},
		"a value too many":    append([]byte{1, 0, 0, 0, byte(Know)}, good[5:]...),
		"a value too few":     good[:5],
		"a longer set":        append(append([]byte{}, good...), 0, 0, 0, 0, 0, 0, 0, 0),
		"a member beyond":     func() []byte { b := append([]byte{}, good...); b[len(b)-8] = 8; return b }(),
		"a leader beyond":     func() []byte { b := append([]byte{}, good...); b[5] = 3; return b }(),
		"of a larger group":   Message{Kind: Propose, Value: Value{Failed: NewSet(65), Acked: NewSet(65), Quit: NewSet(65)}}.Append(nil, 1),
		"a leader before all": func() []byte { b := append([]byte{}, good...); copy(b[5:], []byte{0xFE, 0xFF, 0xFF, 0xFF}); return b }(),
	} {
		_, _, err := Parse(b, 3)
		require.ErrorIs(t, err, ErrMessage, name)
	}
}

func FuzzParse(f *testing.F) {
	for k := Contribute; k < kinds; k++ {
		f.Add(Message{Kind: k, Accepted: -1, Value: Value{Flag: 3, Failed: NewSet(70), Acked: NewSet(70), Quit: NewSet(70)}}.Append(nil, 9), 70)
	}
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 || size > 1000 {
			return
		}
		m, n, err := Parse(b, size)
		if err != nil {
			return
		}
		require.Equal(t, b, m.Append(nil, n))
	})
}
