//go:build !race

package release

// Stores of amd64 become visible in program order, so a plain one releases. It
// is in assembly so that the compiler moves nothing across it.

// Store32 stores v in p.
//
//go:noescape
func Store32(p *uint32, v uint32)

// Store64 stores v in p.
//
//go:noescape
func Store64(p *uint64, v uint64)

// Pause tells the processor that the caller spins.
func Pause()
