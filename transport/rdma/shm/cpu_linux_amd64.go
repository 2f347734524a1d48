package shm

import (
	"unsafe"

	"golang.org/x/sys/cpu"

	"github.com/mpiv/mpiv/internal/race"
)

// copiesLines says that copyLines takes lines without fetching what was in them. The race detector
// would not see it read a body that is being changed.
var copiesLines = cpu.X86.HasERMS && !race.Enabled

// copyLines copies from to the beginning of to, which begins with a cache line and must not be shorter. The
// processor knows that whole lines are written, so it need not wait for what another core had in them.
func copyLines(to, from []byte) {
	copyString(unsafe.SliceData(to[:len(from)]), unsafe.SliceData(from), len(from))
}

//go:noescape
func copyString(to, from *byte, n int)

// prefetchWrite makes this core fetch b, to write to it soon.
func prefetchWrite(b []byte) { prefetchLines(unsafe.SliceData(b), len(b)) }

//go:noescape
func prefetchLines(p *byte, n int)

// prefetchRead makes this core fetch the line of p, to read it soon.
//
//go:noescape
func prefetchRead(p *uint64)

// prefetchBody makes this core fetch b, to read it soon. It must not be empty.
func prefetchBody(b []byte) { prefetchReadLines(unsafe.SliceData(b), len(b)) }

//go:noescape
func prefetchReadLines(p *byte, n int)
