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

// root is the directory of this module, as the compiler has written it: with a / at its end.
var root = func() string {
	_, here, _, _ := runtime.Caller(0)
	return strings.TrimSuffix(here, "internal/callsite/callsite.go")
}()

// Ours tells whether a function is of this library or of what runs below it,
// and not of a program. Tests are programs. A closure of a function of this library
// that the compiler has put into one of a program has a name of the program's: its file tells.
func Ours(function, file string) bool {
	in, below := strings.CutPrefix(file, root)
	called, named := strings.CutPrefix(function, "github.com/mpiv/mpiv/")
	if below && ofLibrary(in) || named && ofLibrary(called) {
		return !strings.HasSuffix(file, "_test.go")
	}
	for _, p := range []string{"runtime.", "runtime/", "sync.", "internal/"} {
		if strings.HasPrefix(function, p) {
			return true
		}
	}
	return false
}

// ofLibrary tells whether a file or a function is in one of the rooms of which the library is; it is named
// from the module on.
func ofLibrary(name string) bool {
	for _, room := range []string{"mpiv", "internal", "transport"} {
		if rest, in := strings.CutPrefix(name, room); in && (strings.HasPrefix(rest, "/") || strings.HasPrefix(rest, ".")) {
			return true
		}
	}
	return false
}
