package process

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// Gone is told that the program of a rank that has left has returned err. What it held is given
// back to the system, if no other rank is here. An err that is not ErrLeft counts for nothing, but is
// no good sign: the program may not know that it has no rank any more.
func (l *Life) Gone(err error) {
	if l.p == nil {
		return
	}
	if !errors.Is(err, ErrLeft) {
		returned, _, _ := strings.Cut(fmt.Sprint(err), "\n") // the rest may be a stack
		l.p.log.Error("a rank has moved, and its function returned something else than ErrMoved where it was: that is ignored", "rank", l.Rank, "returned", returned)
	}
	l.p.finished.Go(func() {
		if l.p.vacant() {
			debug.FreeOSMemory()
		}
		l.p.ready()
	})
}

// ready has a process without ranks hold ready what one that comes needs at once.
func (p *Process) ready() {
	p.readyChoices()
	p.readyMemory()
}

// readyChoices makes the file of the choices of a rank that comes.
func (p *Process) readyChoices() {
	if p.options.Survive != "crashes" || !p.vacant() {
		return
	}
	p.blank.mu.Lock()
	defer p.blank.mu.Unlock()
	if p.blank.b == nil {
		p.blank.b, _ = checkpoint.NewBlank(filepath.Join(p.dir, control.BlankFile(p.index))) // why not is said when a rank needs one
	}
}

// A blank is the file that a process without ranks has ready for the choices of one that comes.
type blank struct {
	mu sync.Mutex // guards what follows, also while it is made: who comes then would have to make one, too
	b  *checkpoint.Blank
}

// replace makes a list that begins with records, in place of the file that may be there.
func (f *blank) replace(file string, records []checkpoint.Determinant) (*checkpoint.Determinants, error) {
	if b := f.take(); b != nil {
		return b.Replace(file, records)
	}
	return checkpoint.ReplaceDeterminants(file, records)
}

func (f *blank) discard() {
	if b := f.take(); b != nil {
		b.Discard()
	}
}

func (f *blank) take() *checkpoint.Blank {
	f.mu.Lock()
	defer f.mu.Unlock()
	b := f.b
	f.b = nil
	return b
}

// readyMemory has a process without ranks hold ready what the job wants for one that comes.
func (p *Process) readyMemory() {
	n := p.options.Ready
	if n == 0 || !p.vacant() || p.options.Survive == "none" || p.options.Survive == "report" {
		return
	}
	if p.reserve.Fill(int(n), p.stopped) {
		p.log.Error("the host has too little memory: less than --spare-memory is ready for a rank that comes", "process", p.index)
	}
	if !p.vacant() { // one has come meanwhile
		p.reserve.Empty()
	}
}

// vacant tells whether no rank is here.
func (p *Process) vacant() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.living) == 0 && !p.over
}
