package agent

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// A spool is what the job has written and no user has seen, where who shows it to the
// user may come and go. While somebody shows it, who writes waits for him, and for a moment
// after he went, as he may look for the next head; while nobody does, it is kept, and the
// oldest goes when the spool is full.
type spool struct {
	mu      sync.Mutex // guards what follows
	room    sync.Cond  // something has changed
	texts   []control.Text
	bytes   int
	sent    int // of texts: they are on their way to who shows them
	gone    int // texts that are no more
	shows   *front
	until   time.Time   // when nobody need be waited for who shows them
	wake    *time.Timer // at that time
	dropped int64       // bytes that went
	ended   bool        // no more comes
	closed  bool        // nobody waits any more
}

// spoolBytes is how much a spool holds.
const spoolBytes = 16 << 20

func newSpool() *spool {
	s := new(spool)
	s.room.L = &s.mu
	s.until = time.Now().Add(frontTime) // which has passed when it is woken: nothing would wake it again
	s.wake = time.AfterFunc(frontTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.room.Broadcast()
	})
	return s
}

// expect has who writes wait for a moment for somebody who shows it.
func (s *spool) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expectLocked()
}

func (s *spool) expectLocked() {
	s.until = time.Now().Add(frontTime)
	s.wake.Reset(frontTime)
}

// errNotKept says that a text is neither shown nor kept: the next head is to have it.
var errNotKept = errors.New("another head shows the output")

// add keeps t, whose data it copies. While somebody shows what there is, or may in a moment, it
// waits until he has shown t: who is told that it was taken forgets it, so it must not be on its way alone.
func (s *spool) add(t control.Text) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errNotKept
	}
	t.Data = append([]byte(nil), t.Data...)
	s.texts = append(s.texts, t)
	s.bytes += len(t.Data)
	own := s.gone + len(s.texts)
	for s.bytes > spoolBytes && s.shows == nil && len(s.texts) > 1 {
		s.bytes -= len(s.texts[0].Data)
		s.dropped += int64(len(s.texts[0].Data))
		s.texts = s.texts[1:]
		s.gone++
	}
	s.room.Broadcast()
	for (s.shows != nil || time.Now().Before(s.until)) && !s.closed && s.gone < own {
		s.room.Wait()
	}
	if s.gone < own && s.closed {
		return errNotKept
	}
	return nil
}

// next waits for what f is to show next; false: it shows no more, or all is shown and the
// job has ended.
func (s *spool) next(f *front) (t control.Text, dropped int64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.shows == f && !s.closed && s.sent == len(s.texts) && !(s.ended && len(s.texts) == 0) {
		s.room.Wait()
	}
	if s.shows != f || s.closed || s.sent == len(s.texts) {
		return t, 0, false
	}
	t, dropped = s.texts[s.sent], s.dropped
	s.dropped = 0
	s.sent++
	return t, dropped, true
}

// shown is told that f has shown n texts.
func (s *spool) shown(f *front, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shows != f {
		return
	}
	for ; n > 0 && s.sent > 0; n-- {
		s.bytes -= len(s.texts[0].Data)
		s.texts[0] = control.Text{}
		s.texts = s.texts[1:]
		s.sent--
		s.gone++
	}
	s.room.Broadcast()
}

// show has f show what there is, in place of who did; nil: nobody does, unless it is not
// old who did.
func (s *spool) show(f, old *front) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f == nil && s.shows != old {
		return
	}
	if s.shows != nil {
		s.shows.end()
	}
	s.shows, s.sent = f, 0
	if f == nil {
		s.expectLocked()
	}
	s.room.Broadcast()
}

// lostText says that so many bytes were not kept.
func lostText(bytes int64) control.Text {
	return control.Text{Stderr: true, Data: fmt.Appendf(nil, "mpivrun: %d bytes of output are lost: nobody looked\n", bytes)}
}

// finish is told that no more comes. It returns what nobody has shown, when that is
// nobody's to show any more.
func (s *spool) finish() []control.Text {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.room.Broadcast()
	for s.shows != nil && len(s.texts) > 0 {
		s.room.Wait()
	}
	if s.dropped > 0 {
		return append([]control.Text{lostText(s.dropped)}, s.texts...)
	}
	return s.texts
}

// close ends all that wait.
func (s *spool) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.wake.Stop()
	if s.shows != nil {
		s.shows.end()
		s.shows = nil
	}
	s.room.Broadcast()
}

// spooled is an output as the agent's own writer.
type spooled struct {
	spool  *spool
	stderr bool
}

func (w spooled) Write(p []byte) (int, error) {
	return len(p), w.spool.add(control.Text{Stderr: w.stderr, Data: p})
}

// An outlet is the output of a process.
type outlet struct {
	spooled
	process int
	of      *stream
}

// Write is called with the stream's screen held.
func (w outlet) Write(p []byte) (int, error) {
	return len(p), w.spool.add(control.Text{Stderr: w.stderr, Process: w.process, End: w.of.end, Data: p})
}

var _ io.Writer = outlet{}
