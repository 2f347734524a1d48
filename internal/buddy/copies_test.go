package buddy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// A snapshot may be brought twice: its answer was lost, or a pair of hosts was parted and is
// one again before there is another.
func TestASnapshotThatIsBroughtTwiceIsKept(t *testing.T) {
	area := func() *checkpoint.Area {
		a, err := checkpoint.Create(filepath.Join(t.TempDir(), "area"))
		require.NoError(t, err)
		t.Cleanup(func() { a.Close() })
		return a
	}
	copies := area()
	s := &shelf{area: copies, replica: checkpoint.NewReplica(copies)}
	bring := func(from *checkpoint.Area) error {
		d, err := from.Delta(nil, pieceLen)
		require.NoError(t, err)
		if err := s.begin(beginning{Number: d.Number, Lengths: d.Lengths}); err != nil {
			return err
		}
		for chunk, err := range d.Chunks() {
			require.NoError(t, err)
			require.NoError(t, s.put(piece{Part: chunk.Part, Off: chunk.Off, Bytes: len(chunk.Data)}, chunk.Data))
		}
		return s.commit(d.Number, d.Sums.Sum())
	}
	one, other := area(), area()
	require.NoError(t, errors.Join(one.Begin(24), one.End([]byte("what it was"))))
	require.NoError(t, bring(one))
	require.NoError(t, bring(one))
	require.NoError(t, errors.Join(other.Begin(24), other.End([]byte("another"))))
	require.ErrorIs(t, bring(other), checkpoint.ErrDiffers)
	require.NoError(t, errors.Join(one.Begin(25), one.End([]byte("what it is"))))
	require.NoError(t, bring(one))
	require.NoError(t, errors.Join(other.Begin(26), other.End([]byte("newer"))))
	require.NoError(t, bring(other))
	snap, err := copies.Latest()
	require.NoError(t, err)
	require.Equal(t, "newer", string(snap.Parts[0]))
}

// A copy that is ordered to an agent which does not answer holds up no other.
func TestACopyToASilentAgent(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	two := neighbours(t, 2)
	file := func(rank int) string {
		name := filepath.Join(two[0].dir, fmt.Sprintf("rank-%d.1", rank))
		a, err := checkpoint.Create(name)
		require.NoError(t, err)
		defer a.Close()
		require.NoError(t, errors.Join(a.Begin(1), a.End([]byte("state"))))
		return name
	}
	two[0].copy(control.Copy{Rank: 0, Epoch: 1, File: file(0), To: control.Buddy{Agent: 7, Addrs: []string{silent.Addr().String()}}})
	two[0].meet(two[1].asBuddy())
	two[0].Saved(control.Saved{Rank: 1, Epoch: 1, Number: 1, File: file(1)})
	for {
		select {
		case m := <-two[1].told:
			if m.Holds != nil {
				require.Equal(t, 1, m.Holds.Rank)
				return
			}
		case m := <-two[0].told:
			require.Nil(t, m.Uncopied, "it was waited for until it was given up")
		case <-time.After(20 * time.Second):
			t.Fatal("nothing was copied")
		}
	}
}

// A copy that is ordered while it is on its way already is sent once: two at a time would start each
// other anew.
func TestACopyThatIsOnItsWayIsNotSentTwice(t *testing.T) {
	two := neighbours(t, 2)
	const size, rate = 16 << 20, 16 << 20
	file := filepath.Join(two[0].dir, "rank-0.1")
	a, err := checkpoint.Create(file)
	require.NoError(t, err)
	defer a.Close()
	require.NoError(t, errors.Join(a.Begin(1), a.End(make([]byte, size))))

	link, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer link.Close()
	var passed atomic.Int64
	go func() {
		for {
			near, err := link.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", two[1].asBuddy().Addrs[0])
			if err != nil {
				near.Close()
				return
			}
			go func() { defer near.Close(); io.Copy(near, far) }()
			go func() {
				defer far.Close()
				for {
					n, err := io.CopyN(far, near, rate/100)
					passed.Add(n)
					if err != nil {
						return
					}
					time.Sleep(10 * time.Millisecond)
				}
			}()
		}
	}()
	to := control.Buddy{Agent: 1, Addrs: []string{link.Addr().String()}}
	two[0].meet(to)
	two[0].Saved(control.Saved{Rank: 0, Epoch: 1, Number: 1, File: file})
	require.Eventually(t, func() bool { return passed.Load() > size*3/4 }, time.Minute, time.Millisecond)
	two[0].copy(control.Copy{Rank: 0, Epoch: 1, File: file, To: to})
	for {
		select {
		case m := <-two[1].told:
			if m.Holds != nil {
				time.Sleep(200 * time.Millisecond)
				require.Less(t, passed.Load(), int64(size*5/4))
				return
			}
		case m := <-two[0].told:
			require.Nil(t, m.Uncopied)
		case <-time.After(time.Minute):
			t.Fatal("nothing was copied")
		}
	}
}

// Where a copy is on its way to an agent that has fallen silent, those for that agent wait for it; but not
// when there is another buddy: all would be without copies meanwhile.
func TestCopiesGoToAnotherBuddyAtOnce(t *testing.T) {
	two := neighbours(t, 2)
	file := filepath.Join(two[0].dir, "rank-0.1")
	a, err := checkpoint.Create(file)
	require.NoError(t, err)
	defer a.Close()
	require.NoError(t, errors.Join(a.Begin(1), a.End(make([]byte, 1000))))

	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer silent.Close()
	met := make(chan net.Conn, 10)
	go func() {
		for {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			met <- c
		}
	}()
	to := control.Buddy{Agent: 7, Addrs: []string{silent.Addr().String()}}
	two[0].copy(control.Copy{Rank: 0, Epoch: 1, File: file, To: to})
	defer (<-met).Close()
	two[0].meet(to)
	two[0].Saved(control.Saved{Rank: 0, Epoch: 1, Number: 1, File: file})
	time.Sleep(50 * time.Millisecond) // it waits
	began := time.Now()
	two[0].meet(two[1].asBuddy())
	for m := range two[1].told {
		if m.Holds != nil {
			break
		}
	}
	require.Less(t, time.Since(began), meetTime/2)
}
