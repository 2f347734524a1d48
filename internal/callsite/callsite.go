// Package callsite finds the line of the program in a stack that begins in this
// library.
package callsite

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Here is the line of the program that called the library: "main.go:12"; "" if
// no function of the program is on the stack, as in goroutines of the library.
func Here() string {
	var pcs [32]uintptr
	return Of(pcs[:runtime.Callers(2, pcs[:])])
}

// Of is Here for the stack pcs, innermost first, which a 0 ends.
func Of(pcs []uintptr) string {
	if end := slices.Index(pcs, 0); end >= 0 {
		pcs = pcs[:end]
	}
	if len(pcs) == 0 {
		return ""
	}
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.File != "" && !Ours(f.Function, f.File) {
			return Line(f)
		}
		if !more {
			return ""
		}
	}
}

// Line is where f is: "main.go:12".
func Line(f runtime.Frame) string { return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line) }

// Ours tells whether a function is of this library or of what runs below it,
// and not of a program. Tests are programs.
func Ours(function, file string) bool {
	for _, p := range []string{"github.com/mpiv/mpiv/mpiv.", "github.com/mpiv/mpiv/internal/", "github.com/mpiv/mpiv/transport/"} {
		if strings.HasPrefix(function, p) {
			return !strings.HasSuffix(file, "_test.go")
		}
	}
	for _, p := range []string{"runtime.", "runtime/", "sync.", "internal/"} {
		if strings.HasPrefix(function, p) {
			return true
		}
	}
	return false
}
