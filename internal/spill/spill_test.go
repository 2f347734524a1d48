//go:build linux

package spill

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWhatIsTakenIsNobodyElses(t *testing.T) {
	s := New(t.TempDir(), 16<<20, func(err error) { t.Error(err) })
	defer s.Close()
	random := rand.New(rand.NewPCG(1, 1))
	type piece struct {
		b    []byte
		mark byte
	}
	var pieces []piece
	full := 0
	for i := range 3000 {
		if len(pieces) > 0 && random.IntN(5) < 2 {
			k := random.IntN(len(pieces))
			for _, at := range []int{0, len(pieces[k].b) / 2, len(pieces[k].b) - 1} {
				require.Equal(t, pieces[k].mark, pieces[k].b[at])
			}
			s.Give(pieces[k].b)
			pieces[k] = pieces[len(pieces)-1]
			pieces = pieces[:len(pieces)-1]
			require.False(t, s.Full())
			continue
		}
		n := 1 + random.IntN(1<<(10+random.IntN(11)))
		b := s.Take(n)
		if b == nil {
			full++
			require.True(t, s.Full())
			continue
		}
		require.GreaterOrEqual(t, len(b), n)
		p := piece{b, byte(i)}
		for _, at := range []int{0, len(b) / 2, len(b) - 1} {
			b[at] = p.mark
		}
		pieces = append(pieces, p)
		require.LessOrEqual(t, s.Used(), int64(16<<20))
	}
	require.Positive(t, full, "the bound must have been reached")
	for _, p := range pieces {
		s.Give(p.b)
	}
	require.Zero(t, s.Used())
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(int(s.file.Fd()), &st))
	require.Zero(t, st.Blocks, "the disk has all of it back")
}

// It is full only as long as there is something to give back, and what was given back can be
// taken in other lengths.
func TestFullOnlyOfWhatCanComeBack(t *testing.T) {
	const bound = 4 << 20
	for name, use := range map[string]func(s *Spill){
		"one that is longer than the bound": func(s *Spill) { require.Nil(t, s.Take(bound+1)) },
		"all lengths, each up to the bound": func(s *Spill) {
			for n := 1 << smallest; n <= bound; n *= 2 {
				var all [][]byte
				for range bound / n {
					b := s.Take(n)
					require.NotNil(t, b, "%d bytes", n)
					all = append(all, b)
				}
				require.Nil(t, s.Take(n))
				require.True(t, s.Full())
				for _, b := range all {
					s.Give(b)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(t.TempDir(), bound, func(err error) { t.Error(err) })
			defer s.Close()
			use(s)
			require.False(t, s.Full(), "there is nothing to give back")
			require.NotNil(t, s.Take(bound))
			require.Nil(t, s.Take(2*bound))
			require.True(t, s.Full())
		})
	}
}

func TestNothingFromABoundOfNothing(t *testing.T) {
	s := New(t.TempDir(), 0, func(err error) { t.Error(err) })
	defer s.Close()
	require.True(t, s.Full())
	require.Nil(t, s.Take(1))
	require.True(t, s.Full())
}

func TestNoDirectory(t *testing.T) {
	var said []error
	s := New("/does/not/exist", 1<<20, func(err error) { said = append(said, err) })
	defer s.Close()
	require.Nil(t, s.Take(1))
	require.Nil(t, s.Take(1))
	require.False(t, s.Full(), "who waited for room would wait for ever")
	require.Len(t, said, 1)
	require.ErrorContains(t, said[0], "/does/not/exist")
}
