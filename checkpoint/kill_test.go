//go:build linux

package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stateOf is a snapshot that tells by itself whether it is whole: its number
// determines all of it.
func stateOf(number uint64) [][]byte {
	rng := rand.New(rand.NewPCG(number, 1))
	parts := [][]byte{binary.LittleEndian.AppendUint64(nil, number)}
	for p := range rng.IntN(4) {
		part := make([]byte, rng.IntN(1<<rng.IntN(19)+1)*8)
		if len(part) > 0 {
			binary.LittleEndian.PutUint64(part, number<<8|uint64(p))
			for n := 8; n < len(part); n *= 2 {
				copy(part[n:], part[:n])
			}
		}
		parts = append(parts, part)
	}
	return parts
}

func checkState(snap Snapshot) error {
	want := stateOf(snap.Number)
	if len(snap.Parts) != len(want) {
		return fmt.Errorf("snapshot %d has %d parts, want %d", snap.Number, len(snap.Parts), len(want))
	}
	for p := range want {
		if string(snap.Parts[p]) != string(want[p]) {
			return fmt.Errorf("part %d of snapshot %d is not what was saved", p, snap.Number)
		}
	}
	return nil
}

func determinantOf(i uint64) Determinant {
	return Determinant{Kind: uint8(i), Source: -int32(i), Count: uint32(i * 3), Seq: i << 20, Value: i * i}
}

const childDir = "MPIV_CHECKPOINT_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Fprintln(os.Stderr, saveUntilKilled(dir))
		os.Exit(1)
	}
	if dir := os.Getenv(writtenDir); dir != "" {
		fmt.Fprintln(os.Stderr, saveWrittenUntilKilled(dir))
		os.Exit(1)
	}
	if dir := os.Getenv(smallDir); dir != "" {
		if err := fillSmall(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// saveUntilKilled goes on where the one before ended, and tells what is safe:
// numbers of the latest snapshot and determinants, 8 bytes each.
func saveUntilKilled(dir string) error {
	a, err := Open(filepath.Join(dir, "area"))
	if err != nil {
		return err
	}
	d, err := OpenDeterminants(filepath.Join(dir, "determinants"))
	if err != nil {
		return err
	}
	snap, err := a.Latest()
	if err != nil && !errors.Is(err, ErrNone) {
		return err
	}
	said := make([]byte, 16)
	for n := snap.Number + 1; ; n++ {
		if err := save(a, n, stateOf(n)...); err != nil {
			return err
		}
		for range n % 6000 {
			if err := d.Append(determinantOf(d.Len())); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint64(said, n)
		binary.LittleEndian.PutUint64(said[8:], d.Len())
		if _, err := os.Stdout.Write(said); err != nil {
			return err
		}
		if err := d.Truncate(d.Len() - min(d.Len(), n%5000)); err != nil {
			return err
		}
	}
}

func TestWhatIsSafeOutlivesKill(t *testing.T) {
	kills := 200
	if testing.Short() {
		kills = 20
	}
	dir := directory(t)
	a, err := Create(filepath.Join(dir, "area"))
	require.NoError(t, err)
	d, err := CreateDeterminants(filepath.Join(dir, "determinants"))
	require.NoError(t, err)
	a.Close()
	d.Close()

	began, torn, last, records := time.Now(), 0, uint64(0), uint64(0)
	var said [16]byte // what was said last, in whichever life
	for k := range kills {
		killedAtSomeTime(t, childDir+"="+dir, 6*time.Millisecond, said[:])
		last, records = binary.LittleEndian.Uint64(said[:]), binary.LittleEndian.Uint64(said[8:])

		a := openArea(t, filepath.Join(dir, "area"))
		snap, err := a.Latest()
		require.NoError(t, err)
		require.GreaterOrEqual(t, snap.Number, last, "kill %d: what was said to be safe is gone", k)
		require.NoError(t, checkState(snap))
		for i := range a.slots {
			torn += int(a.slots[i].turn(a.header) % 2)
		}
		a.Close()

		d, err := OpenDeterminants(filepath.Join(dir, "determinants"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, d.Len(), records, "kill %d: determinants are gone", k)
		next := d.First()
		for i, rec := range d.From(0) {
			require.Equal(t, next, i)
			if rec != determinantOf(i) {
				t.Fatalf("determinant %d = %v, want %v", i, rec, determinantOf(i))
			}
			next++
		}
		require.Equal(t, d.Len(), next)
		require.NoError(t, d.Err())
		d.Close()
	}
	t.Logf("%d kills in %v, %d of them within a Save; %d snapshots, %d determinants", kills, time.Since(began), torn, last, records)
	if testing.Short() {
		return // too few kills to tell
	}
	require.Positive(t, torn, "no Save was interrupted: the test shows nothing")
}

// killedAtSomeTime has this program run with env, kills it within a time after it has said
// something, and leaves in said what it has said last: pieces of that length. If it has said
// nothing the test fails.
func killedAtSomeTime(t *testing.T, env string, within time.Duration, said []byte) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), env)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	var killer *time.Timer
	next := make([]byte, len(said))
	for {
		if _, err := io.ReadFull(out, next); err != nil {
			break
		}
		copy(said, next)
		if killer == nil {
			killer = time.AfterFunc(rand.N(within), func() { cmd.Process.Kill() })
		}
	}
	err = cmd.Wait()
	require.NotNil(t, killer, "it ended by itself: %v", err)
	killer.Stop()
	require.Equal(t, "signal: killed", cmd.ProcessState.String())
}
