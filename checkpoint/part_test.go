//go:build linux

package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/race"
)

func TestOnlyWhatWasWrittenIsCopied(t *testing.T) {
	a, path := newArea(t)
	big, small, log := state(3*large+100), []byte("small"), []byte("log")
	save := func(number uint64, p Part) {
		t.Helper()
		require.NoError(t, a.Begin(number, p, Part{Bytes: small}))
		require.NoError(t, a.End(log))
		requireLatest(t, openArea(t, path), number, string(big), string(small), string(log))
	}
	rest := func() int64 { // beside the large part: the others, and a stamp for each chunk
		return int64(len(small)+len(log)) + 8*(chunksIn(int64(len(big)))+2)
	}
	compared := Part{Bytes: big}
	for number := range uint64(2) { // each slot once
		save(1+number, compared)
		require.EqualValues(t, int64(len(big))+rest(), a.Copied(), number)
	}
	save(3, compared)
	require.EqualValues(t, rest(), a.Copied(), "nothing has changed")
	require.Zero(t, a.Changed(0))

	big[5*ChunkLen]++
	log = append(log, bytes.Repeat([]byte("longer"), ChunkLen)...)
	save(4, compared)
	require.EqualValues(t, ChunkLen, a.Changed(0))
	big[7*ChunkLen-1]++
	big[len(big)-1]++
	save(5, Part{Bytes: big, Known: true, Written: []Range{{7*ChunkLen - 1, 7 * ChunkLen}, {len(big) - 1, len(big)}}})
	require.EqualValues(t, 2*ChunkLen, a.Changed(0))
	require.EqualValues(t, 2*ChunkLen+100+rest()+8*(chunksIn(int64(len(log)))-1), a.Copied(), "what is new in 4 and in 5")
	save(6, Part{Bytes: big, Known: true})
	require.Zero(t, a.Changed(0))

	small = bytes.Repeat(small, 1000)
	save(7, Part{Bytes: big, Known: true})
	require.Less(t, a.Copied(), int64(large), "a large part stays where it is")
}

// What was begun and not ended has told what was written until then.
func TestAnAbandonedSnapshotForgetsNothing(t *testing.T) {
	a, path := newArea(t)
	big := state(2 * large)
	for n := range uint64(4) {
		require.NoError(t, a.Begin(1+n, Part{Bytes: big}))
		require.NoError(t, a.End(nil))
	}
	big[0]++
	require.NoError(t, a.Begin(5, Part{Bytes: big, Known: true, Written: []Range{{0, 1}}}))
	require.NoError(t, a.Begin(6, Part{Bytes: big, Known: true}))
	require.NoError(t, a.End(nil))
	requireLatest(t, openArea(t, path), 6, string(big), "")
	require.NoError(t, a.Begin(7, Part{Bytes: big, Known: true}))
	require.NoError(t, a.End(nil))
	requireLatest(t, openArea(t, path), 7, string(big), "")

	big[large]++
	require.ErrorIs(t, a.Begin(7, Part{Bytes: big, Known: true, Written: []Range{{large, large + 1}}}), ErrNumber)
	require.NoError(t, a.Begin(8, Part{Bytes: big, Known: true}), "after an error nothing is known")
	require.NoError(t, a.End(nil))
	requireLatest(t, openArea(t, path), 8, string(big), "")
}

// What was written for a snapshot that was not ended, and was taken back, is not in the next.
func TestAnAbandonedSnapshotIsNotInTheNext(t *testing.T) {
	a, path := newArea(t)
	big := state(2 * large)
	for n := range uint64(2) {
		require.NoError(t, a.Begin(1+n, Part{Bytes: big}))
		require.NoError(t, a.End(nil))
	}
	was := big[0]
	big[0]++
	require.NoError(t, a.Begin(3, Part{Bytes: big}))
	big[0] = was
	require.NoError(t, a.Begin(4, Part{Bytes: big}))
	require.NoError(t, a.End(nil))
	requireLatest(t, openArea(t, path), 4, string(big), "")
}

// Where a part was in a slot, a snapshot that was not ended may have written another.
func TestAnAbandonedSnapshotLeavesNoPartInItsSlot(t *testing.T) {
	a, path := newArea(t)
	one, two := state(large), bytes.Repeat([]byte("2"), large)
	for n := range uint64(2) {
		require.NoError(t, a.Begin(1+n, Part{Bytes: one}, Part{Bytes: two}))
		require.NoError(t, a.End(nil))
	}
	require.NoError(t, a.Begin(3, Part{Bytes: state(2 * large)}, Part{Bytes: two, Known: true}))
	require.NoError(t, a.Begin(4, Part{Bytes: one}, Part{Bytes: two, Known: true}))
	require.NoError(t, a.End(nil))
	requireLatest(t, openArea(t, path), 4, string(one), string(two), "")
}

func TestAPartThatShrinksLeavesTheNextAlone(t *testing.T) {
	a, path := newArea(t)
	agent := openArea(t, path)
	b, _ := newArea(t)
	r := NewReplica(b)
	one, two := state(2*large), state(2*large)
	require.NoError(t, a.Begin(1, Part{Bytes: one}, Part{Bytes: two}))
	require.NoError(t, a.End(nil))
	sums, _ := carry(t, agent, r, nil, 0)

	one = one[:large]
	at := large + 50*ChunkLen
	two[at]++
	require.NoError(t, a.Begin(2, Part{Bytes: one}, Part{Bytes: two, Known: true, Written: []Range{{at, at + 1}}}))
	require.NoError(t, a.End(nil))
	_, n := carry(t, agent, r, sums, 0)
	require.EqualValues(t, ChunkLen, n)
	requireLatest(t, b, 2, string(one), string(two), "")
}

// A writer is a rank with state and a book of what it writes.
type writer struct {
	rng     *rand.Rand
	parts   [][]byte
	written [][]Range
	known   []bool // the book has been kept since the last snapshot
}

// write writes somewhere.
func (w *writer) write() {
	if len(w.parts) == 0 {
		return
	}
	i := w.rng.IntN(len(w.parts))
	p := w.parts[i]
	for range w.rng.IntN(20) {
		at := w.rng.IntN(len(p) + 1)
		end := min(len(p), at+w.rng.IntN(3*ChunkLen))
		for k := at; k < end; k++ {
			p[k] = byte(w.rng.Uint32() % 3) // sometimes what it was
		}
		w.written[i] = append(w.written[i], Range{at, end})
	}
}

// reshape has other parts in the place of some.
func (w *writer) reshape() {
	length := w.rng.IntN(3)*large/2 + w.rng.IntN(large)
	k := len(w.parts)
	i, j := w.rng.IntN(max(k, 1)), w.rng.IntN(max(k, 1))
	switch what := w.rng.IntN(5); {
	case k < 2 || what == 0 && k < 5:
		w.parts, w.written, w.known = append(w.parts, state(length)), append(w.written, nil), append(w.known, false)
	case what == 0:
		w.parts, w.written, w.known = w.parts[:k-1], w.written[:k-1], w.known[:k-1]
	case what == 1 && i != j: // they change places
		w.parts[i], w.parts[j] = w.parts[j], w.parts[i]
		w.known[i], w.known[j] = false, false
	default:
		w.parts[i], w.known[i] = append(w.parts[i], make([]byte, length)...)[:length], false
	}
}

func (w *writer) clone() (all [][]byte) {
	for _, p := range w.parts {
		all = append(all, slices.Clone(p))
	}
	return all
}

// begun is what a snapshot is begun with. The book begins anew.
func (w *writer) begun() (all []Part) {
	for i, p := range w.parts {
		all = append(all, Part{Bytes: p, Known: w.known[i] && w.rng.IntN(4) > 0, Written: w.written[i]})
		w.written[i], w.known[i] = nil, true
	}
	return all
}

// writtenAgainstModel has a rank write, save, abandon what it saves and begin again, and an
// agent carry to a replica what was written since the snapshot that the replica has.
func writtenAgainstModel(t testing.TB, ops []byte, seed uint64) (copied, carried, saved int64) {
	a, path := newArea(t)
	agent := openArea(t, path)
	b, _ := newArea(t)
	r := NewReplica(b)
	w := &writer{rng: rand.New(rand.NewPCG(seed, 5))}
	var number uint64
	lost := false // what was begun last has not ended, so that all of the next is copied
	var sums *Sums
	var want [][]byte
	whole := func(area *Area) {
		t.Helper()
		snap, err := area.Latest()
		require.NoError(t, err)
		require.Equal(t, len(want), len(snap.Parts))
		for i := range want {
			require.True(t, bytes.Equal(want[i], snap.Parts[i]), "part %d of snapshot %d", i, snap.Number)
		}
	}
	w.reshape()
	for _, op := range ops {
		switch op % 16 {
		case 0, 1:
			w.reshape()
		case 2, 3, 4:
			w.write()
		case 5: // it begins what it never ends, and may take back what it has written
			before, back := w.clone(), op/16%2 == 0
			if back {
				w.write()
			}
			number++
			begun := w.begun()
			require.NoError(t, a.Begin(number, begun...))
			lost = true
			for i, p := range begun {
				for _, r := range p.Written {
					if r.To = min(r.To, len(p.Bytes)); back && r.From < r.To { // it may have been cut since
						copy(w.parts[i][r.From:r.To], before[i][r.From:r.To])
						w.written[i] = append(w.written[i], r)
					}
				}
			}
		case 6: // it goes on in another process, to which all is new
			a.Close()
			a = openArea(t, path)
			clear(w.known)
		case 7: // it saves as one does who knows nothing
			number++
			w.begun()
			want = append(w.clone(), []byte{})
			require.NoError(t, save(a, number, want...))
		default:
			number++
			log := make([]byte, w.rng.IntN(3*ChunkLen))
			want = append(w.clone(), log)
			require.NoError(t, a.Begin(number, w.begun()...))
			w.write() // before the log is put in
			require.NoError(t, a.End(log))
			for _, p := range want {
				if !lost {
					saved += int64(len(p))
				}
			}
			if !lost {
				copied += a.Copied()
			}
			lost = false
		}
		if want == nil {
			continue
		}
		whole(agent)
		if latest, err := agent.Latest(); op/16%2 == 0 && (sums == nil || latest.Number > sums.Number) {
			require.NoError(t, err)
			var n int64
			sums, n = carry(t, agent, r, sums, 256<<10)
			carried += n
			whole(b)
		}
	}
	return copied, carried, saved
}

func TestWrittenAgainstModel(t *testing.T) {
	var copied, carried, saved int64
	seeds := uint64(12)
	if testing.Short() || race.Enabled {
		seeds = 8
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 6))
		ops := make([]byte, 80)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		c, r, s := writtenAgainstModel(t, ops, seed)
		copied, carried, saved = copied+c, carried+r, saved+s
	}
	t.Logf("of %d bytes saved %d were copied and %d carried", saved, copied, carried)
	require.Less(t, copied, saved*3/4)
	require.Less(t, carried, saved/2)
}

func FuzzWritten(f *testing.F) {
	f.Add([]byte{8, 1, 24, 9, 2, 5, 10, 0, 11, 6, 12, 7, 13, 14}, uint64(1))
	f.Fuzz(func(t *testing.T, ops []byte, seed uint64) {
		writtenAgainstModel(t, ops[:min(len(ops), 60)], seed)
	})
}

// What is written where the last part goes is there, and what is too long for that is copied.
func TestTheLastPartIsWrittenWhereItGoes(t *testing.T) {
	a, path := newArea(t)
	_, err := a.Room(1)
	require.Error(t, err, "nothing was begun")
	for number, more := range []string{"", " and more, which has no room", ""} {
		require.NoError(t, a.Begin(uint64(number+1), Part{Bytes: []byte("state")}))
		last, err := a.Room(8)
		require.NoError(t, err)
		require.Empty(t, last)
		last = append(last, "the log"...)
		there := &last[0]
		last = append(last, more...)
		require.Equal(t, more == "", there == &last[0])
		require.NoError(t, a.End(last))
		requireLatest(t, openArea(t, path), uint64(number+1), "state", "the log"+more)
	}
}
