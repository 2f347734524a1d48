package migrate

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"math/bits"
	"reflect"
	"slices"
	"unsafe"
)

// maxDepth bounds values within values, pointers aside: those wait in a queue.
const maxDepth = 10_000

// maxEmpty bounds the length of slices whose elements take no bytes.
const maxEmpty = 1 << 20

// An encoder lays values out. First come the variables, with what lies still in
// them (see still); then what their pointers lead to, in the order met.
type encoder struct {
	list     []variable // none: an object is laid out
	rest     []byte     // what has no segment of its own
	statics  [][]byte   // of what lies still
	dynamics [][]byte   // of what was met on the way
	inline   bool       // no segments now
	depth    int

	keys    []byte   // of the maps that are being laid out: that within another is on top
	entries []entry  // likewise
	order   []uint64 // likewise

	seen  map[identity]int // protected variables, then what was new, in order
	next  int              // number of the next new one
	queue []pending        // pointees that are still to be laid out
	batch []pending        // those that are

	current int // variable
	taken   []span
	err     error
}

// An identity is that of something which may be met again.
type identity struct {
	p    unsafe.Pointer
	n    int   // length of a slice, or one of the following
	elem *node // nil for maps
}

const (
	pointee = -1
	hashed  = -2
)

type pending struct {
	node     *node
	p        unsafe.Pointer
	variable int
}

func (e *encoder) fail(kind error, format string, args ...any) {
	if e.err != nil {
		return
	}
	name := ""
	if len(e.list) > 0 {
		name = e.list[e.current].name
	}
	e.err = says(kind, name, fmt.Sprintf(format, args...))
}

// follow lays out what pointers lead to.
func (e *encoder) follow() {
	for len(e.queue) > 0 && e.err == nil {
		e.queue, e.batch = e.batch[:0], e.queue
		for _, o := range e.batch {
			e.current = o.variable
			e.value(o.node, o.p)
		}
	}
}

func (e *encoder) uvarint(x int) { e.rest = binary.AppendUvarint(e.rest, uint64(x)) }

// still lays out what lies still: a variable, or a field of one. A flat slice
// or a large flat array there always has a segment, so that the receiver knows
// before it has read anything else where its bytes are to go.
func (e *encoder) still(n *node, p unsafe.Pointer) {
	switch {
	case n.kind == kStruct:
		for _, f := range n.fields {
			e.still(f.node, unsafe.Add(p, f.offset))
		}
	case n.kind == kArray && n.wire >= large:
		e.statics = append(e.statics, flatBytes(n, p, 1))
	case n.flat():
		s := reflect.NewAt(n.t, p).Elem()
		var b []byte
		if e.fresh(n, s.IsNil(), identity{s.UnsafePointer(), s.Len(), n.elem}) {
			e.occupy(s.UnsafePointer(), n.elem, s.Len())
			b = flatBytes(n.elem, s.UnsafePointer(), s.Len())
		}
		e.statics = append(e.statics, b)
	default:
		e.value(n, p)
	}
}

// value lays out the value at p.
func (e *encoder) value(n *node, p unsafe.Pointer) {
	if e.err != nil {
		return
	}
	if n.wire >= 0 {
		e.rest = appendFlat(e.rest, n, p)
		return
	}
	switch n.kind {
	case kString:
		s := *(*string)(p)
		e.blob(unsafe.Slice(unsafe.StringData(s), len(s)))
	case kOpaque:
		b, err := n.marshal(p)
		if err != nil {
			e.fail(ErrValue, "%v: %v", n.t, err)
		}
		e.blob(b)
	case kStruct:
		for _, f := range n.fields {
			e.value(f.node, unsafe.Add(p, f.offset))
		}
	case kArray:
		e.elements(n.elem, p, n.t.Len())
	case kSlice:
		s := reflect.NewAt(n.t, p).Elem()
		if e.fresh(n, s.IsNil(), identity{s.UnsafePointer(), s.Len(), n.elem}) {
			e.slice(n, s.UnsafePointer(), s.Len())
		}
	case kMap:
		m := reflect.NewAt(n.t, p).Elem()
		if e.fresh(n, m.IsNil(), identity{m.UnsafePointer(), hashed, nil}) {
			e.table(n, m)
		}
	case kPointer:
		q := *(*unsafe.Pointer)(p)
		if e.fresh(n, q == nil, identity{q, pointee, n.elem}) {
			e.occupy(q, n.elem, 1)
			e.queue = append(e.queue, pending{n.elem, q, e.current})
		}
	}
}

// fresh writes 0 for what is nil, 1 for what is new, otherwise 2 plus the
// number of what is the same. It reports whether o, of type n, is new.
func (e *encoder) fresh(n *node, isNil bool, o identity) bool {
	if isNil {
		e.uvarint(0)
		return false
	}
	if !n.same {
		e.uvarint(1)
		return true
	}
	if o.n != 0 { // empty slices may have any address
		if i, ok := e.seen[o]; ok {
			e.uvarint(i + 2)
			return false
		}
		e.seen[o] = e.next
	}
	e.next++
	e.uvarint(1)
	return true
}

func (e *encoder) slice(n *node, p unsafe.Pointer, length int) {
	e.occupy(p, n.elem, length)
	e.uvarint(length)
	switch {
	case n.elem.wire == 0:
		if length > maxEmpty {
			e.fail(ErrValue, "%v has %d elements that take no bytes; at most %d travel", n.t, length, maxEmpty)
		}
	case n.elem.wire < 0:
		e.elements(n.elem, p, length)
	case apart(uint64(length*n.elem.wire), len(e.dynamics)):
		e.dynamics = append(e.dynamics, flatBytes(n.elem, p, length))
	default:
		for i := 0; i < length && !n.elem.plain; i++ {
			e.rest = appendFlat(e.rest, n.elem, unsafe.Add(p, uintptr(i)*n.elem.t.Size()))
		}
		if n.elem.plain {
			e.rest = append(e.rest, unsafe.Slice((*byte)(p), length*n.elem.wire)...)
		}
	}
}

func (e *encoder) elements(elem *node, p unsafe.Pointer, length int) {
	if e.depth++; e.depth > maxDepth {
		e.fail(ErrValue, "values within values, more than %d deep; use pointers", maxDepth)
	}
	for i := 0; i < length && e.err == nil; i++ {
		e.value(elem, unsafe.Add(p, uintptr(i)*elem.t.Size()))
	}
	e.depth--
}

// table lays out a map in the order of its keys' bytes.
func (e *encoder) table(n *node, m reflect.Value) {
	length := m.Len()
	e.uvarint(length)
	if length == 0 {
		return
	}
	if e.depth++; e.depth > maxDepth {
		e.fail(ErrValue, "maps within maps, more than %d deep; use pointers", maxDepth)
		return
	}
	// Values of one size are laid out beside their keys; others have their turn in the order of these.
	flat := n.elem.wire >= 0
	kept := length
	if flat {
		kept = 1
	}
	key, elems := reflect.New(n.key.t), reflect.MakeSlice(reflect.SliceOf(n.elem.t), kept, kept)
	keyAt, elemAt, k, elem := key.UnsafePointer(), elems.UnsafePointer(), key.Elem(), elems.Index(0)
	rest, low, bottom := e.rest, len(e.keys), len(e.entries)
	e.rest, e.inline = e.keys, true
	for it := m.MapRange(); it.Next() && len(e.entries)-bottom < length; {
		i := len(e.entries) - bottom
		o := entry{key: len(e.rest)}
		k.SetIterKey(it)
		e.value(n.key, keyAt)
		o.keyEnd = len(e.rest)
		if flat {
			elem.SetIterValue(it)
			e.rest = appendFlat(e.rest, n.elem, elemAt)
		} else {
			elems.Index(i).SetIterValue(it)
		}
		o.end = len(e.rest)
		e.entries = append(e.entries, o)
	}
	keys, entries := e.rest, e.entries[bottom:]
	e.keys, e.rest, e.inline = e.rest, rest, false
	var last []byte
	order := e.sorted(keys, entries)
	for i, x := range order {
		o := entries[x]
		if i > 0 && bytes.Equal(last, keys[o.key:o.keyEnd]) {
			e.fail(ErrValue, "two keys of a %v are the same once laid out", n.t)
		}
		last = keys[o.key:o.keyEnd]
		e.rest = append(e.rest, keys[o.key:o.end]...)
		if !flat {
			e.value(n.elem, unsafe.Add(elemAt, uintptr(x)*n.elem.t.Size()))
		}
	}
	e.keys, e.entries, e.order = e.keys[:low], e.entries[:bottom], e.order[:len(e.order)-len(order)]
	e.depth--
}

// An entry is one of a map that is being laid out: where its key is in encoder.keys, and
// where its value ends, if that has one size.
type entry struct{ key, keyEnd, end int }

// sorted is the numbers of the entries, by the bytes of their keys. They are on top of e.order.
func (e *encoder) sorted(keys []byte, entries []entry) []uint64 {
	// What is sorted first are numbers that begin as the keys do. Keys which begin in the
	// same way have their order among themselves afterwards.
	mask := uint64(1)<<bits.Len(uint(len(entries))) - 1
	bottom := len(e.order)
	for i, o := range entries {
		e.order = append(e.order, firstOf(keys[o.key:o.keyEnd])&^mask|uint64(i))
	}
	order := e.order[bottom:]
	slices.Sort(order)
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && order[from]&^mask == order[to]&^mask {
			to++
		}
		if to > from+1 {
			slices.SortFunc(order[from:to], func(a, b uint64) int {
				x, y := entries[a&mask], entries[b&mask]
				return bytes.Compare(keys[x.key:x.keyEnd], keys[y.key:y.keyEnd])
			})
		}
		from = to
	}
	for i := range order {
		order[i] &= mask
	}
	return order
}

// firstOf orders as the first bytes of b do.
func firstOf(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var x uint64
	for i, c := range b {
		x |= uint64(c) << (56 - 8*i)
	}
	return x
}

// blob lays out bytes that nobody changes.
func (e *encoder) blob(b []byte) {
	e.uvarint(len(b))
	if !e.inline && apart(uint64(len(b)), len(e.dynamics)) {
		e.dynamics = append(e.dynamics, b)
		return
	}
	e.rest = append(e.rest, b...)
}

func (n *node) marshal(p unsafe.Pointer) ([]byte, error) {
	v := reflect.NewAt(n.t, p).Interface()
	if n.gob {
		return v.(gob.GobEncoder).GobEncode()
	}
	return v.(encoding.BinaryMarshaler).MarshalBinary()
}

// flatBytes are length values at p as they travel: their memory, if it is that.
func flatBytes(n *node, p unsafe.Pointer, length int) []byte {
	if n.plain {
		return unsafe.Slice((*byte)(p), length*n.wire)
	}
	b := make([]byte, 0, length*n.wire)
	for i := range length {
		b = appendFlat(b, n, unsafe.Add(p, uintptr(i)*n.t.Size()))
	}
	return b
}

// appendFlat lays out a value that has one size. No float is looked at as one:
// that may change the payload of a NaN.
func appendFlat(b []byte, n *node, p unsafe.Pointer) []byte {
	if n.plain {
		return append(b, unsafe.Slice((*byte)(p), n.wire)...)
	}
	le := binary.LittleEndian
	switch n.kind {
	case kInt:
		return le.AppendUint64(b, uint64(*(*int)(p)))
	case kUint:
		return le.AppendUint64(b, uint64(*(*uint)(p)))
	case kInt16, kUint16:
		return le.AppendUint16(b, *(*uint16)(p))
	case kInt32, kUint32, kFloat32:
		return le.AppendUint32(b, *(*uint32)(p))
	case kInt64, kUint64, kFloat64:
		return le.AppendUint64(b, *(*uint64)(p))
	case kComplex64:
		c := (*[2]uint32)(p)
		return le.AppendUint32(le.AppendUint32(b, c[0]), c[1])
	case kComplex128:
		c := (*[2]uint64)(p)
		return le.AppendUint64(le.AppendUint64(b, c[0]), c[1])
	case kArray:
		for i := range n.t.Len() {
			b = appendFlat(b, n.elem, unsafe.Add(p, uintptr(i)*n.elem.t.Size()))
		}
		return b
	case kStruct:
		for _, f := range n.fields {
			b = appendFlat(b, f.node, unsafe.Add(p, f.offset))
		}
		return b
	}
	panic("migrate: a type of fixed size has no layout")
}

// A span is memory that a variable leads to.
type span struct {
	from, to uintptr
	node     *node // of what is there, once or several times
	variable int
}

func (e *encoder) occupy(p unsafe.Pointer, n *node, length int) {
	if size := n.t.Size() * uintptr(length); size > 0 && len(e.list) > 0 {
		e.taken = append(e.taken, span{uintptr(p), uintptr(p) + size, n, e.current})
	}
}

// apart fails if two spans overlap. What is the same is there once.
func (e *encoder) apart() {
	slices.SortFunc(e.taken, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	for i := 1; i < len(e.taken); i++ {
		a, b := e.taken[i-1], e.taken[i]
		if a.to > b.from {
			e.current = a.variable
			e.fail(ErrShared, "%d bytes of %v there overlap %d bytes of %v in variable %s; "+
				"keep indices in place of pointers into slices, and make slices of slices anew when the state is restored",
				a.to-a.from, a.node.t, b.to-b.from, b.node.t, e.list[b.variable].name)
		}
	}
}
