//go:build linux

package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const writtenDir = "MPIV_CHECKPOINT_TEST_WRITTEN"

// A steady state is the same in snapshot n of whichever process.
type steady struct {
	number uint64
	mem    []byte
}

// next writes to some of the state, and tells where.
func (s *steady) next() (written []Range) {
	s.number++
	rng := rand.New(rand.NewPCG(s.number, 7))
	for range rng.IntN(8) {
		at := rng.IntN(len(s.mem))
		end := min(len(s.mem), at+rng.IntN(1<<rng.IntN(20)+1))
		for k := at; k < end; k += 8 {
			s.mem[k] = byte(rng.Uint32())
		}
		written = append(written, Range{at, end})
	}
	return written
}

func (s *steady) log() []byte {
	return bytes.Repeat(binary.LittleEndian.AppendUint64(nil, s.number), int(s.number%1000))
}

// saveWrittenUntilKilled goes on where the one before ended, and tells the number of what is
// safe.
func saveWrittenUntilKilled(dir string) error {
	a, err := Open(filepath.Join(dir, "area"))
	if err != nil {
		return err
	}
	s := steady{mem: make([]byte, 3*large+1000)}
	switch snap, err := a.Latest(); {
	case err == nil:
		s.number = snap.Number
		copy(s.mem, snap.Parts[0])
	case !errors.Is(err, ErrNone):
		return err
	}
	for known := false; ; known = true {
		p := Part{Known: known, Written: s.next(), Bytes: s.mem}
		if s.number%5 == 0 {
			p.Known = false // it is compared
		}
		if err := a.Begin(s.number, p); err != nil {
			return err
		}
		if s.number%7 == 0 { // and does not end
			continue
		}
		if err := a.End(s.log()); err != nil {
			return err
		}
		if _, err := os.Stdout.Write(binary.LittleEndian.AppendUint64(nil, s.number)); err != nil {
			return err
		}
	}
}

func TestWhatWasWrittenOutlivesKill(t *testing.T) {
	kills := 100
	if testing.Short() {
		kills = 10
	}
	dir := directory(t)
	agent, err := Create(filepath.Join(dir, "area"))
	require.NoError(t, err)
	defer agent.Close()
	other, _ := newArea(t)
	replica := NewReplica(other)

	want := steady{mem: make([]byte, 3*large+1000)}
	torn, carried := 0, int64(0)
	var sums *Sums
	for k := range kills {
		var said [8]byte
		killedAtSomeTime(t, writtenDir+"="+dir, 10*time.Millisecond, said[:])
		last := binary.LittleEndian.Uint64(said[:])
		snap, err := agent.Latest()
		require.NoError(t, err)
		require.GreaterOrEqual(t, snap.Number, last, "kill %d: what was said to be safe is gone", k)
		for want.number < snap.Number {
			want.next()
		}
		require.True(t, bytes.Equal(want.mem, snap.Parts[0]) && bytes.Equal(want.log(), snap.Parts[1]), "kill %d: snapshot %d", k, snap.Number)
		for i := range agent.slots {
			torn += int(agent.slots[i].turn(agent.header) % 2)
		}
		if sums != nil && sums.Number == snap.Number {
			continue
		}
		var n int64
		sums, n = carry(t, agent, replica, sums, 0)
		carried += n
		requireLatest(t, other, snap.Number, string(want.mem), string(want.log()))
	}
	t.Logf("%d kills, after %d of them a slot was torn; %d snapshots, %d bytes carried", kills, torn, want.number, carried)
	require.Positive(t, torn, "no snapshot was interrupted: the test shows nothing")
}
