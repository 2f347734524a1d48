package streams

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/mpiv/mpiv/transport"
)

// A frame is a message on the wire: the length of its body in 4 bytes, least
// significant first, the header, the body.
const prefixLen = 4 + transport.HeaderLen

const (
	smallBody = 4 << 10  // up to which a message may be held back, to leave with others
	holdMost  = 16 << 10 // is not held back until Flush

	// What TryWriteAll takes lies in one buffer of the stream, which it copies
	// whenever more is added. So it gets what fits into a packet, and now and
	// then a Write, which waits until all before it has left.
	tryMost  = 1 << 10
	triedMax = 16 << 10
)

// A tryWriter is a Stream with a Write that does not wait: it takes all of p or
// nothing, and then its error is of no meaning.
type tryWriter interface{ TryWriteAll(p []byte) error }

// An outLane is what leaves through one stream: Send puts it into the ring, and
// a goroutine writes it; or Flush does, if that can be done at once.
type outLane struct {
	stream Stream
	try    tryWriter // stream, if it is one
	ring   ring      // the tail is what may leave
	kick   chan struct{}
	held   atomic.Bool // something in the ring waits for Flush
	// wants is how much room who was refused waits for; 0: nobody was.
	wants atomic.Int64

	writing sync.Mutex // guards what follows, and the order of writes
	tried   int        // bytes given to TryWriteAll since the last Write

	mu     sync.Mutex // guards what follows; held for as long as copying takes
	end    uint64     // what is in the ring, held back or not
	left   int        // bytes of a message that are in the ring; it is not whole
	whole  int        // that message's length as a frame
	prefix [prefixLen]byte
}

func (o *outLane) init(s Stream, size int) {
	o.stream, o.kick = s, make(chan struct{}, 1)
	o.try, _ = s.(tryWriter)
	o.ring.buf = make([]byte, size)
}

// send copies m into the ring, or as much of it as there is room for.
func (o *outLane) send(m transport.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	whole := prefixLen + len(m.Body)
	if o.left > 0 && o.whole != whole {
		panic(fmt.Sprintf("streams: Send of a body of %d bytes, after one of %d was answered with ErrFull: "+
			"the same message must follow", len(m.Body), o.whole-prefixLen))
	}
	if o.left < prefixLen {
		binary.LittleEndian.PutUint32(o.prefix[:], uint32(len(m.Body)))
		copy(o.prefix[4:], m.Header)
		n := o.ring.put(o.end, o.prefix[o.left:])
		o.end += uint64(n)
		o.left += n
	}
	if o.left >= prefixLen {
		n := o.ring.put(o.end, m.Body[o.left-prefixLen:])
		o.end += uint64(n)
		o.left += n
	}
	if o.left < whole {
		o.whole = whole
		o.wants.Store(int64(min(whole-o.left, len(o.ring.buf)/4)))
		o.flushLocked()
		return transport.ErrFull
	}
	o.left = 0
	if o.wants.Load() != 0 {
		o.wants.Store(0)
	}
	if len(m.Body) > smallBody || o.end-o.ring.tail.Load() >= holdMost {
		o.flushLocked()
	} else if !o.held.Load() {
		o.held.Store(true)
	}
	return nil
}

// flushLocked lets go what is held back.
func (o *outLane) flushLocked() (moved bool) {
	tail := o.ring.tail.Load()
	if tail == o.end {
		return false
	}
	o.ring.tail.Store(o.end)
	o.held.Store(false)
	if o.try != nil && o.writing.TryLock() {
		done := o.tryLocked()
		o.writing.Unlock()
		if done {
			return true
		}
	}
	select {
	case o.kick <- struct{}{}:
	default: // it will look once more
	}
	return true
}

// tryLocked writes what may leave if that can be done at once. The caller holds
// writing.
func (o *outLane) tryLocked() bool {
	head, tail := o.ring.head.Load(), o.ring.tail.Load()
	p := o.ring.from(head, tail)
	if tail-head > tryMost || uint64(len(p)) < tail-head || o.tried+len(p) > triedMax || o.try.TryWriteAll(p) != nil {
		return false
	}
	o.tried += len(p)
	o.ring.head.Store(tail)
	return true
}

// roomy tells whether who was refused can send now.
func (o *outLane) roomy() bool {
	w := o.wants.Load()
	return w != 0 && int64(len(o.ring.buf))-int64(o.ring.tail.Load()-o.ring.head.Load()) >= w
}

// write empties the ring into the stream whenever it is kicked.
func (c *Conn) write(o *outLane) {
	for {
		select {
		case <-o.kick:
		case <-c.done:
			return
		}
		if err := c.drain(o); err != nil {
			c.fail("send to", err)
			return
		}
	}
}

func (c *Conn) drain(o *outLane) error {
	o.writing.Lock()
	defer o.writing.Unlock()
	for {
		head, tail := o.ring.head.Load(), o.ring.tail.Load()
		if head == tail {
			return nil
		}
		// A part of it, so that Send finds room again before all has left.
		p := o.ring.from(head, tail)
		p = p[:min(len(p), len(o.ring.buf)/2)]
		n, err := o.stream.Write(p)
		if err != nil {
			return err
		}
		o.tried = 0
		o.ring.head.Add(uint64(n))
		if o.roomy() {
			c.signal()
		}
	}
}
