package trace

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Recorder. What is beyond them is counted and not kept.
const (
	HeldMost  = 1 << 20  // bytes of records that wait to be taken
	KeptMost  = 16 << 20 // bytes of records in all
	chunkFull = 32 << 10 // from so many on, Full says that it is time to take them
)

// Lanes is how many calls of one rank can be seen at a time.
const Lanes = 8

// A Recorder keeps what the ranks of a process do until Take takes it. Any goroutine
// may use it; no method waits.
type Recorder struct {
	base time.Time
	full chan struct{}

	mu      sync.Mutex // guards what follows
	buf     []byte
	count   int // records in buf
	from    int64
	kept    int // bytes, buf included
	dropped uint64
	told    uint64 // dropped, in the last chunk
	ranks   map[int32]*Rank
}

// NewRecorder begins to record.
func NewRecorder() *Recorder {
	return &Recorder{base: time.Now(), full: make(chan struct{}, 1), ranks: map[int32]*Rank{}}
}

// Full has a value when there is enough for a chunk.
func (r *Recorder) Full() <-chan struct{} { return r.full }

// now is Unix time in ns. It never goes back.
func (r *Recorder) now() int64 { return r.Time(time.Now()) }

// Time is t in the time of records.
func (r *Recorder) Time(t time.Time) int64 { return r.base.UnixNano() + int64(t.Sub(r.base)) }

// Add keeps rec.
func (r *Recorder) Add(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.buf) >= HeldMost || r.kept >= KeptMost {
		r.dropped++
		return
	}
	if rec.Took < 0 {
		rec.Took = 0
	}
	if len(rec.Op) > opMost {
		rec.Op = rec.Op[:opMost]
	}
	before := len(r.buf)
	if r.count == 0 {
		r.from = rec.Start
	}
	r.buf = rec.append(r.buf, r.from)
	r.count++
	r.kept += len(r.buf) - before
	if before < chunkFull && len(r.buf) >= chunkFull {
		select {
		case r.full <- struct{}{}:
		default:
		}
	}
}

// Take is the bytes of a Chunk of what was kept since the last; nil if that is nothing.
func (r *Recorder) Take() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 && r.dropped == r.told {
		return nil
	}
	r.told = r.dropped
	if r.count == 0 {
		r.from = 0
	}
	b := append(head(r.dropped, r.from), r.buf...)
	r.buf, r.count = r.buf[:0], 0
	return b
}

// Rank is the recorder of a rank's calls.
func (r *Recorder) Rank(n int32) *Rank {
	r.mu.Lock()
	defer r.mu.Unlock()
	k := r.ranks[n]
	if k == nil {
		k = &Rank{r: r, n: n}
		r.ranks[n] = k
	}
	return k
}

// A Rank records the calls of one rank.
type Rank struct {
	r     *Recorder
	n     int32
	lanes atomic.Uint32 // those in use

	// Order is held while a message is begun and its number is asked for.
	Order sync.Mutex
}

// Begin is told that a call begins.
func (k *Rank) Begin() Span {
	for {
		used := k.lanes.Load()
		lane := bits.TrailingZeros32(^used)
		if lane >= Lanes {
			return Span{k: k, lane: Lanes, start: k.r.now()}
		}
		if k.lanes.CompareAndSwap(used, used|1<<lane) {
			return Span{k: k, lane: uint8(lane), start: k.r.now()}
		}
	}
}

// A Span is a call under way. That of the zero Span is not recorded.
type Span struct {
	k     *Rank
	start int64
	lane  uint8
}

// Recorded tells whether the call is.
func (s Span) Recorded() bool { return s.k != nil }

// free gives back the lane.
func (s Span) free() {
	s.k.lanes.And(^(uint32(1) << s.lane))
}

// End records the call, once: rec says all but whose it is and when it was.
func (s Span) End(rec Record) {
	if s.k == nil {
		return
	}
	r := s.k.r
	rec.Rank, rec.Lane, rec.Start = s.k.n, s.lane, s.start
	rec.Took = r.now() - s.start
	if s.lane == Lanes {
		r.mu.Lock()
		r.dropped++
		r.mu.Unlock()
		return
	}
	r.Add(rec)
	s.free()
}
