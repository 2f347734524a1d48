//go:build linux

package shm

import (
	"encoding/binary"
	"math/bits"
	"sync/atomic"

	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/transport"
)

// A lane is one of the ways from a sender to a receiver: a ring of slots, and
// room for the bodies that do not fit in them.
//
// Positions count slots and bytes from the beginning of the connection and never
// wrap; a ring's index is a position's low bits. A slot's word carries the lap
// of its position, so that a slot of the lap before reads as empty.
//
// Where a body lies follows from its length, for both ends alike: in its slot, in
// the cell of its slot, or in the ring of bytes, contiguous, from a multiple of 64.
//
// A body that may be waited for is announced before it is there, if it is long, and
// grows by pieces: the receiver copies one while the sender copies the next. Where bodies
// are copied by lines none grows: there is little to win, and the receiver would hold up the sender.
//
// A sender that has many peers turns back to the beginning of the rings when its
// receiver has taken everything: a lane then lies in the few lines that it needs,
// and all lanes together in a cache. It says so in the slot that would be next.
type lane struct {
	slots []slot
	cells []cell // as many as slots, or none
	data  []byte
	freed *word  // slots that the receiver has freed
	shift uint8  // of a position, to its lap
	first uint64 // index of the slot at position 0
}

// lanes of the direction i, in the order of rdma.Lane.
//
// The two directions begin half a page apart. Two processes that answer each
// other go through both in step, and a processor takes a load for one of what it
// has just stored, and waits, where the two addresses differ only by whole pages.
func (d *directions) lanes(i int) [2]lane {
	const halfPage = pageLen / 2 / slotLen
	dir, first := &d[i], uint64(i*halfPage)
	return [2]lane{
		{dir.eager[:], dir.cells[:], dir.eagerData[:], &dir.heads[0], uint8(bits.TrailingZeros(eagerSlots)), first},
		{dir.bulk[:], nil, dir.bulkData[:], &dir.heads[1], uint8(bits.TrailingZeros(bulkSlots)), first},
	}
}

// turned is the length in the word of a slot whose message is at the beginning of the next lap,
// as is all that follows it. inPieces is set in the length of a body that grows: see slot.grown.
// counted is set where the header is left out, as it is the one before but for its count. anew is set where
// the body lies at the beginning of the ring of bytes though the one before did not reach to its end.
const (
	turned   = 1<<32 - 1
	inPieces = 1 << 31
	counted  = 1 << 30
	anew     = 1 << 29
)

// grows says that the length n in a slot's word is that of a body that grows.
func grows(n uint64) bool { return n&inPieces != 0 && n > inPieces+wholeLen && n <= inPieces+maxBody }

// turn is where the slots and the ring of bytes go on behind a slot at pos that says turned, when
// the ring of bytes is used up to byte from.
func (l *lane) turn(pos, from uint64) (nextPos, nextFrom uint64) {
	slots, ring := uint64(len(l.slots)), uint64(len(l.data))
	return (pos | (slots - 1)) + 1, (from + ring - 1) &^ (ring - 1)
}

func (l *lane) index(pos uint64) uint64 { return (l.first + pos) & uint64(len(l.slots)-1) }
func (l *lane) lapOf(pos uint64) uint64 { return uint64(uint32(pos>>(l.shift&63) + 1)) }

// cell is that of the slot at pos. Neighbours lie in two pages by turns: when the
// receiver reads a cell its processor fetches what lies behind it, which must not
// be where the sender writes next.
func (l *lane) cell(pos uint64) *cell {
	i := l.index(pos)
	return &l.cells[i&^7|i&1<<2|i>>1&3]
}

// room is where a body of n bytes lies, too long for its slot, which is at pos, if
// the ring of bytes is used up to byte from; end is up to where it is used then.
func (l *lane) room(pos, from uint64, n int) (b []byte, end uint64) {
	if n <= cellLen && l.cells != nil {
		return l.cell(pos)[:n], from
	}
	ring, need := uint64(len(l.data)), uint64(n+63)&^63
	off := from & (ring - 1)
	if off+need > ring {
		from, off = from+ring-off, 0 // not in two pieces: skip to the beginning
	}
	return l.data[off : off+uint64(n)], from + need
}

// A sendLane is the sender's end of a lane. What is not in the segment is private.
type sendLane struct {
	lane
	ends  []uint64                  // see end
	last  [transport.HeaderLen]byte // of the message before, unless that was one of a stream
	known bool                      // last is it
	lines bool                      // bodies are copied by lines

	slot           *slot  // at tail
	lap            uint64 // of it, with a message
	tail, dataTail uint64
	head, dataHead uint64        // freed, as last read
	cellsAsked     uint64        // of the cells, by their slots' positions in a lap, and of the ring of bytes:
	dataAsked      uint64        //   up to where there is memory
	dataTouched    uint64        //   up to where it has been touched
	short          bool          // a body had no room in the ring of bytes: from then on all of it is used
	fullAt         atomic.Uint64 // 1 + head when the lane was last full; 0: it is not. For NotifyCQ
}

func newSendLane(l lane) sendLane {
	return sendLane{lane: l, lines: copiesLines, ends: make([]uint64, len(l.slots)), slot: &l.slots[l.index(0)], lap: l.lapOf(0)}
}

// goTo goes on with the slot at tail, when the ring of bytes is used up to byte dataTail.
func (l *sendLane) goTo(tail, dataTail uint64) {
	l.tail, l.dataTail = tail, dataTail
	l.slot, l.lap = &l.slots[l.index(tail)], l.lapOf(tail)
}

// end is up to where the ring of bytes was used behind the slot at pos.
func (l *sendLane) end(pos uint64) *uint64 { return &l.ends[pos&uint64(len(l.ends)-1)] }

// slotsAhead is how many messages before its use a slot is fetched, in a stream
// of messages: so far ahead that it is here by then, and so little that the
// receiver, whose core fetches what lies behind the slot it reads, does not take
// it back.
const slotsAhead = 3

// post writes a message where the receiver sees it. It is false when there is no
// room, and ok is false when the receiver claims to have read what was not sent.
// streams: more are likely to follow at once.
func (l *sendLane) post(header *[transport.HeaderLen]byte, body []byte, streams bool) (posted, ok bool) {
	s := l.slot
	room, end, flags := s.inline[:], l.dataTail, uint64(0)
	if len(body) > inlineLen {
		room, end = l.room(l.tail, l.dataTail, len(body))
	}
	if !l.fits(end) {
		if !l.look() {
			return false, false
		}
		if !l.fits(end) {
			l.short = l.short || end-l.dataHead > uint64(len(l.data))
			l.fullAt.Store(l.head + 1)
			return false, true
		}
	}
	if l.fullAt.Load() != 0 {
		l.fullAt.Store(0)
	}
	if len(body) > inlineLen && l.lacks(end) {
		if end != l.dataTail && l.begin(len(body)) {
			flags = anew
			room, end = l.room(l.tail, l.dataTail, len(body))
		}
		l.ask(end)
	}
	*l.end(l.tail) = end
	if end != l.dataTail {
		l.dataTouched = max(l.dataTouched, l.upTo(end))
	}
	lines := l.byLines(len(body), streams)
	switch {
	case len(body) > firstLine && len(body) <= countedLen && !streams && l.counts(header):
		copy(s.rest()[:], body)
		release.Store64(&s.word, l.lap<<32|counted|uint64(len(body)))
	case len(body) > wholeLen && !streams && !l.lines:
		l.grow(s, header, room, body, flags)
	default:
		if lines {
			copyLines(room, body)
		} else {
			copy(room, body)
		}
		transport.CopyHeader(&s.header, header)
		release.Store64(&s.word, l.lap<<32|flags|uint64(len(body)))
	}
	l.goTo(l.tail+1, end)
	if l.known = !streams; l.known {
		transport.CopyHeader(&l.last, header)
	}
	if streams {
		next := &l.slots[l.index(l.tail+slotsAhead)]
		prefetchLines(&next.header[0], 1)
		if len(body) > firstLine && len(body) <= inlineLen {
			prefetchLines(&next.inline[firstLine], 1)
		}
	}
	if len(body) > inlineLen && !lines {
		l.prepare(min(len(body), 8<<10))
	}
	return true, true
}

// ask sees to it that there is memory for a body beside its slot, in the ring of bytes up to end. To touch a page first
// takes as long as many short messages, and half as long if it was asked for with others. Each time as much is asked for
// as there is, so that a lane has no more than twice the memory that it needs.
func (l *sendLane) ask(end uint64) {
	switch {
	case !l.lacks(end):
	case end == l.dataTail:
		l.askCells(l.atCell()&^7, 2*l.atCell())
	default:
		from := l.dataAsked
		l.dataAsked = min(max(2*from, (l.upTo(end)+pageLen-1)&^(pageLen-1), firstAsked), uint64(len(l.data)))
		populate(l.data[from:l.dataAsked])
	}
}

// lacks says that ask has yet to ask.
func (l *sendLane) lacks(end uint64) bool {
	if end == l.dataTail {
		return l.atCell() >= l.cellsAsked
	}
	return l.upTo(end) > l.dataAsked
}

func (l *sendLane) atCell() uint64         { return l.tail & uint64(len(l.slots)-1) }
func (l *sendLane) upTo(end uint64) uint64 { return (end-1)&uint64(len(l.data)-1) + 1 }

// begin begins the ring of bytes anew, before its end, if a body of n bytes has room there.
func (l *sendLane) begin(n int) bool {
	ring := uint64(len(l.data))
	if l.short || l.dataAsked < ring/4 || !l.look() {
		return false
	}
	start := nextLap(l.dataTail, ring)
	if _, end := l.room(l.tail, start, n); end-l.dataHead > ring {
		return false
	}
	l.dataTail = start
	return true
}

// look reads how far the receiver is. It is false when that cannot be.
func (l *sendLane) look() bool {
	head := l.freed.Load()
	if head-l.head > l.tail-l.head {
		return false
	}
	if head != l.head {
		l.head, l.dataHead = head, *l.end(head - 1)
	}
	return true
}

// nextLap is the first multiple of ring from byte from on.
func nextLap(from, ring uint64) uint64 { return (from + ring - 1) &^ (ring - 1) }

// firstAsked is how much of a ring of bytes is asked for first.
const firstAsked = 4 * pageLen

// askCells asks for the cells of slots from a position in a lap, a multiple of 8, to another, and 8 at least.
func (l *sendLane) askCells(from, to uint64) {
	l.cellsAsked = min(max(to&^7, from+8), uint64(len(l.cells)))
	first, n := l.index(from), l.cellsAsked-from
	straight := min(n, uint64(len(l.cells))-first)
	populate(bytesOf(l.cells[first : first+straight]))
	populate(bytesOf(l.cells[:n-straight]))
}

// byLines tells whether a body of n bytes is copied by lines. Shorter ones are there sooner
// where what they overwrite has been fetched before, which takes some time between two messages.
func (l *sendLane) byLines(n int, streams bool) bool {
	return l.lines && (n > wholeLen || n > wholeLen/2 && streams)
}

// counts tells whether header is the last one but for its count.
func (l *sendLane) counts(header *[transport.HeaderLen]byte) bool {
	const _ = -(transport.HeaderLen ^ 40 | transport.CountAt ^ 24)
	order, last := binary.LittleEndian, &l.last
	return l.known && order.Uint64(header[24:]) == order.Uint64(last[24:])+1 &&
		order.Uint64(header[0:]) == order.Uint64(last[0:]) &&
		order.Uint64(header[8:]) == order.Uint64(last[8:]) &&
		order.Uint64(header[16:]) == order.Uint64(last[16:]) &&
		order.Uint64(header[32:]) == order.Uint64(last[32:])
}

// grow announces body with its first piece and copies the others then.
func (l *sendLane) grow(s *slot, header *[transport.HeaderLen]byte, room, body []byte, flags uint64) {
	there := copy(room[:pieceLen], body)
	*s.grown() = uint64(there)
	transport.CopyHeader(&s.header, header)
	release.Store64(&s.word, l.lap<<32|flags|inPieces|uint64(len(body)))
	for there < len(body) {
		there += copy(room[there:min(there+pieceLen, len(body))], body[there:])
		release.Store64(s.grown(), uint64(there))
	}
}

// turnBack goes back to the beginning of the rings if the receiver has taken everything. Until it
// has seen that, there is room for as many messages as there were before.
func (l *sendLane) turnBack() {
	if l.tail&uint64(len(l.slots)-1) == 0 || l.freed.Load() != l.tail {
		return
	}
	release.Store64(&l.slot.word, l.lap<<32|turned)
	l.head = l.tail
	l.goTo(l.turn(l.tail, l.dataTail))
	l.dataHead = l.dataTail
	*l.end(l.tail - 1) = l.dataTail
}

func (l *sendLane) fits(end uint64) bool {
	return l.tail-l.head < uint64(len(l.slots)) && end-l.dataHead <= uint64(len(l.data))
}

// prepare fetches the memory of the next body, guessing that it has n bytes too:
// the receiver's core has it from the lap before.
func (l *sendLane) prepare(n int) {
	if room, end := l.room(l.tail, l.dataTail, n); l.fits(end) {
		prefetchWrite(room)
	}
}

// A recvLane is the receiver's end.
type recvLane struct {
	lane
	slot, next     *slot  // at head, and behind
	lap            uint64 // of slot, when it holds a message
	head, dataHead uint64
	told, dataTold uint64 // of these, in freed
	seen           uint64 // head when the lane was last found empty. For NotifyCQ
	header         [transport.HeaderLen]byte
	row            int  // messages that were ready, one after the other, before a receiver wanted no more
	last           int  // the length of the body before, unless that came without its header or grew
	much           bool // a body of more than muchLen has come

	// Of the message at head, when a part of it is here.
	size int    // of its body; 0: nothing was looked at
	got  int    // how much of that was
	body []byte // where it goes
}

func newRecvLane(l lane) recvLane {
	return recvLane{lane: l, slot: &l.slots[l.index(0)], next: &l.slots[l.index(1)], lap: l.lapOf(0)}
}

// ready says that there is a message.
func (l *recvLane) ready() bool { return atomic.LoadUint64(&l.slot.word)>>32 == l.lap }

// fetchSecond fetches the second line of the slot at head, or does nothing as long as nobody has written to it. Who waits for a
// message does so all the time: then that line is on its way while the sender writes the first.
func (l *recvLane) fetchSecond() { atomic.LoadUint64(l.slot.grown()) }

// beside is where the next body lies that has as many bytes as the last, if that is in a cell, and few lines of it: they are
// fetched as fetchSecond does, or each would be on its way only when the slot has come. More of them take longer so, where a
// line's way is short.
func (l *recvLane) beside() []byte {
	const most = 256
	if l.last <= inlineLen || l.last > most || l.cells == nil {
		return nil
	}
	return l.cell(l.head)[:l.last]
}

// firstLine is how much of a body in a slot lies in the first of its two lines.
const firstLine = 64 - 8 - transport.HeaderLen

// countedLen is how much of a body has room in a slot where the header is left out.
const countedLen = slotLen - 8

// backlog is how many messages in a row were ready when it is likely that
// backlogAhead more are: their sender is at work far ahead.
const backlog, backlogAhead = 4, 4

// take hands the message that is ready to in, which came behind row others that
// were ready, or goes on with it: moved is false when there is no more of it yet. more is false when
// in wants no other now, ok when what is there cannot be a message.
func (l *recvLane) take(in transport.Receiver, row int) (moved, more, ok bool) {
	n := int(uint32(atomic.LoadUint64(&l.slot.word)))
	if n != turned && n&anew != 0 {
		n &^= anew
		l.dataHead = nextLap(l.dataHead, uint64(len(l.data)))
	}
	switch {
	case n <= maxBody:
	case n > counted && n <= counted+countedLen:
		return true, l.takeCounted(in, n-counted), true
	case n == turned:
		l.goTo(l.turn(l.head, l.dataHead))
		return true, true, true
	case grows(uint64(n)):
		moved, ok = l.takePieces(in, n&^inPieces)
		return moved, true, ok
	default:
		return false, false, false
	}
	next := l.next // who polls looks there next
	if row >= backlog {
		next = &l.slots[l.index(l.head+backlogAhead)]
	}
	prefetchRead(&next.word)
	if n > firstLine && n <= inlineLen {
		prefetchBody(next.inline[firstLine:])
	}
	l.header = l.slot.header // the peer could change it while in looks at it
	room, end := l.slot.inline[:], l.dataHead
	if n > inlineLen {
		room, end = l.room(l.head, l.dataHead, n)
		l.much = l.much || n > muchLen
		if row >= backlog {
			l.fetch(n, end)
		}
	}
	l.goOn(end)
	l.last = n
	return true, in.Receive(l.header[:], room[:n]), true
}

// takeCounted is take for a body of n bytes whose header is left out.
func (l *recvLane) takeCounted(in transport.Receiver, n int) (more bool) {
	prefetchRead(&l.next.word)
	count := l.header[transport.CountAt:]
	binary.LittleEndian.PutUint64(count, binary.LittleEndian.Uint64(count)+1)
	body := l.slot.rest()[:n]
	l.goOn(l.dataHead)
	l.last = 0
	return in.Receive(l.header[:], body)
}

// takePieces is take for a body of n bytes that grows.
func (l *recvLane) takePieces(in transport.Receiver, n int) (moved, ok bool) {
	switch l.size {
	case n:
	case 0:
		l.size, l.got = n, 0
		l.much = l.much || n > muchLen
		l.header = l.slot.header
		l.body = in.Place(l.header[:], n)
		if len(l.body) > n {
			l.body = l.body[:n]
		}
	default:
		return false, false
	}
	room, end := l.room(l.head, l.dataHead, n)
	for l.got < n {
		there := int(atomic.LoadUint64(l.slot.grown()))
		if there < l.got || there > n {
			return false, false
		}
		if there == l.got {
			return moved, true // its sender may have lost its core
		}
		if l.got < len(l.body) {
			copy(l.body[l.got:], room[l.got:there])
		}
		l.got = there
		moved = true
	}
	body := l.body
	l.body = nil
	l.goOn(end)
	l.last = 0
	in.Arrived(l.header[:], body)
	return true, true
}

// goOn goes on with the next slot, when the ring of bytes was used up to byte dataHead. What was in
// the slot stays there until the sender is told, which is not before it was handed over.
func (l *recvLane) goOn(dataHead uint64) {
	l.head++
	l.slot, l.dataHead, l.size = l.next, dataHead, 0
	l.next = &l.slots[l.index(l.head+1)]
	if l.head&uint64(len(l.slots)-1) == 0 {
		l.lap = l.lapOf(l.head)
	}
}

// goTo goes on with the slot at head, when the ring of bytes was used up to byte dataHead.
func (l *recvLane) goTo(head, dataHead uint64) {
	l.head, l.dataHead, l.size = head, dataHead, 0
	l.slot, l.next, l.lap = &l.slots[l.index(head)], &l.slots[l.index(head+1)], l.lapOf(head)
}

// fetch fetches bodies ahead that lie beside their slots, guessing that they have n bytes too:
// the first lines of one in a cell, as the processor fetches what follows by itself; all of one
// of a few lines in the ring of bytes, which is used from byte from on.
func (l *recvLane) fetch(n int, from uint64) {
	const lines, some = 128, 4 << 10
	const ahead = 3 // one more, and the sender is at work on its neighbour
	switch {
	case n <= cellLen && l.cells != nil:
		prefetchBody(l.cell(l.head + ahead)[:lines])
	case n <= some:
		body, _ := l.room(l.head+1, from, n)
		prefetchBody(body)
	}
}

// owes says that an eighth of the ring of bytes is free and the sender does not know: it may begin anew.
func (l *recvLane) owes() bool { return l.dataHead-l.dataTold >= uint64(len(l.data)/8) }

// due says that a quarter of the lane is free and the sender does not know.
func (l *recvLane) due() bool {
	return l.head-l.told >= uint64(len(l.slots)/4) || l.dataHead-l.dataTold >= uint64(len(l.data)/4)
}

func (l *recvLane) tell() {
	l.told, l.dataTold = l.head, l.dataHead
	l.freed.Store(l.head)
}

// rest notes how far the lane was found empty. It is true when that is news.
func (l *recvLane) rest() bool {
	if l.seen == l.head {
		return false
	}
	l.row = 0
	release.Store64(&l.seen, l.head)
	return true
}

// filled says that there is, or was, a whole message since rest: who sends one that grows
// is at it. Any goroutine may ask.
func (l *recvLane) filled() bool {
	seen := atomic.LoadUint64(&l.seen)
	s := &l.slots[l.index(seen)]
	w := atomic.LoadUint64(&s.word)
	if n := uint64(uint32(w)) &^ anew; grows(n) && w>>32 == l.lapOf(seen) {
		return atomic.LoadUint64(s.grown()) >= n&^inPieces
	}
	return int32(uint32(w>>32)-uint32(l.lapOf(seen))) >= 0
}
