package migrate

import (
	"bytes"
	"encoding"
	"encoding/binary"
	"encoding/gob"
	"fmt"
	"reflect"
	"unsafe"
)

// A decoder reads what an encoder wrote, in the same order. Its destinations
// are nil where the value is read and forgotten.
type decoder struct {
	rest        parser
	segments    [][]byte // the rest, then what lies still, then what was met on the way
	object      bool     // no value has a segment's memory, nor more than hangs on what has come
	targets     []target
	nextTarget  int
	nextDynamic int
	depth       int
	inKey       bool   // blobs are never segments
	name        string // of the variable that leads here; empty in an object

	objects []reflect.Value // by number: pointers, slices, maps; invalid if forgotten
	queue   []reading       // pointees that are still to be read
	batch   []reading       // those that are
	owed    int64           // bytes that elements and pointees take at least which are still to be read
	err     error
}

type reading struct {
	r    *reader
	p    unsafe.Pointer
	name string
}

func (d *decoder) fail(kind error, format string, args ...any) {
	if d.err == nil {
		d.err = says(kind, d.name, fmt.Sprintf(format, args...))
	}
	d.rest.fail()
}

// follow reads what pointers lead to.
func (d *decoder) follow() {
	for len(d.queue) > 0 && d.err == nil {
		d.queue, d.batch = d.batch[:0], d.queue
		for _, o := range d.batch {
			d.owed -= o.r.w.min
			d.name = o.name
			d.value(o.r, o.p)
		}
	}
}

// finish fails if anything is left.
func (d *decoder) finish() {
	if d.err == nil && d.rest.err != nil {
		d.err = d.rest.err
	}
	if d.err == nil && (len(d.rest.b) > 0 || d.nextDynamic != len(d.segments)) {
		d.fail(ErrMalformed, "something is left over at its end")
	}
}

func (d *decoder) ended() bool { return d.err != nil || d.rest.err != nil }

// still is the counterpart of encoder.still.
func (d *decoder) still(r *reader, p unsafe.Pointer) {
	switch {
	case d.ended():
	case r.w.kind == kStruct:
		for _, f := range r.fields {
			d.still(f.r, f.at(p))
		}
	case r.w.statics == 0:
		d.value(r, p)
	case r.flat:
		t, b := d.target()
		isNew, same := d.tag(r)
		if !isNew && len(b) > 0 {
			d.fail(ErrMalformed, "a slice that is not new has a segment")
			return
		}
		switch {
		case !isNew:
			d.set(r, p, same)
		case p == nil:
			d.met(r, reflect.Value{})
		case t.placed:
			d.check(r.elem, b)
			d.met(r, reflect.NewAt(r.n.t, p).Elem())
		default:
			d.set(r, p, d.flatSlice(r, b, true))
			d.met(r, reflect.NewAt(r.n.t, p).Elem())
		}
	default:
		t, b := d.target()
		if t.placed {
			d.check(r, b)
		} else if p != nil {
			d.flat(r, p, b)
		}
	}
}

func (d *decoder) target() (target, []byte) {
	d.nextTarget++
	return d.targets[d.nextTarget-1], d.segments[d.nextTarget]
}

// apart tells whether n bytes that come next are a segment.
func (d *decoder) apart(n uint64) bool { return apart(n, d.nextDynamic-len(d.targets)-1) }

// dynamic is the next segment that was met on the way.
func (d *decoder) dynamic(length int64) []byte {
	if d.nextDynamic >= len(d.segments) || int64(len(d.segments[d.nextDynamic])) != length {
		d.fail(ErrMalformed, "a segment has another length than what it is for")
		return nil
	}
	d.nextDynamic++
	return d.segments[d.nextDynamic-1]
}

// value reads a value into p.
func (d *decoder) value(r *reader, p unsafe.Pointer) {
	if d.ended() {
		return
	}
	if r.w.size >= 0 {
		if r.w.size > int64(len(d.rest.b)) {
			d.rest.fail()
		} else if b := d.rest.take(int(r.w.size)); p != nil {
			d.flat(r, p, b)
		}
		return
	}
	switch r.w.kind {
	case kString:
		if b, own := d.blob(); p != nil && own {
			*(*string)(p) = unsafe.String(unsafe.SliceData(b), len(b))
		} else if p != nil {
			*(*string)(p) = string(b)
		}
	case kOpaque:
		if b, _ := d.blob(); p != nil && !d.ended() {
			d.unmarshal(r.n, p, b)
		}
	case kStruct:
		for _, f := range r.fields {
			d.value(f.r, f.at(p))
		}
	case kArray:
		if d.owe(r.w.len, r.elem.w.min) { // each takes a byte or more
			d.elements(r.elem, p, int(r.w.len))
		}
	case kPointer:
		d.pointer(r, p)
	case kSlice:
		if isNew, same := d.tag(r); !isNew {
			d.set(r, p, same)
		} else {
			d.slice(r, p)
		}
	case kMap:
		if isNew, same := d.tag(r); !isNew {
			d.set(r, p, same)
		} else {
			d.table(r, p)
		}
	}
}

// tag reads what encoder.fresh wrote. Of what is not new it has the value.
func (d *decoder) tag(r *reader) (isNew bool, same reflect.Value) {
	x := d.rest.uvarint()
	switch {
	case d.ended():
		return false, same
	case x == 1:
		return true, same
	case x == 0:
		if r.n != nil {
			same = reflect.Zero(r.n.t)
		}
		return false, same
	case x-2 >= uint64(len(d.objects)) || !r.w.same:
		d.fail(ErrMalformed, "it refers to what has not come yet")
		return false, same
	}
	if r.n == nil {
		return false, same
	}
	same = d.objects[x-2]
	if !same.IsValid() {
		d.fail(ErrMismatch, "a %v is the same as one in a field that is dropped here; keep that field", r.n.t)
		return false, same
	}
	if t := same.Type(); t != r.n.t {
		if t.Kind() != r.n.t.Kind() || t.Elem() != r.n.t.Elem() || !t.ConvertibleTo(r.n.t) {
			d.fail(ErrMalformed, "a %v is said to be the same as a %v", r.n.t, t)
			return false, same
		}
		same = same.Convert(r.n.t)
	}
	return false, same
}

// met numbers v, which is new.
func (d *decoder) met(r *reader, v reflect.Value) {
	if r.w.same {
		d.objects = append(d.objects, v)
	}
}

// owe notes that n things are to be read that take so many bytes each at least.
// So what memory is set aside for is there.
func (d *decoder) owe(n uint64, each int64) bool {
	if d.owed = min(d.owed+times(each, n), huge); d.owed > int64(len(d.rest.b)) {
		d.fail(ErrMalformed, "%d values do not fit in what is left", n)
		return false
	}
	return true
}

func (d *decoder) set(r *reader, p unsafe.Pointer, v reflect.Value) {
	if p != nil && !d.ended() {
		reflect.NewAt(r.n.t, p).Elem().Set(v)
	}
}

func (d *decoder) pointer(r *reader, p unsafe.Pointer) {
	isNew, same := d.tag(r)
	if !isNew {
		d.set(r, p, same)
		return
	}
	e := r.elem
	if !d.owe(1, e.w.min) {
		return
	}
	if p == nil {
		d.met(r, reflect.Value{})
		d.queue = append(d.queue, reading{e, nil, d.name})
		return
	}
	made := reflect.New(e.n.t)
	d.set(r, p, made.Convert(r.n.t))
	d.met(r, made)
	d.queue = append(d.queue, reading{e, made.UnsafePointer(), d.name})
}

func (d *decoder) slice(r *reader, p unsafe.Pointer) {
	n := d.rest.uvarint()
	e := r.elem
	if r.flat {
		size := times(e.w.size, n)
		var b []byte
		apart := d.apart(uint64(size))
		if apart {
			b = d.dynamic(size)
		} else {
			b = d.rest.take(int(size))
		}
		if d.ended() || p == nil {
			d.met(r, reflect.Value{})
			return
		}
		v := d.flatSlice(r, b, apart && !d.object)
		d.set(r, p, v)
		d.met(r, v)
		return
	}
	if n > maxEmpty && e.w.min == 0 {
		d.fail(ErrMalformed, "a slice has %d elements that take no bytes", n)
		return
	}
	if d.object && n > 0 && e.w.min == 0 && p != nil && e.n.t.Size() > 0 {
		d.fail(ErrMismatch, "a slice came whose elements have no field that a %v has", e.n.t)
		return
	}
	if !d.owe(n, e.w.min) {
		return
	}
	var v reflect.Value
	var data unsafe.Pointer
	if p != nil {
		v = reflect.MakeSlice(r.n.t, int(n), int(n))
		data = v.UnsafePointer()
		d.set(r, p, v)
	}
	d.met(r, v)
	if e.w.size != 0 {
		d.elements(e, data, int(n))
	}
}

// elements reads n values, which are owed.
func (d *decoder) elements(e *reader, p unsafe.Pointer, n int) {
	if d.depth++; d.depth > maxDepth {
		d.fail(ErrMalformed, "values within values, more than %d deep", maxDepth)
	}
	for i := 0; i < n && !d.ended(); i++ {
		d.owed -= e.w.min
		if p == nil {
			d.value(e, nil)
		} else {
			d.value(e, unsafe.Add(p, uintptr(i)*e.n.t.Size()))
		}
	}
	d.depth--
}

type sliceHeader struct {
	data     unsafe.Pointer
	len, cap int
}

// flatSlice is the slice of r's type that b holds. It has b's memory if it may
// and can.
func (d *decoder) flatSlice(r *reader, b []byte, own bool) reflect.Value {
	e := r.elem
	n := len(b) / int(e.w.size)
	if own && e.direct && n > 0 {
		d.check(e, b)
		v := reflect.New(r.n.t)
		*(*sliceHeader)(v.UnsafePointer()) = sliceHeader{unsafe.Pointer(unsafe.SliceData(b)), n, n}
		return v.Elem()
	}
	v := reflect.MakeSlice(r.n.t, n, n)
	if e.direct {
		copy(unsafe.Slice((*byte)(v.UnsafePointer()), len(b)), b)
		d.check(e, b)
		return v
	}
	for i := 0; i < n && !d.ended(); i++ {
		size := int(e.w.size)
		d.flat(e, unsafe.Add(v.UnsafePointer(), uintptr(i)*e.n.t.Size()), b[i*size:(i+1)*size])
	}
	return v
}

// check refuses bools that are neither. b may be memory of the program that
// was filled already: no such thing may stay there.
func (d *decoder) check(r *reader, b []byte) bool {
	if !r.bools {
		return true
	}
	for _, x := range b {
		if x > 1 {
			if !d.object {
				clear(b)
			}
			d.fail(ErrMalformed, "a bool is %d", x)
			return false
		}
	}
	return true
}

func (d *decoder) table(r *reader, p unsafe.Pointer) {
	n := d.rest.uvarint()
	each := r.key.w.min + r.elem.w.min
	if n > 1 && each == 0 {
		d.fail(ErrMalformed, "a map has %d keys that take no bytes", n)
	}
	if d.ended() || !d.owe(n, each) {
		return
	}
	var m, key, elem reflect.Value
	if p != nil {
		m = reflect.MakeMapWithSize(r.n.t, int(n))
		d.set(r, p, m)
		key, elem = reflect.New(r.n.key.t).Elem(), reflect.New(r.n.elem.t).Elem()
	}
	d.met(r, m)
	if d.depth++; d.depth > maxDepth {
		d.fail(ErrMalformed, "values within values, more than %d deep", maxDepth)
	}
	var last []byte
	for i := uint64(0); i < n && !d.ended(); i++ {
		var keyAt, elemAt unsafe.Pointer
		if p != nil {
			key.SetZero()
			elem.SetZero()
			keyAt, elemAt = key.Addr().UnsafePointer(), elem.Addr().UnsafePointer()
		}
		d.owed -= each
		before := d.rest.b
		d.inKey = true
		d.value(r.key, keyAt)
		d.inKey = false
		if d.ended() {
			break
		}
		k := before[:len(before)-len(d.rest.b)]
		if i > 0 && bytes.Compare(last, k) >= 0 {
			d.fail(ErrMalformed, "keys are out of order")
			break
		}
		last = k
		d.value(r.elem, elemAt)
		if p != nil {
			m.SetMapIndex(key, elem)
		}
	}
	d.depth--
	if p != nil && !d.ended() && uint64(m.Len()) != n {
		d.fail(ErrMismatch, "keys of a %v are the same here that were not", r.n.t)
	}
}

// blob reads what encoder.blob wrote; own if the bytes are a segment.
func (d *decoder) blob() (b []byte, own bool) {
	n := d.rest.uvarint()
	if d.apart(n) && n < huge && !d.inKey {
		return d.dynamic(int64(n)), !d.object
	}
	if n > uint64(len(d.rest.b)) {
		d.rest.fail()
		return nil, false
	}
	return d.rest.take(int(n)), false
}

func (d *decoder) unmarshal(n *node, p unsafe.Pointer, b []byte) {
	made := reflect.New(n.t) // what is at p may share memory with the program's
	var err error
	if n.gob {
		err = made.Interface().(gob.GobDecoder).GobDecode(b)
	} else {
		err = made.Interface().(encoding.BinaryUnmarshaler).UnmarshalBinary(b)
	}
	if err != nil {
		kind := ErrMalformed
		if d.object { // it may be the type's own way to refuse what it gets
			kind = ErrValue
		}
		d.fail(kind, "%v: %v", n.t, err)
		return
	}
	reflect.NewAt(n.t, p).Elem().Set(made.Elem())
}

// flat reads a value that has one size from b, which has that size.
func (d *decoder) flat(r *reader, p unsafe.Pointer, b []byte) {
	if r.direct {
		if d.check(r, b) {
			copy(unsafe.Slice((*byte)(p), len(b)), b)
		}
		return
	}
	le := binary.LittleEndian
	switch r.w.kind {
	case kInt:
		x := int64(le.Uint64(b))
		if !fitsInt(x) {
			d.fail(ErrMismatch, "%d does not fit an int of this machine; use int64", x)
		}
		*(*int)(p) = int(x)
	case kUint:
		x := le.Uint64(b)
		if !fitsUint(x) {
			d.fail(ErrMismatch, "%d does not fit a uint of this machine; use uint64", x)
		}
		*(*uint)(p) = uint(x)
	case kInt16, kUint16:
		*(*uint16)(p) = le.Uint16(b)
	case kInt32, kUint32, kFloat32:
		*(*uint32)(p) = le.Uint32(b)
	case kInt64, kUint64, kFloat64:
		*(*uint64)(p) = le.Uint64(b)
	case kComplex64:
		*(*[2]uint32)(p) = [2]uint32{le.Uint32(b), le.Uint32(b[4:])}
	case kComplex128:
		*(*[2]uint64)(p) = [2]uint64{le.Uint64(b), le.Uint64(b[8:])}
	case kArray:
		size := int(r.elem.w.size)
		for i := 0; size > 0 && i < int(r.w.len); i++ {
			d.flat(r.elem, unsafe.Add(p, uintptr(i)*r.elem.n.t.Size()), b[i*size:(i+1)*size])
		}
	case kStruct:
		for _, f := range r.fields {
			size := int(f.r.w.size)
			if q := f.at(p); q != nil {
				d.flat(f.r, q, b[:size])
			}
			b = b[size:]
		}
	}
}
