//go:build linux

package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// carry makes r have what a has, from base, and tells how many bytes that took.
func carry(t testing.TB, a *Area, r *Replica, base *Sums, max int) (*Sums, int64) {
	t.Helper()
	d, err := a.Delta(base, max)
	require.NoError(t, err)
	require.NoError(t, r.Begin(d.Number, d.Lengths, d.Base))
	n := int64(0)
	for c, err := range d.Chunks() {
		require.NoError(t, err)
		require.NoError(t, r.Put(c.Part, c.Off, c.Data))
		n += int64(len(c.Data))
	}
	require.Equal(t, d.Bytes, n)
	require.NoError(t, r.Commit(d.Sums.Sum()))
	return d.Sums, n
}

func TestOnlyWhatChangedTravels(t *testing.T) {
	a, _ := newArea(t)
	b, path := newArea(t)
	r := NewReplica(b)
	big, small := bytes.Repeat([]byte("unchanged "), 1<<17), []byte("small")
	require.NoError(t, save(a, 1, big, small))
	sums, n := carry(t, a, r, nil, 0)
	require.EqualValues(t, len(big)+len(small), n)
	requireLatest(t, b, 1, string(big), "small")

	big[ChunkLen] = '!'
	require.NoError(t, save(a, 2, big, small))
	sums, n = carry(t, a, r, sums, 1000)
	require.EqualValues(t, ChunkLen, n)
	requireLatest(t, b, 2, string(big), "small")

	require.NoError(t, save(a, 3, big, small))
	sums, n = carry(t, a, r, sums, 0)
	require.Zero(t, n)
	requireLatest(t, openArea(t, path), 3, string(big), "small")

	require.NoError(t, save(a, 4, big[:ChunkLen+5], small, nil, big[:1]))
	_, n = carry(t, a, r, sums, 0)
	require.EqualValues(t, 5+1, n)
	requireLatest(t, b, 4, string(big[:ChunkLen+5]), "small", "", "u")
}

func TestAReplicaIsWholeOrHasTheOneBefore(t *testing.T) {
	a, _ := newArea(t)
	b, path := newArea(t)
	r := NewReplica(b)
	require.ErrorContains(t, r.Put(0, 0, nil), "Begin")
	require.ErrorContains(t, r.Commit(Sum{}), "Begin")
	require.ErrorIs(t, r.Begin(2, nil, 1), ErrBase)
	require.NoError(t, save(a, 1, []byte("one")))
	sums, _ := carry(t, a, r, nil, 0)

	require.ErrorIs(t, r.Begin(3, []int64{3}, 2), ErrBase)
	require.ErrorIs(t, r.Begin(1, []int64{3}, 0), ErrNumber)
	require.Error(t, r.Begin(2, []int64{-1}, 0))
	require.NoError(t, r.Begin(2, []int64{3}, 1))
	for _, bad := range []struct {
		part, off, n int64
	}{{1, 0, 0}, {-1, 0, 0}, {0, -1, 1}, {0, 4, 0}, {0, 3, 1}, {0, 0, 4}, {0, 1 << 62, 1}} {
		require.Error(t, r.Put(int(bad.part), bad.off, make([]byte, bad.n)), "%v", bad)
	}
	require.NoError(t, r.Put(0, 1, []byte("NE")))
	requireLatest(t, b, 1, "one")
	requireLatest(t, openArea(t, path), 1, "one")
	require.ErrorIs(t, r.Commit(sums.Sum()), ErrDiffers)
	require.ErrorContains(t, r.Commit(sums.Sum()), "Begin")
	requireLatest(t, b, 1, "one")

	require.NoError(t, save(a, 2, []byte("oNE")))
	two, err := a.Sums(2)
	require.NoError(t, err)
	require.NoError(t, r.Begin(2, []int64{3}, 1)) // given up, and again
	require.NoError(t, r.Put(0, 0, []byte("xyz")))
	require.NoError(t, r.Begin(2, []int64{3}, 1))
	require.NoError(t, r.Put(0, 1, []byte("NE")))
	require.NoError(t, r.Commit(two.Sum()))
	requireLatest(t, b, 2, "oNE")
	require.ErrorIs(t, r.Begin(3, []int64{3}, 1), ErrBase, "1 is still there, but what is not sent would be taken from 2")

	require.NoError(t, r.Begin(3, []int64{3}, 2))
	b.Close()
	require.ErrorIs(t, r.Put(0, 0, []byte("x")), ErrClosed)
	require.ErrorIs(t, r.Commit(two.Sum()), ErrClosed)
	require.ErrorIs(t, r.Begin(4, nil, 0), ErrClosed)
}

func TestADeltaThatIsOverwrittenSaysSo(t *testing.T) {
	a, path := newArea(t)
	reader := openArea(t, path)
	_, err := reader.Delta(nil, 0)
	require.ErrorIs(t, err, ErrNone)
	require.NoError(t, save(a, 1, make([]byte, 10)))
	_, err = reader.Delta(nil, -1)
	require.Error(t, err)
	d, err := reader.Delta(nil, 3)
	require.NoError(t, err)
	n := 0
	for _, err = range d.Chunks() {
		if err != nil {
			break
		}
		if n++; n == 2 {
			require.NoError(t, save(a, 2))
			require.NoError(t, save(a, 3))
		}
	}
	require.ErrorIs(t, err, ErrGone)
	require.Equal(t, 2, n)
	_, err = reader.Sums(1)
	require.ErrorIs(t, err, ErrGone)
	d, err = reader.Delta(nil, 0)
	require.NoError(t, err)
	reader.Close()
	for _, err = range d.Chunks() {
	}
	require.ErrorIs(t, err, ErrClosed)
}

// A model of an area and its replica, driven by bytes: saves, deltas that
// arrive, are given up, are damaged, start from a wrong base, and restarts of
// either side.
func replicaAgainstModel(t testing.TB, ops []byte, seed uint64) (commits, refused, restarts int) {
	a, pathA := newArea(t)
	b, pathB := newArea(t)
	r := NewReplica(b)
	rng := rand.New(rand.NewPCG(seed, 2))
	parts, number := [][]byte{nil}, uint64(0)
	var at map[uint64][][]byte = map[uint64][][]byte{} // by number
	var have uint64                                    // the replica's
	known := map[uint64]*Sums{}
	check := func(area *Area, number uint64) {
		snap, err := area.Latest()
		if number == 0 {
			require.ErrorIs(t, err, ErrNone)
			return
		}
		require.NoError(t, err)
		require.Equal(t, number, snap.Number)
		require.Len(t, snap.Parts, len(at[number]))
		for i := range snap.Parts {
			require.True(t, bytes.Equal(at[number][i], snap.Parts[i]), "part %d of snapshot %d", i, number)
		}
	}
	for _, op := range ops {
		switch op % 8 {
		case 0: // another shape
			if rng.IntN(2) == 0 && len(parts) > 0 {
				p := rng.IntN(len(parts))
				parts[p] = slices.Concat(parts[p], make([]byte, ChunkLen))[:rng.IntN(len(parts[p])+ChunkLen)]
			} else if len(parts) < 4 {
				parts = append(parts, bytes.Repeat([]byte{op}, rng.IntN(4*ChunkLen)))
			} else {
				parts = parts[:1+rng.IntN(3)]
			}
		case 1, 2: // another byte or a few
			for range rng.IntN(3) {
				if len(parts) > 0 {
					if p := parts[rng.IntN(len(parts))]; len(p) > 0 {
						p[rng.IntN(len(p))]++
					}
				}
			}
		case 3, 4:
			number += 1 + rng.Uint64N(2)
			require.NoError(t, save(a, number, parts...))
			at[number] = nil
			for _, p := range parts {
				at[number] = append(at[number], slices.Clone(p))
			}
		case 5, 6:
			if number == 0 || number == have {
				continue
			}
			base := known[have]
			if rng.IntN(4) == 0 { // any other
				base = known[number-min(number, rng.Uint64N(3))]
			}
			d, err := a.Delta(base, 1+rng.IntN(2*ChunkLen))
			require.NoError(t, err)
			err = r.Begin(d.Number, d.Lengths, d.Base)
			if d.Base != 0 && d.Base != have {
				require.ErrorIs(t, err, ErrBase)
				refused++
				continue
			}
			require.NoError(t, err)
			all := []Chunk{}
			for c, err := range d.Chunks() {
				require.NoError(t, err)
				all = append(all, c)
			}
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			fate := rng.IntN(5)
			if fate == 0 { // the connection breaks
				all = all[:rng.IntN(len(all)+1)]
			}
			for _, c := range all {
				require.NoError(t, r.Put(c.Part, c.Off, c.Data))
			}
			if fate == 0 {
				break
			}
			if fate == 1 && len(all) > 0 { // a byte changes on the way
				c := all[rng.IntN(len(all))]
				require.NoError(t, r.Put(c.Part, c.Off, []byte{c.Data[0] ^ 1}))
				require.ErrorIs(t, r.Commit(d.Sums.Sum()), ErrDiffers)
				refused++
				break
			}
			require.NoError(t, r.Commit(d.Sums.Sum()))
			have, known[d.Number] = d.Number, d.Sums
			commits++
		case 7:
			restarts++
			if rng.IntN(2) == 0 {
				a.Close()
				a = openArea(t, pathA)
			} else {
				b.Close()
				b = openArea(t, pathB)
				r = NewReplica(b)
				if have != 0 {
					sums, err := b.Sums(have) // what it would tell whoever asks for its base
					require.NoError(t, err)
					require.Equal(t, known[have], sums)
				}
			}
		}
		check(a, number)
		check(b, have)
	}
	a.Close()
	b.Close()
	return commits, refused, restarts
}

func TestReplicaAgainstModel(t *testing.T) {
	commits, refused, restarts := 0, 0, 0
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		ops := make([]byte, 100)
		for i := range ops {
			ops[i] = byte(rng.Uint32())
		}
		c, r, s := replicaAgainstModel(t, ops, seed)
		commits, refused, restarts = commits+c, refused+r, restarts+s
	}
	t.Logf("%d commits, %d refused, %d restarts", commits, refused, restarts)
	require.Greater(t, commits, 100)
	require.Greater(t, refused, 20)
	require.Greater(t, restarts, 100)
}

func FuzzReplica(f *testing.F) {
	f.Add([]byte{0, 3, 5, 1, 3, 5, 7, 0, 3, 6}, uint64(1))
	f.Fuzz(func(t *testing.T, ops []byte, seed uint64) {
		replicaAgainstModel(t, ops[:min(len(ops), 200)], seed)
	})
}

// Bytes that change after they were committed are seen by who goes on from them, and by who passes
// them on; also where a later snapshot took them from the one before.
func TestAReplicaThatWasDamagedIsNoSnapshot(t *testing.T) {
	a, _ := newArea(t)
	b, path := newArea(t)
	r := NewReplica(b)
	state := make([]byte, 3*ChunkLen+5)
	require.NoError(t, save(a, 1, state))
	base, _ := carry(t, a, r, nil, 0)
	flip := func() { // where the part begins
		damage(t, path, slotStart+int64(b.latest)*slotSpan+pageLen)
	}
	verify := func() error {
		c := openArea(t, path)
		snap, err := c.Latest()
		require.NoError(t, err)
		_, err = c.Delta(nil, 0)
		require.Equal(t, err, snap.Verify())
		return err
	}
	require.NoError(t, verify())
	flip()
	require.ErrorIs(t, verify(), ErrCorrupt)

	state[2*ChunkLen] = 1
	require.NoError(t, save(a, 2, state))
	carry(t, a, r, base, 0)
	require.ErrorIs(t, verify(), ErrCorrupt)
	require.NoError(t, save(a, 3, state))
	carry(t, a, r, nil, 0) // nothing of it is the base's
	require.NoError(t, verify())
}
