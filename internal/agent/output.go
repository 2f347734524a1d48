package agent

import (
	"bytes"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A screen is where the lines of several streams go, one after the other: a
// line that began is not interrupted unless it is so long, or so late, that its
// beginning was passed on alone; whoever comes then begins a line of its own.
type screen struct {
	mu   sync.Mutex // guards what follows, and writing
	open *stream    // whose line has begun and not ended
}

// A stream is the output of one process, or the agent's own.
type stream struct {
	screen  *screen
	w       io.Writer
	tag     string // begins each line; guarded by screen.mu, as w is where it is a file
	stamped bool   // the time begins each line; set once
	prompt  bool   // the beginning of a line is passed on when no more comes: it may be a question
	last    *tail  // keeps the last lines; nil: nobody needs them

	end int64 // of what is passed, in all that the process has written; 0: not known. Guarded by screen.mu

	left   atomic.Bool     // the process has ended
	broken atomic.Bool     // w takes no more
	lost   func(err error) // told why, unless nobody reads what w is given, or another head does; nil: nobody is

	scratch []byte // guarded by screen.mu
}

const (
	pieceBytes  = 64 << 10              // a line longer than this is passed on in pieces
	promptAfter = 50 * time.Millisecond // how long a question waits for the end of its line
	stampLayout = "2006-01-02T15:04:05.000000 "
)

// pass writes p. A last line without its end stays open.
func (s *stream) pass(p []byte) error { return s.passUpTo(p, 0) }

// passUpTo is pass of what ends there in the output of the process.
func (s *stream) passUpTo(p []byte, end int64) error {
	if len(p) == 0 {
		return nil
	}
	s.last.add(p)
	sc := s.screen
	sc.mu.Lock()
	defer sc.mu.Unlock()
	s.end = end
	if sc.open != nil && sc.open != s {
		sc.open.end = 0
		if _, err := sc.open.w.Write([]byte{'\n'}); err != nil {
			return err
		}
		sc.open = nil
	}
	within := sc.open == s
	if p[len(p)-1] == '\n' {
		sc.open = nil
	} else {
		sc.open = s
	}
	if s.tag == "" && !s.stamped {
		_, err := s.w.Write(p)
		return err
	}
	out := s.scratch[:0]
	stamp := ""
	if s.stamped {
		stamp = time.Now().Format(stampLayout)
	}
	for len(p) > 0 {
		n := bytes.IndexByte(p, '\n') + 1
		if n == 0 {
			n = len(p)
		}
		if !within {
			out = append(append(out, stamp...), s.tag...)
		}
		out = append(out, p[:n]...)
		p, within = p[n:], false
	}
	s.scratch = out
	_, err := s.w.Write(out)
	return err
}

// breaks notes that w takes no more.
func (s *stream) breaks(err error) {
	s.broken.Store(true)
	if s.lost != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, errNotKept) {
		s.lost(err)
	}
}

// Pump passes on what r gives until it ends, and closes r. When the output
// cannot be written the program learns of it as from any closed pipe.
func (s *stream) Pump(r *os.File) {
	defer r.Close()
	buf := make([]byte, 0, 2*pieceBytes)
	for {
		left := s.left.Load()
		if left || s.prompt {
			var until time.Time
			if left {
				until = time.Now().Add(drainTime)
			} else if len(buf) > 0 {
				until = time.Now().Add(promptAfter)
			}
			r.SetReadDeadline(until)
			if !left && s.left.Load() {
				continue // the deadline of Leave counts
			}
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		cut := bytes.LastIndexByte(buf[len(buf):len(buf)+n], '\n') + 1
		if cut > 0 {
			cut += len(buf)
		}
		buf = buf[:len(buf)+n]
		if err != nil || cut == 0 && len(buf) >= pieceBytes {
			cut = len(buf)
		}
		if err := s.pass(buf[:cut]); err != nil {
			s.breaks(err)
			return
		}
		buf = buf[:copy(buf, buf[cut:])]
		if err != nil && (left || !errors.Is(err, os.ErrDeadlineExceeded)) {
			return
		}
	}
}

// Leave tells the pump of r that the process has ended. What it wrote is still
// passed on; that others hold the pipe open is no reason to wait.
func (s *stream) Leave(r *os.File) {
	s.left.Store(true)
	r.SetReadDeadline(time.Now().Add(drainTime))
}

// A tail keeps the end of what was written to it. The nil tail keeps nothing.
type tail struct {
	mu  sync.Mutex // guards buf
	buf []byte
}

const (
	tailBytes     = 16 << 10
	tailLines     = 5
	tailLineBytes = 200
)

func (t *tail) add(p []byte) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(p) >= tailBytes {
		t.buf = append(t.buf[:0], p[len(p)-tailBytes:]...)
		return
	}
	if over := len(t.buf) + len(p) - 2*tailBytes; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[len(t.buf)-tailBytes:])]
	}
	t.buf = append(t.buf, p...)
}

// lines is the last few lines, or the first few of the panic among them.
func (t *tail) lines() []string {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []string
	from := -1
	for l := range bytes.Lines(t.buf) {
		l = bytes.TrimRight(l, "\r\n")
		if len(l) == 0 {
			continue
		}
		if bytes.HasPrefix(l, []byte("panic: ")) || bytes.HasPrefix(l, []byte("fatal error: ")) {
			from = len(all)
		}
		if len(l) > tailLineBytes {
			l = append(append([]byte(nil), l[:tailLineBytes]...), " …"...)
		}
		all = append(all, string(l))
	}
	if from < 0 {
		from = max(len(all)-tailLines, 0)
	}
	return all[from:min(from+tailLines, len(all))]
}

// A speaker says what the agent has to say, without making it wait for a
// screen that is held up. What is said is a few sentences for each process.
type speaker struct {
	out  *stream
	more chan struct{} // one element: there is something in said
	done chan struct{}

	mu     sync.Mutex // guards what follows
	said   []byte
	closed bool
}

func newSpeaker(out *stream) *speaker {
	s := &speaker{out: out, more: make(chan struct{}, 1), done: make(chan struct{})}
	go s.run()
	return s
}

// say prints text, which may be several lines.
func (s *speaker) say(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.said = append(s.said, "mpivrun: "+text+"\n"...)
	s.wakeLocked()
}

func (s *speaker) wakeLocked() {
	select {
	case s.more <- struct{}{}:
	default:
	}
}

func (s *speaker) run() {
	defer close(s.done)
	for range s.more {
		s.mu.Lock()
		said, closed := s.said, s.closed
		s.said = nil
		s.mu.Unlock()
		s.out.pass(said)
		if closed {
			return
		}
	}
}

// close waits until all is said.
func (s *speaker) close() {
	s.mu.Lock()
	s.closed = true
	s.wakeLocked()
	s.mu.Unlock()
	<-s.done
}
