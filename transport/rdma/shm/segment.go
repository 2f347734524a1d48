//go:build linux

package shm

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// The geometry of a segment, the same in all processes of a job.
const (
	maxBody    = 64 << 10
	wholeLen   = 4 << 10 // the longest body that never grows,
	pieceLen   = 1 << 10 // and by how much others do
	inlineLen  = 80      // bytes of body in a slot
	slotLen    = 128
	cellLen    = 1 << 10 // and beside it, in the eager lane
	eagerSlots = 256
	eagerBytes = 512 << 10
	bulkSlots  = 64
	bulkBytes  = 1 << 20
	pageLen    = 4 << 10

	maxTransfers = 4   // reads that are shared at a time
	maxRegions   = 256 // registered at a time
)

// A slot is one message, or the beginning of one. It is a pair of cache lines,
// which processors fetch together; the shortest messages need one of them.
type slot struct {
	word   uint64 // lap<<32 | length of the body; last to be written. See lane.go
	header [transport.HeaderLen]byte
	inline [inlineLen]byte
}

const _ = -(unsafe.Sizeof(slot{}) ^ slotLen)

// rest is the slot but for its word, for a body whose header is left out.
func (s *slot) rest() *[countedLen]byte { return (*[countedLen]byte)(unsafe.Pointer(&s.header)) }

// grown is how much is there of a body that grows. It has the slot's second line: the
// receiver reads it while the sender writes, and the first has no more to say.
func (s *slot) grown() *uint64 { return (*uint64)(unsafe.Pointer(&s.inline[firstLine])) }

// A cell belongs to a slot and holds bodies that do not fit there. Two cells of
// consecutive messages are never neighbours. See lane.cell.
type cell [cellLen]byte

// A word shared by two processes. Pairs of cache lines travel together, so it
// has two to itself.
type word struct {
	atomic.Uint64
	_ [120]byte
}

// A direction is the half of a segment in which messages, and the bodies that
// reads fetch, go one way. "Sender" and "receiver" are with respect to it.
type direction struct {
	eagerData [eagerBytes]byte
	bulkData  [bulkBytes]byte
	cells     [eagerSlots]cell
	eager     [eagerSlots]slot
	bulk      [bulkSlots]slot
	grants    [maxRegions]grant // sender, but for the counts in them

	sleeping  word    // receiver: awake, asleep or drowsy; the sender makes drowsy of asleep
	heads     [2]word // receiver: slots it has freed, by lane
	wanted    word    // sender: bits of the lanes in which it waits for room
	active    word    // receiver: bits of the transfers that are open
	transfers [maxTransfers]transfer

	_ [2432]byte
}

const _ = -(unsafe.Sizeof(direction{}) % pageLen) // whole pages

// What sleeping says of a receiver. A barrier, with which one that is awake falls asleep,
// costs as much as many short messages: where there are few between two of them, who
// sends has the fence instead.
const (
	awake  = iota // it polls
	asleep        // it asks for the doorbell
	drowsy        // it may be asleep soon: who has sent fences before it looks
)

// directions of a segment: from who connected to who accepted, and back.
type directions [2]direction

const segmentBytes = int(unsafe.Sizeof(directions{}))

// A segment is a mapping. It is unmapped when nothing refers to it any more, not
// by Close: that would pull it from under a Send or Poll of another goroutine.
// Pages that were never touched cost nothing.
type segment struct{ dirs *directions }

// newSegment makes a segment and the file by which the peer maps it too.
func newSegment() (*segment, *os.File, error) {
	fd, err := unix.MemfdCreate("mpiv", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("create shared memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mpiv segment")
	if err := f.Truncate(int64(segmentBytes)); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("size shared memory: %w", err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		f.Close()
		return nil, nil, fmt.Errorf("seal shared memory: %w", err)
	}
	s, err := mapSegment(f)
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return s, f, nil
}

// populate has the kernel make the pages of b, from the beginning of one on, before anybody touches them, if it can.
func populate(b []byte) {
	if len(b) > 0 {
		_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
	}
}

func bytesOf(cells []cell) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(cells))), len(cells)*cellLen)
}

// A file that can shrink kills whoever touches what is no longer there.
const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

func mapSegment(f *os.File) (*segment, error) {
	if got, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0); err != nil || got&seals != seals {
		return nil, fmt.Errorf("the peer's shared memory is not sealed")
	}
	if st, err := f.Stat(); err != nil || st.Size() != int64(segmentBytes) {
		return nil, fmt.Errorf("the peer's shared memory is not of %d bytes", segmentBytes)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, segmentBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared memory: %w", segmentBytes, err)
	}
	s := &segment{dirs: (*directions)(unsafe.Pointer(unsafe.SliceData(mem)))}
	for i := range s.dirs {
		// Without the pages of the slots each of the first messages would have to
		// wait for one. Where the kernel cannot do this, they do.
		first := int(uintptr(unsafe.Pointer(&s.dirs[i].eager)) - uintptr(unsafe.Pointer(s.dirs)))
		end := (i + 1) * int(unsafe.Sizeof(direction{}))
		populate(mem[first&^(pageLen-1) : end])
	}
	runtime.AddCleanup(s, func(mem []byte) { unix.Munmap(mem) }, mem)
	return s, nil
}
