package agent

import (
	"crypto/tls"
	"net"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/patient"
)

// Who has written something is told that it was taken when it was shown, or is kept for a user who
// is not there; not when this head ends before.
func TestSpoolTakesWhatIsShownOrKept(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(s *spool, f *front)
		want error
	}{
		"shown": {func(s *spool, f *front) {
			s.next(f)
			s.shown(f, 1)
		}, nil},
		"its user leaves": {func(s *spool, f *front) {
			s.next(f)
			s.leave(f)
		}, nil},
		"its user leaves, as the head ends": {func(s *spool, f *front) {
			s.next(f)
			s.leave(f)
			time.Sleep(frontTime / 2)
			s.close()
		}, errNotKept},
		"its user comes back": {func(s *spool, f *front) {
			s.next(f)
			s.leave(f)
			time.Sleep(frontTime / 2)
			f = someFront()
			s.join(f)
			time.Sleep(frontTime)
			s.next(f)
			s.shown(f, 1)
		}, nil},
		"the head ends while it is on its way": {func(s *spool, f *front) {
			s.next(f)
			s.close()
		}, errNotKept},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, f := newSpool(), someFront()
				s.join(f)
				took := make(chan error, 1)
				go func() { took <- s.add(control.Text{Data: []byte("text")}) }()
				synctest.Wait()
				require.Empty(t, took, "nobody has shown it")
				tt.then(s, f)
				require.Equal(t, tt.want, <-took)
				s.close()
			})
		})
	}
}

func TestSpoolOfAHeadThatHasEndedTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool()
		require.NoError(t, s.add(control.Text{Data: []byte("kept")}), "nobody has shown it for a moment")
		s.close()
		require.Equal(t, errNotKept, s.add(control.Text{Data: []byte("late")}))
	})
}

// What one has shown stays until all have who show it.
func TestSpoolForSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool()
		f, g := someFront(), someFront()
		f.viewer, g.viewer = "f", "g"
		s.join(f)
		took := make(chan error, 2)
		write := func(text string) { go func() { took <- s.add(control.Text{Data: []byte(text)}) }(); synctest.Wait() }
		next := func(f *front) string {
			text, _, ok := s.next(f)
			require.True(t, ok)
			return string(text.Data)
		}
		write("1")
		require.Equal(t, "1", next(f))
		s.join(g)
		s.shown(f, 1)
		synctest.Wait()
		require.Empty(t, took, "one has not shown it")
		write("2")
		require.Equal(t, "1", next(g))
		require.Equal(t, "2", next(g))
		s.shown(g, 2)
		require.NoError(t, <-took)
		synctest.Wait()
		require.Empty(t, took, "the other has not shown it")
		again := someFront()
		again.viewer = "f"
		s.join(again)
		require.Equal(t, "2", next(again), "a viewer that comes again goes on with what it had not shown")
		_, _, ok := s.next(f)
		require.False(t, ok, "and has one connection")
		s.leave(again)
		require.NoError(t, <-took, "nobody waits for one that goes")
		s.close()
	})
}

// A viewer that comes back in a moment is shown what others have shown meanwhile: after its connection has broken, and
// where another head leads, which does not know it.
func TestSpoolForOneThatComesBack(t *testing.T) {
	for _, anew := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpool()
			time.Sleep(2 * frontTime)
			f, g := someFront(), someFront()
			f.viewer, g.viewer = "f", "g"
			show := func(f *front, text string) {
				t.Helper()
				next, _, ok := s.next(f)
				require.True(t, ok)
				require.Equal(t, text, string(next.Data))
				s.shown(f, 1)
			}
			write := func(text string) { go s.add(control.Text{Data: []byte(text)}); synctest.Wait() }
			s.join(g)
			if anew {
				s.expect()
			} else {
				s.join(f)
				write("0")
				show(f, "0")
				show(g, "0")
				s.leave(f)
			}
			write("1")
			show(g, "1")
			write("2")
			show(g, "2")
			time.Sleep(frontTime / 2)
			again := someFront()
			again.viewer = "f"
			s.join(again)
			time.Sleep(frontTime)
			write("3")
			show(g, "3")
			for _, text := range []string{"1", "2", "3"} {
				show(again, text)
			}
			require.Empty(t, s.older)
			late := someFront()
			late.viewer = "late"
			s.join(late)
			write("4")
			show(late, "4")
			s.close()
		})
	}
}

// A viewer that comes again when what others have shown meanwhile is no more is told so: to this head, or to the next. One that
// has missed nothing, or has come for the first time, is not.
func TestSpoolForOneThatHasMissedSome(t *testing.T) {
	for name, tt := range map[string]struct{ before, meanwhile, again, want bool }{
		"others have shown some":              {true, true, true, true},
		"nothing came":                        {true, false, true, false},
		"others have, since this head leads":  {false, true, true, true},
		"nothing came, since this head leads": {false, false, true, false},
		"it was not here":                     {false, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpool()
				s.expect()
				time.Sleep(2 * frontTime)
				f, g := someFront(), someFront()
				f.viewer, g.viewer = "f", "g"
				show := func(fs ...*front) {
					go s.add(control.Text{Data: []byte("text")})
					synctest.Wait()
					for _, f := range fs {
						s.next(f)
						s.shown(f, 1)
					}
				}
				require.False(t, s.join(g))
				if tt.before {
					require.False(t, s.join(f))
					show(f, g)
					s.leave(f)
				}
				if tt.meanwhile {
					show(g)
				}
				time.Sleep(2 * frontTime)
				f = someFront()
				f.viewer, f.again = "f", tt.again
				require.Equal(t, tt.want, s.join(f))
				s.close()
			})
		})
	}
}

// Of viewers that come and go, and never again, the last are known.
func TestSpoolForgetsViewers(t *testing.T) {
	s := newSpool()
	defer s.close()
	for i := range 3 * partedMost {
		f := someFront()
		f.viewer = strconv.Itoa(i)
		s.join(f)
		s.leave(f)
	}
	require.Len(t, s.parted, partedMost)
	require.Contains(t, s.parted, strconv.Itoa(3*partedMost-1))
}

// Where more was written than is kept before it came back, it is shown nothing twice.
func TestSpoolForOneThatComesBackTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool()
		time.Sleep(2 * frontTime)
		f, g := someFront(), someFront()
		f.viewer, g.viewer = "f", "g"
		s.join(f)
		s.join(g)
		s.leave(g) // what f shows now is kept for it
		for i := range 2 {
			go s.add(control.Text{Data: []byte{byte(i)}})
			synctest.Wait()
			_, _, ok := s.next(f)
			require.True(t, ok)
			s.shown(f, 1)
		}
		s.leave(f)
		for i := range 3 {
			data := make([]byte, spoolBytes/2)
			data[0] = byte(2 + i)
			go s.add(control.Text{Data: data})
			synctest.Wait()
		}
		again := someFront()
		again.viewer = "f"
		s.join(again)
		for want := 3; want < 5; want++ { // text 2 was too much
			next, _, ok := s.next(again)
			require.True(t, ok)
			require.EqualValues(t, want, next.Data[0])
			s.shown(again, 1)
		}
		s.close()
		synctest.Wait()
	})
}

// What nobody was there to see, and was too much to keep, is told with the rest.
func TestSpoolSaysWhatIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpool()
		piece := make([]byte, 1<<20)
		for range spoolBytes/len(piece) + 2 {
			require.NoError(t, s.add(control.Text{Data: piece}))
		}
		rest := s.finish()
		require.Equal(t, "mpivrun: 2097152 bytes of output are lost: nobody looked\n", string(rest[0].Data))
		require.Len(t, rest, 1+spoolBytes/len(piece))
		s.close()
	})
}

func someFront() *front {
	c, _ := net.Pipe()
	return &front{conn: &patient.Conn{Conn: tls.Client(c, nil)}, over: make(chan struct{})}
}
