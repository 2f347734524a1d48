package agent

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/control"
)

// A spool is what the job has written and no user has seen, where who shows it to the
// user may come and go. Several may: what all of them have shown is no more. While somebody
// shows it, who writes waits for him, and for a moment after he went, as he may look for the
// next head; while nobody does, it is kept, and the oldest goes when the spool is full.
type spool struct {
	mu         sync.Mutex // guards what follows
	room       sync.Cond  // something has changed
	texts      []control.Text
	bytes      int
	gone       int            // texts that are no more: the number of the first that is, counted from 0
	older      []control.Text // the last of those, for a moment: who comes back then may not have shown them
	olderBytes int            // of them
	parted     map[string]int // by viewer that went: the number of the text that it shows next
	fronts     map[*front]*shows
	until      time.Time   // when nobody need be waited for who shows them
	anew       time.Time   // until then a viewer that was not here may have shown what is older
	wake       *time.Timer // at that time
	dropped    int64       // bytes that went
	ended      bool        // no more comes
	closed     bool        // nobody waits any more
}

// A shows is how far a front is: the numbers of the texts that it gets next, and shows next.
type shows struct{ sends, shows int }

// spoolBytes is how much a spool holds.
const spoolBytes = 16 << 20

func newSpool() *spool {
	s := &spool{fronts: map[*front]*shows{}, parted: map[string]int{}}
	s.room.L = &s.mu
	s.until = time.Now().Add(frontTime) // which has passed when it is woken: nothing would wake it again
	s.wake = time.AfterFunc(frontTime, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.trimLocked()
		s.room.Broadcast()
	})
	return s
}

// expect has who writes wait for a moment for somebody who shows it.
func (s *spool) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expectLocked()
	s.anew = s.until
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
	for s.bytes > spoolBytes && len(s.fronts) == 0 && len(s.texts) > 1 {
		s.dropped += int64(len(s.texts[0].Data))
		s.older, s.olderBytes = nil, 0 // which are the last before the first text
		s.forgetLocked()
	}
	s.room.Broadcast()
	for (len(s.fronts) > 0 || time.Now().Before(s.until)) && !s.closed && s.gone < own {
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
	for {
		at, end := s.fronts[f], s.gone+len(s.texts)
		switch {
		case at == nil, s.closed, s.ended && at.shows == end:
			return t, 0, false
		case at.sends < end:
			if behind := s.gone - at.sends; behind > 0 {
				t = s.older[len(s.older)-behind]
			} else {
				t = s.texts[-behind]
			}
			dropped = s.dropped
			s.dropped = 0
			at.sends++
			return t, dropped, true
		}
		s.room.Wait()
	}
}

// shown is told that f has shown n texts.
func (s *spool) shown(f *front, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.fronts[f]; at != nil {
		at.shows = min(at.shows+max(n, 0), at.sends)
		s.advanceLocked()
	}
}

// advanceLocked forgets what all have shown who show anything.
func (s *spool) advanceLocked() {
	all := s.gone + len(s.texts)
	for _, at := range s.fronts {
		all = min(all, at.shows)
	}
	for len(s.fronts) > 0 && s.gone < all {
		if time.Now().Before(s.until) {
			s.older, s.olderBytes = append(s.older, s.texts[0]), s.olderBytes+len(s.texts[0].Data)
		}
		for ; s.olderBytes > spoolBytes; s.older = s.older[1:] {
			s.olderBytes -= len(s.older[0].Data)
		}
		s.forgetLocked()
	}
	s.trimLocked()
	s.room.Broadcast()
}

// trimLocked forgets what was shown when nobody may come back any more, and has nobody to show it to.
func (s *spool) trimLocked() {
	if time.Now().Before(s.until) {
		return
	}
	for _, at := range s.fronts {
		if at.shows < s.gone {
			return
		}
	}
	s.older, s.olderBytes = nil, 0
}

// forgetLocked forgets the first text.
func (s *spool) forgetLocked() {
	s.bytes -= len(s.texts[0].Data)
	s.texts[0] = control.Text{}
	s.texts = s.texts[1:]
	s.gone++
}

// join has f show what there is, in place of the same viewer if it shows it already. One that was here a moment ago, or
// with the head before, goes on with what others have shown meanwhile. Missed: one that comes again later does not have all of that.
func (s *spool) join(f *front) (missed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for g := range s.fronts {
		if g.viewer == f.viewer {
			g.end()
			s.partLocked(g)
		}
	}
	oldest, from := s.gone-len(s.older), s.gone
	if n, here := s.parted[f.viewer]; here {
		from = max(n, oldest)
		missed = n < from
	} else {
		if time.Now().Before(s.anew) {
			from = oldest
		}
		missed = f.again && from > 0
	}
	s.fronts[f] = &shows{from, from}
	s.room.Broadcast()
	return missed
}

// leave has f show nothing any more.
func (s *spool) leave(f *front) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fronts[f] == nil {
		return
	}
	s.partLocked(f)
	s.advanceLocked()
}

// partLocked notes that f has gone, and may come back in a moment.
func (s *spool) partLocked(f *front) {
	if _, before := s.parted[f.viewer]; !before && len(s.parted) == partedMost { // who is furthest behind has most likely gone for good
		behind := slices.MinFunc(slices.Collect(maps.Keys(s.parted)), func(v, w string) int { return cmp.Compare(s.parted[v], s.parted[w]) })
		delete(s.parted, behind)
	}
	s.parted[f.viewer] = s.fronts[f].shows
	delete(s.fronts, f)
	s.expectLocked()
}

// partedMost is of how many viewers that went it is known how far they were; of others it is taken that they have missed something.
const partedMost = 64

// who is those that show what there is.
func (s *spool) who() []*front {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.fronts))
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
	for len(s.fronts) > 0 && len(s.texts) > 0 {
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
	for f := range s.fronts {
		f.end()
	}
	clear(s.fronts)
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
