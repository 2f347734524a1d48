package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/seeds"
)

// Steps of a job with two heads for a while: one that was elected, and one that was before
// and has not noticed. Whatever comes when, each process hears each map once, the same as
// all others; each rank lives in one process; and no move is without an end.
func TestTwoHeads(t *testing.T) {
	count := map[string]int{}
	n := seeds.Each(t, 150, func(seed uint64) {
		w := newWorld(t, seed, count)
		for range 250 {
			w.step()
		}
		w.rest()
	})
	t.Logf("%v", count)
	if n < 150 {
		return
	}
	for _, what := range []string{"elected", "decided in vain", "told in vain", "moved", "stayed", "moved under another head", "recovered", "condemned", "noticed late"} {
		require.Greater(t, count[what], 20, "%s: %v", what, count)
	}
}

// A world is such a job.
type world struct {
	t      *testing.T
	seed   uint64
	rand   *rand.Rand
	count  map[string]int
	agreed *State
	heads  []*acting // the last was elected
	all    []*member
	truth  map[uint32]string // by epoch: what the map is
}

// An acting head, which may not know that it is none any more.
type acting struct {
	w       *world
	pen     Pen
	pending []Entry
}

// A member is a process, with the deputy that speaks for it.
type member struct {
	index  int
	dead   bool
	head   *acting // nil: it looks for one
	queue  []Due   // on their way from head
	heard  Heard
	has    map[int]uint32  // by rank: since which epoch
	says   map[uint32]bool // by epoch of a move: the rank came here, or it stayed here
	byHead map[uint32]*acting
}

func newWorld(t *testing.T, seed uint64, count map[string]int) *world {
	w := &world{t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 20)), count: count, agreed: stateOf(t, job(), Entry{Started: &Started{}}), truth: map[uint32]string{}}
	for i, p := range w.agreed.Processes {
		m := w.join(i, 1)
		for _, r := range p.Ranks {
			m.has[r] = 1
		}
	}
	w.elect()
	for _, m := range w.all {
		w.find(m)
	}
	return w
}

func (w *world) require(ok bool, format string, args ...any) {
	w.t.Helper()
	if !ok {
		w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), seeds.Replay("./internal/ledger", "TestTwoHeads", w.seed))
	}
}

func (w *world) join(index int, start uint32) *member {
	m := &member{index: index, heard: Heard{Start: start}, has: map[int]uint32{}, says: map[uint32]bool{}, byHead: map[uint32]*acting{}}
	w.all = append(w.all, m)
	return m
}

func (w *world) elected() *acting { return w.heads[len(w.heads)-1] }

// elect makes a head of what is agreed on. One that was before stays until it notices.
func (w *world) elect() {
	s := new(State)
	require.NoError(w.t, s.Restore(w.agreed.Snapshot()))
	if n := len(w.heads); n > 0 {
		w.count["decided in vain"] += len(w.elected().pending)
		w.heads = w.heads[n-1:]
		w.count["elected"]++
	}
	w.heads = append(w.heads, &acting{w: w, pen: NewPen(s)})
}

// find has m leave the head that it hears, and go to the one that was elected.
func (w *world) find(m *member) {
	h := w.elected()
	if m.head == h || m.dead {
		return
	}
	w.count["told in vain"] += len(m.queue)
	m.head, m.queue = h, nil
	h.tell(m, h.pen.State.Due(m.index, m.heard)...)
}

// write writes e.
func (h *acting) write(e Entry) bool {
	if _, err := h.pen.Write(e); err != nil {
		return false
	}
	h.pending = append(h.pending, e)
	return true
}

// tell tells m what is due, when all that was written is agreed on.
func (h *acting) tell(m *member, due ...Due) {
	for i := range due { // as it is now
		c := *due[i].Change
		due[i].Change = &c
	}
	h.pen.Then(func() {
		if m.head == h {
			m.queue = append(m.queue, due...)
		}
	})
}

// tellMap tells all who hear h of a map.
func (h *acting) tellMap(epoch uint32) {
	for _, m := range h.w.all {
		if m.head == h {
			h.tell(m, Due{Epoch: epoch, Change: h.pen.State.Change(epoch)})
		}
	}
}

// step is one thing that happens.
func (w *world) step() {
	m := w.all[w.rand.IntN(len(w.all))]
	h := w.heads[w.rand.IntN(len(w.heads))]
	switch k := w.rand.IntN(100); {
	case k < 12: // only who hears its processes knows whether they live
		rank := w.rand.IntN(3)
		if from := h.pen.State.ProcessOf(rank); !w.all[from].dead && h.write(Entry{Moving: &Moving{Rank: rank, From: from, To: m.index, Epoch: h.pen.State.Epoch() + 1}}) && w.all[from].head == h {
			h.tell(w.all[from], Due{Epoch: h.pen.State.Epoch(), Leave: true, Change: h.pen.State.Change(h.pen.State.Epoch())})
		}
	case k < 45:
		w.agree(h)
	case k < 70:
		w.hear(m)
	case k < 80:
		w.hearken(h, m)
	case k < 90:
		w.find(m)
	case k < 93:
		w.elect()
	case k < 95:
		if len(w.all) < 40 {
			w.kill(m)
		}
	default:
		w.mend(h)
	}
}

// agree has the oldest of what h has written agreed on; another than who was elected learns
// that it is none.
func (w *world) agree(h *acting) {
	if h != w.elected() {
		w.count["noticed late"]++
		w.heads = w.heads[len(w.heads)-1:]
		for _, m := range w.all {
			if m.head == h {
				w.count["told in vain"] += len(m.queue)
				m.head, m.queue = nil, nil
			}
		}
		return
	}
	if len(h.pending) == 0 {
		return
	}
	e := h.pending[0]
	h.pending = h.pending[1:]
	require.NoError(w.t, w.agreed.Apply(e), "seed %d: %v", w.seed, e)
	h.pen.Agreed(h.pen.written - uint64(len(h.pending)))
}

// hear has m take the next that it is told.
func (w *world) hear(m *member) {
	if m.dead || m.head == nil || len(m.queue) == 0 {
		return
	}
	d := m.queue[0]
	m.queue = m.queue[1:]
	if d.Leave {
		if slices.Contains(m.heard.Leave, d.Epoch) {
			w.require(false, "process %d is told to leave twice, by map %d", m.index, d.Epoch)
		}
		m.heard.Leave = append(m.heard.Leave, d.Epoch)
		to := w.all[d.Move.To]
		if _, here := m.has[d.Move.Rank]; !here || to.dead || w.rand.IntN(3) == 0 {
			m.says[d.Epoch] = true
			m.byHead[d.Epoch] = m.head
			return
		}
		delete(m.has, d.Move.Rank)
		to.has[d.Move.Rank] = d.Epoch
		to.says[d.Epoch] = true
		to.byHead[d.Epoch] = m.head
		return
	}
	if d.Epoch <= m.heard.Start || slices.Contains(m.heard.Maps, d.Epoch) {
		w.require(false, "process %d hears of map %d twice", m.index, d.Epoch)
	}
	what := fmt.Sprintf("%s %+v %+v", d.Kind, d.Move, d.Recovered)
	if known, told := w.truth[d.Epoch]; told {
		w.require(known == what, "map %d is %s to one and %s to another", d.Epoch, known, what)
	}
	w.truth[d.Epoch] = what
	c := w.agreed.Change(d.Epoch)
	w.require(c != nil && c.Kind == d.Kind, "process %d hears of map %d, %s, which is not agreed on", m.index, d.Epoch, what)
	m.heard.Maps = append(m.heard.Maps, d.Epoch)
	for slices.Contains(m.heard.Maps, m.heard.Start+1) {
		m.heard.Start++
	}
	if d.Recovered != nil {
		for _, x := range d.Recovered.Ranks {
			since := m.has[x.Rank] // by a newer map, if it came before this was heard
			w.require(since == 0 || since > d.Epoch, "rank %d lives in process %d, and goes on in %d", x.Rank, m.index, x.Process)
			if x.Process == m.index {
				m.has[x.Rank] = d.Epoch
			}
		}
	}
}

// hearken has h take what m has to say of moves.
func (w *world) hearken(h *acting, m *member) {
	if m.head != h || m.dead {
		return
	}
	for epoch := range m.says {
		c := h.pen.State.Change(epoch)
		if c == nil || c.Kind != Open {
			continue
		}
		if c.Move.To == m.index {
			if h.write(Entry{Came: &Came{Epoch: epoch}}) {
				h.write(Entry{MoveEnded: &MoveEnded{Epoch: epoch}})
				w.count["moved"]++
				if m.byHead[epoch] != h {
					w.count["moved under another head"]++
				}
			}
		} else if h.write(Entry{Void: &Void{Epoch: epoch}}) {
			w.count["stayed"]++
		}
		h.tellMap(epoch)
	}
}

// kill ends m, unless it is the last but three.
func (w *world) kill(m *member) {
	m.dead, m.head, m.queue = true, nil, nil
}

// mend has h look after those who died: it ends their moves, and has their ranks go on.
func (w *world) mend(h *acting) {
	s := h.pen.State
	for i, c := range s.Changes {
		if c.Kind != Open || !w.all[c.Move.From].dead && !w.all[c.Move.To].dead {
			continue
		}
		other := c.Move.From
		if w.all[other].dead {
			other = c.Move.To
		}
		// In this order: a next head that knows only the first still finds the move open.
		if h.write(Entry{Condemned: &Condemned{Process: other}}) && h.write(Entry{Void: &Void{Epoch: uint32(i + 2)}}) {
			h.tellMap(uint32(i + 2))
			h.pen.Then(func() { w.kill(w.all[other]) })
			w.count["condemned"]++
		}
	}
	e := Recovered{Epoch: s.Epoch() + 1}
	free := 0
	for i := range s.Processes {
		if w.all[i].dead && !s.Processes[i].Gone {
			e.Lost = append(e.Lost, i)
			for _, r := range s.Processes[i].Ranks {
				for free < len(s.Processes) && (w.all[free].dead || s.takes(free) != nil) {
					free++
				}
				if free == len(s.Processes) {
					w.more(h)
					return
				}
				e.Ranks = append(e.Ranks, Revived{Rank: r, Process: free})
				free++
			}
		}
	}
	if len(e.Ranks) > 0 && h.write(Entry{Recovered: &e}) {
		w.count["recovered"]++
		h.tellMap(e.Epoch)
	}
}

// more adds a spare process, if nothing is under way: it is told Start by the newest map
// before which all is known.
func (w *world) more(h *acting) {
	if len(h.pending) > 0 || h != w.elected() || !h.write(Entry{Added: &Added{}}) {
		return
	}
	for len(h.pending) > 0 {
		w.agree(h)
	}
	start := h.pen.State.Epoch()
	for i, c := range h.pen.State.Changes {
		if c.Kind == Open {
			start = min(start, uint32(i+1))
		}
	}
	w.find(w.join(len(w.all), start))
}

// rest lets everything come to an end, and looks how it is.
func (w *world) rest() {
	for range 40 {
		h := w.elected()
		for len(w.heads) > 1 {
			w.agree(w.heads[0])
		}
		for len(h.pending) > 0 {
			w.agree(h)
		}
		for _, m := range w.all {
			w.find(m)
			for len(m.queue) > 0 {
				w.hear(m)
			}
			w.hearken(h, m)
		}
		w.mend(h)
	}
	s := w.agreed
	for i, c := range s.Changes {
		w.require(c.Kind != Open, "the move of epoch %d has no end: %+v", i+2, c.Move)
	}
	for rank := range 3 {
		at := s.ProcessOf(rank)
		for _, m := range w.all {
			_, here := m.has[rank]
			w.require(m.dead || here == (m.index == at), "rank %d is in process %d by the ledger; process %d has it: %v", rank, at, m.index, here)
			w.require(m.dead || m.heard.Start == s.Epoch(), "process %d has not heard of map %d, only to %d", m.index, s.Epoch(), m.heard.Start)
		}
	}
}
