package mpiv

import (
	"fmt"
	"hash/maphash"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// pendings is the buffers of a rank's requests under way, kept when
// Options.Check asks for it.
type pendings struct {
	mu  sync.Mutex // guards all
	all []*inUse
}

// An inUse is the buffer of a request under way.
type inUse struct {
	buf   []byte
	recv  bool
	sum   uint64 // of what is sent, when it started
	op    string
	where string // the line that started it
}

var checkSeed = maphash.MakeSeed()

// watch notes that a request has started on buf. The error names the request
// that uses some of buf already, in a way that both cannot.
func (p *pendings) watch(op string, buf []byte, recv bool) (*inUse, error) {
	n := &inUse{buf: buf, recv: recv, op: op, where: callerLine()}
	if !recv {
		n.sum = maphash.Bytes(checkSeed, buf)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.all {
		if (recv || o.recv) && overlap(o.buf, buf) {
			return nil, fmt.Errorf("%w: %s (%s) uses some of the buffer of %s (%s), which was not waited for", ErrOverlap, op, n.where, o.op, o.where)
		}
	}
	p.all = append(p.all, n)
	return n, nil
}

// done notes that the request was waited for. The error says that what it sent
// was changed before.
func (p *pendings) done(n *inUse) error {
	p.mu.Lock()
	if i := slices.Index(p.all, n); i >= 0 {
		p.all = slices.Delete(p.all, i, i+1)
	}
	p.mu.Unlock()
	if !n.recv && maphash.Bytes(checkSeed, n.buf) != n.sum {
		return fmt.Errorf("%w: what %s (%s) sends was changed before the wait at %s", ErrModified, n.op, n.where, callerLine())
	}
	return nil
}

// callerLine is the line of the program that called this package.
func callerLine() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !strings.HasPrefix(f.Function, "github.com/mpiv/mpiv/mpiv.") || strings.HasSuffix(f.File, "_test.go") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "?"
		}
	}
}
