package process

import (
	"unsafe"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/dirty"
	"github.com/mpiv/mpiv/migrate"
)

// written is what is known of which memory of a rank's state was written to since its last
// snapshot. It is owned by the rank.
//
// Asking the kernel costs next to nothing for memory that nobody writes to, and who does pays
// more for a page than it takes to copy it. So memory is watched if little of it was another
// in the last snapshot than in the one before, and no longer if much was written to. What is
// not watched is compared, which tells as much and takes about as long as copying; and what
// is another each time is not even that.
type written struct {
	book     *dirty.Book // nil: there is none
	none     bool        // nor will there be one
	segments []segment   // of the last snapshot
}

// A segment is one of an image.
type segment struct {
	at     uintptr
	length int
	mem    []byte // while it is watched; else nil, as it is the program's to give up
	vain   int    // how often in a row it was watched or compared in vain
	skip   int    // so many snapshots it is taken as it is, before that is tried again
}

const (
	watchFrom  = 1 << 20 // bytes: a shorter segment is always copied
	watchBelow = 8       // watched if less than one part of so many was another,
	watchUntil = 4       //   until one part of so many was written to
	vainMost   = 4       // it is tried once in 2 to the power of this snapshots at least
)

// parts is the segments of image, and what is known of them.
func (w *written) parts(image migrate.Image) []checkpoint.Part {
	parts := make([]checkpoint.Part, len(image.Segments))
	last := w.segments
	w.segments = make([]segment, len(image.Segments))
	for i, mem := range image.Segments {
		parts[i].Bytes = mem
		s := segment{at: uintptr(unsafe.Pointer(unsafe.SliceData(mem))), length: len(mem)}
		if i < len(last) && last[i].length == s.length {
			s.vain, s.skip = last[i].vain, last[i].skip
			if last[i].at == s.at {
				s.mem, last[i].mem = last[i].mem, nil
			}
		}
		switch {
		case s.mem != nil:
			w.ask(&s, &parts[i])
		case s.skip > 0:
			parts[i].Known, parts[i].Written = true, []checkpoint.Range{{From: 0, To: len(mem)}}
		}
		w.segments[i] = s
	}
	for i := range last { // the program has others in their places
		w.unwatch(&last[i])
	}
	return parts
}

// ask asks the kernel what of a segment that is watched was written to.
func (w *written) ask(s *segment, p *checkpoint.Part) {
	ranges, err := w.book.Written(s.mem)
	if err != nil { // it is compared
		w.unwatch(s)
		return
	}
	p.Known = true
	for _, r := range ranges {
		p.Written = append(p.Written, checkpoint.Range(r))
	}
}

// learn is told that the parts are in a snapshot, of which area has said what has changed. The
// rank is still at its safe point.
func (w *written) learn(image migrate.Image, changed func(i int) int64) {
	for i := range w.segments {
		s := &w.segments[i]
		if i == 0 || s.length < watchFrom { // the first is made anew for each image
			continue
		}
		share, all := changed(i), int64(s.length)
		switch {
		case s.mem != nil && share > all/watchUntil:
			w.unwatch(s)
			s.inVain()
		case s.mem != nil:
			s.vain = 0
		case s.skip > 0:
			s.skip--
		case share < all/watchBelow:
			w.watch(s, image.Segments[i])
		case share > all/2:
			s.inVain()
		}
	}
}

func (s *segment) inVain() {
	s.vain = min(s.vain+1, vainMost)
	s.skip = 1<<s.vain - 1
}

func (w *written) watch(s *segment, mem []byte) {
	if w.book == nil && !w.none {
		var err error
		w.book, err = dirty.Open()
		w.none = err != nil
	}
	if w.none {
		return
	}
	if w.book.Watch(mem) == nil {
		s.mem = mem
	}
}

func (w *written) unwatch(s *segment) {
	if s.mem != nil {
		w.book.Unwatch(s.mem) // should that fail, writing there costs more than it has to
		s.mem = nil
	}
}

// end ends all watching: the next snapshot is compared with the last.
func (w *written) end() {
	if w.book != nil {
		w.book.Close()
	}
	*w = written{none: w.none}
}
