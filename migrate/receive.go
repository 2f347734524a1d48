package migrate

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"unsafe"
)

// A Filling is state that arrives. Segments says where its bytes go, Finish
// makes the variables hold it.
type Filling struct {
	list     []variable
	readers  []*reader // of the state's variables, in its order
	into     []int     // their places in list
	lengths  []int
	targets  []target // what lies still: segments 1, 2, …
	segments [][]byte // once they were asked for
	done     bool
}

// A target is a flat slice or array that lies still in a variable.
type target struct {
	r      *reader
	p      unsafe.Pointer // in the program; nil if it is read and forgotten
	placed bool           // its segment is the program's memory
}

// Receive readies the variables for the state that manifest describes. Every
// name must be there on both sides, and the types must fit: otherwise the error
// is [ErrMismatch]. It is [ErrMalformed] if these bytes are no manifest. Nothing
// is changed, and no memory is set aside for segments yet: see [Filling.Bytes].
func (v *Vars) Receive(manifest []byte) (*Filling, error) {
	m, err := parseManifest(manifest)
	if err != nil {
		return nil, err
	}
	f := &Filling{list: slices.Clone(v.list), lengths: m.segments}
	x := matcher{m: m, made: make(map[pair]*reader)}
	var statics int64
	for _, w := range m.vars {
		i := slices.IndexFunc(v.list, func(v variable) bool { return v.name == w.name })
		if i < 0 {
			return nil, fmt.Errorf("%w: variable %q, a %s, is in the state and not protected here; protect it before the state is restored", ErrMismatch, w.name, m.typeString(w.typ))
		}
		r, err := x.reader(w.typ, v.list[i].node, "variable "+w.name)
		if err != nil {
			return nil, err
		}
		f.readers, f.into = append(f.readers, r), append(f.into, i)
		statics = min(statics+r.w.statics, huge)
	}
	for i, here := range v.list {
		if !slices.Contains(f.into, i) {
			return nil, fmt.Errorf("%w: variable %q, a %v, is protected here and not in the state", ErrMismatch, here.name, here.node.t)
		}
	}
	if statics > int64(len(m.segments)-1) {
		return nil, fmt.Errorf("%w: %d segments, and at least %d were expected", ErrMalformed, len(m.segments), statics+1)
	}
	for i, r := range f.readers {
		if err := f.still(r, f.list[f.into[i]].ptr); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// still finds the targets in the value at p, in the order of encoder.still.
func (f *Filling) still(r *reader, p unsafe.Pointer) error {
	if r.w.statics == 0 {
		return nil
	}
	if r.w.kind == kStruct {
		for _, field := range r.fields {
			if err := f.still(field.r, field.at(p)); err != nil {
				return err
			}
		}
		return nil
	}
	length := int64(f.lengths[len(f.targets)+1])
	if r.flat && length%r.elem.w.size != 0 || !r.flat && length != r.w.size {
		return fmt.Errorf("%w: segment %d has %d bytes, which is no whole number of elements", ErrMalformed, len(f.targets)+1, length)
	}
	f.targets = append(f.targets, target{r: r, p: p})
	return nil
}

// at is where the field is in a struct at p; nil if it is forgotten.
func (f readField) at(p unsafe.Pointer) unsafe.Pointer {
	if p == nil || f.r.n == nil {
		return nil
	}
	return unsafe.Add(p, f.offset)
}

// Bytes is the length of all segments: about what Segments sets aside. A caller
// that has the manifest from elsewhere asks before it calls Segments.
func (f *Filling) Bytes() int64 {
	var n int64
	for _, l := range f.lengths {
		n += int64(l)
	}
	return n
}

// Segments is where the bytes of each segment are to be put. A large flat array
// in a protected variable, or in a struct in one, is filled where it lies; so is
// a flat slice there that has the right length already and shares its memory
// with no other variable. From the first
// call on the program must leave its variables alone until Finish. If the
// state does not arrive whole, what these hold is undefined and all else is as
// it was. After Finish the segments belong to the program.
func (f *Filling) Segments() [][]byte {
	if f.segments != nil {
		return f.segments
	}
	f.segments = make([][]byte, len(f.lengths))
	var taken []span // what must not be filled as something else
	for _, v := range f.list {
		taken = append(taken, span{from: uintptr(v.ptr), to: uintptr(v.ptr) + v.node.t.Size()})
	}
	for i := range f.targets {
		t, length := &f.targets[i], f.lengths[i+1]
		if t.p == nil || length == 0 {
			continue
		}
		switch p := t.p; {
		case !t.r.flat && t.r.direct:
			f.segments[i+1], t.placed = unsafe.Slice((*byte)(p), length), true
		case t.r.flat && t.r.elem.direct:
			s := reflect.NewAt(t.r.n.t, p).Elem()
			data := s.UnsafePointer()
			own := span{from: uintptr(data), to: uintptr(data) + uintptr(length)}
			overlaps := func(s span) bool { return s.from < own.to && own.from < s.to }
			if int64(s.Len())*t.r.elem.w.size == int64(length) && !slices.ContainsFunc(taken, overlaps) {
				taken = append(taken, own)
				f.segments[i+1], t.placed = unsafe.Slice((*byte)(data), length), true
			}
		}
	}
	for i, length := range f.lengths {
		if f.segments[i] == nil {
			f.segments[i] = aligned(length)
		}
	}
	return f.segments
}

// Memory of alignFrom bytes and more begins at a multiple of hugePage, so that the system can put
// huge pages in its place as a whole.
const (
	hugePage  = 2 << 20
	alignFrom = 2 * hugePage
)

// aligned is memory for values of any flat type.
func aligned(length int) []byte {
	if length == 0 {
		return []byte{}
	}
	room := length
	if length >= alignFrom {
		room += hugePage
	}
	words := make([]complex128, (room+15)/16)
	from := unsafe.Pointer(&words[0])
	if length >= alignFrom {
		from = unsafe.Add(from, -uintptr(from)&(hugePage-1))
	}
	return unsafe.Slice((*byte)(from), length)
}

// Finish decodes the segments, once their bytes are there, and makes all
// variables hold the state. On an error, [ErrMalformed] or [ErrMismatch] for an
// int that does not fit this machine's, no variable is changed but those that
// Segments says were filled already.
func (f *Filling) Finish() error {
	if f.segments == nil || f.done {
		return fmt.Errorf("%w: Finish is called once, after the bytes of all Segments were put there", ErrMalformed)
	}
	f.done = true
	d := decoder{segments: f.segments, rest: parser{b: f.segments[0]}, targets: f.targets, nextDynamic: len(f.targets) + 1}
	made := make([]reflect.Value, len(f.readers))
	for i := range f.readers {
		v := f.list[f.into[i]]
		d.objects = append(d.objects, reflect.NewAt(v.node.t, v.ptr))
	}
	for i, r := range f.readers {
		v := d.objects[i]
		d.name = f.list[f.into[i]].name
		if r.w.kind == kArray && r.direct && r.w.statics == 1 { // it is there
			d.still(r, v.UnsafePointer())
			continue
		}
		made[i] = reflect.New(r.n.t)
		made[i].Elem().Set(v.Elem())
		d.still(r, made[i].UnsafePointer())
	}
	d.follow()
	d.finish()
	if d.err != nil {
		return d.err
	}
	for i := range made {
		if made[i].IsValid() {
			d.objects[i].Elem().Set(made[i].Elem())
		}
	}
	return nil
}

// fitsInt and fitsUint tell whether x fits an int or uint of this machine.
func fitsInt(x int64) bool   { return x >= math.MinInt && x <= math.MaxInt }
func fitsUint(x uint64) bool { return x <= math.MaxUint }
