// Package yield has a goroutine take a new time slice. Go's monitor takes the core from a goroutine that has run for
// 10 ms: it sends its thread a signal, and wakes another one, which wants a core of those on which ranks poll. Who
// takes a new slice before that is left alone.
package yield

import _ "unsafe" // for go:linkname

// Yield lets the other goroutines of this P run, and goes on. Unlike runtime.Gosched it wakes no thread to look
// for work. It is what sync.Mutex hands over with; the runtime keeps it for those who link to it (go.dev/issue/67401).
//
//go:linkname Yield runtime.goyield
func Yield()
