package migrate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"
)

// Encode lays *ptr out as one message, an object. Equal values give equal bytes in
// every process: they hang on no address, on no order of a map and on nothing that
// was laid out before. They belong to the caller, and the first of them is not 0.
//
// What can be protected can travel, but for this. Of structs the exported fields
// do, and embedded structs. Fields that are channels or functions, or point to
// some, are left out; a struct that has fields of which none travels is refused.
// Pointers are followed: what two of them lead to comes twice, and slices that
// overlap are two. Only in types that may lead back to themselves, as the nodes of
// a list do, what is the same stays the same, and the bytes say so; cycles travel.
//
// What a type's own methods lay out must hang on the value alone, too.
//
// The error is [ErrType], which says what cannot travel and where, and is [ErrTag] too if that is
// for a tag, or [ErrValue].
// Several goroutines may call Encode at once, if nothing changes *ptr meanwhile.
func Encode(ptr any) ([]byte, error) {
	p, err := address(ptr)
	if err != nil {
		return nil, err
	}
	s := shapeOf(p.Type().Elem())
	if s.err != nil {
		return nil, s.err
	}
	return s.encode(p.UnsafePointer())
}

// Decode makes *ptr hold what Encode has laid out. Types fit as those of state do:
// see "Newer builds". The error is [ErrMismatch] if another type came than that of
// *ptr, [ErrTag] if *ptr has a tag that there is not, [ErrValue] if what came does not please
// a type's own method, and [ErrMalformed] if b is no object; what *ptr holds is undefined then.
//
// Afterwards nothing in *ptr has memory of b. That may be anybody's bytes: memory is
// set aside for what is in them only, which is a small multiple of their length times
// the size of the largest type that *ptr leads to.
func Decode(b []byte, ptr any) error {
	p, err := address(ptr)
	if err != nil {
		return err
	}
	return shapeOf(p.Type().Elem()).decode(b, p.UnsafePointer())
}

func address(ptr any) (reflect.Value, error) {
	p := reflect.ValueOf(ptr)
	if p.Kind() != reflect.Pointer || p.IsNil() {
		return p, fmt.Errorf("%w: pass the address of the value, not %T", ErrType, ptr)
	}
	return p, nil
}

// A shape is how objects of a type are laid out:
//
//	uvarint   length of the manifest
//	manifest  of one variable and, as nothing lies still, the rest and what was met on the way
//	segments
type shape struct {
	t   reflect.Type
	err error // objects of the type do not travel

	// Not set if there is an error.
	node  *node
	head  []byte  // of the manifest
	r     *reader // where that head came
	nodes int
	loops bool // something may be met again
}

// objectName is the name that an object has as a variable.
const objectName = "object"

// shapes are the *shape of each reflect.Type that was used. They never change.
var shapes sync.Map

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, newShape(t, false))
	return s.(*shape)
}

func newShape(t reflect.Type, foreign bool) *shape {
	ts := types{object: true, foreign: foreign}
	n, err := ts.add(t, "")
	if err != nil {
		return &shape{t: t, err: fmt.Errorf("%w: %w", ErrType, err)}
	}
	d, numbers := &manifest{}, make(map[*node]int)
	d.vars = []wireVar{{objectName, d.number(n, numbers)}}
	if len(d.types) > maxTypes {
		return &shape{t: t, err: fmt.Errorf("%w: %v leads to more than %d types", ErrType, t, maxTypes)}
	}
	s := &shape{t: t, node: n, head: d.head(), nodes: len(numbers)}
	m, err := parseManifest(appendLengths(slices.Clone(s.head), []int{0}))
	if err == nil {
		m.loops()
		s.r, err = s.match(m, 0)
	}
	if err != nil {
		panic(fmt.Sprintf("migrate: a type does not fit itself: %v: %v", t, err))
	}
	for n, i := range numbers {
		n.same = m.types[i].same
		s.loops = s.loops || n.same
	}
	return s
}

// match is the reader for objects whose manifest is m, and has that length.
func (s *shape) match(m *manifest, length int) (*reader, error) {
	if errors.Is(s.err, ErrTag) {
		return nil, s.err
	}
	if s.err != nil { // nobody sends such objects
		return nil, &stranger{m.typeString(m.vars[0].typ), s.t, nil}
	}
	x := matcher{m: m, made: make(map[pair]*reader), most: len(m.types) + length + s.nodes}
	name := ""
	if s.t.Kind() == reflect.Struct {
		name = s.t.Name()
	}
	r, err := x.reader(m.vars[0].typ, s.node, name)
	if at, ok := err.(*misfit); ok {
		return nil, &stranger{m.typeString(m.vars[0].typ), s.t, at}
	}
	return r, err
}

// encoders are there to be used again, with the memory that they have.
var encoders = sync.Pool{New: func() any { return &encoder{seen: make(map[identity]int)} }}

func (s *shape) encode(p unsafe.Pointer) ([]byte, error) {
	e := encoders.Get().(*encoder)
	b, err := e.object(s, p)
	e.release() // not if a type's own method panics: who knows what it holds then
	return b, err
}

func (e *encoder) object(s *shape, p unsafe.Pointer) ([]byte, error) {
	if s.loops {
		e.seen[identity{p, pointee, s.node}] = 0
	}
	e.next = 1
	e.value(s.node, p)
	e.follow()
	if e.err != nil {
		return nil, e.err
	}
	lengths := make([]int, 1, 8)
	lengths[0] = len(e.rest)
	n := len(s.head) + len(e.rest)
	for _, d := range e.dynamics {
		lengths = append(lengths, len(d))
		n += len(d)
	}
	tail := appendLengths(make([]byte, 0, 64), lengths)
	b := make([]byte, 0, binary.MaxVarintLen64+n+len(tail))
	b = binary.AppendUvarint(b, uint64(len(s.head)+len(tail)))
	b = append(append(append(b, s.head...), tail...), e.rest...)
	for _, d := range e.dynamics {
		b = append(b, d...)
	}
	return b, nil
}

// release gives back an encoder of an object. It keeps nothing of the object.
func (e *encoder) release() {
	if max(cap(e.rest), cap(e.keys)) > 1<<20 || max(cap(e.dynamics), cap(e.queue), cap(e.batch), cap(e.entries), cap(e.order), len(e.seen)) > 1<<10 {
		return // it is for the collector
	}
	clear(e.seen)
	clear(e.dynamics)
	clear(e.queue[:cap(e.queue)])
	clear(e.batch[:cap(e.batch)])
	*e = encoder{rest: e.rest[:0], dynamics: e.dynamics[:0], keys: e.keys[:0], entries: e.entries[:0], order: e.order[:0],
		seen: e.seen, queue: e.queue[:0], batch: e.batch[:0]}
	encoders.Put(e)
}

func (s *shape) decode(b []byte, p unsafe.Pointer) error {
	q := parser{b: b}
	r, lengths, err := s.open(q.take(q.count(1)))
	if err != nil {
		return err
	}
	segments := make([][]byte, 0, len(lengths))
	for i, n := range lengths {
		if i > 0 && n < large {
			q.fail()
		}
		segments = append(segments, q.take(n))
	}
	if len(q.b) > 0 {
		q.fail()
	}
	if q.err != nil {
		return q.err
	}
	d := decoder{object: true, segments: segments, nextDynamic: 1, rest: parser{b: segments[0]}, objects: []reflect.Value{reflect.NewAt(s.t, p)}}
	d.value(r, p)
	d.follow()
	d.finish()
	return d.err
}

// open reads the manifest of an object.
func (s *shape) open(manifest []byte) (*reader, []int, error) {
	if own, ok := bytes.CutPrefix(manifest, s.head); ok && s.err == nil {
		p := parser{b: own}
		lengths := p.lengths()
		return s.r, lengths, p.err
	}
	m, err := parseManifest(manifest)
	if err != nil {
		return nil, nil, err
	}
	if len(m.vars) != 1 || m.vars[0].name != objectName {
		return nil, nil, fmt.Errorf("%w: it is no object", ErrMalformed)
	}
	m.loops()
	r, err := s.match(m, len(manifest))
	return r, m.segments, err
}

// A stranger is an object of a type that does not fit the one that was asked for.
type stranger struct {
	came  string
	asked reflect.Type
	at    *misfit // where they part; nil if they do as a whole
}

func (s *stranger) Unwrap() error { return ErrMismatch }

func (s *stranger) Error() string {
	whole := fmt.Sprintf("%s came, %v was asked for", s.came, s.asked)
	switch at := s.at; {
	case at != nil && at.field != "":
		return fmt.Sprintf("%s; %s.%s, a %s, has no field here that travels; %s", whole, at.path, at.field, at.there, at.loss())
	case at != nil && strings.Contains(at.path, "."):
		return fmt.Sprintf("%s; %s is %s there and %v here", whole, at.path, at.there, at.here)
	}
	return whole
}

// A fault is an error about an object. Its text does without the kind's, as that would
// tell of a state.
type fault struct {
	kind error
	text string
}

func (f *fault) Unwrap() error { return f.kind }
func (f *fault) Error() string { return f.text }

// says is the error about a variable, or about an object, which has no name.
func says(kind error, variable, text string) error {
	if variable == "" {
		return &fault{kind, text}
	}
	return fmt.Errorf("%w: variable %s: %s", kind, variable, text)
}

// sent tells whether a field of a struct travels in an object: if it is exported, and no
// channel or function, as with encoding/gob. So does an embedded struct with such
// fields, or its own way to lay itself out, though its type is not exported: its
// fields are those of the whole. gob would lose them.
func sent(f reflect.StructField) bool { return sentWithin(f, nil) }

// sentWithin is sent, where a field is embedded in all of within.
func sentWithin(f reflect.StructField, within []reflect.Type) bool {
	t := f.Type
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Chan || t.Kind() == reflect.Func || f.Tag.Get("mpiv") == "-" || isLock(f.Type):
		return false
	case f.IsExported():
		return true
	case !f.Anonymous || t.Kind() != reflect.Struct || slices.Contains(within, t):
		return false
	}
	if (&node{t: t}).opaque() {
		return true
	}
	within = append(within, t)
	for inner := range t.Fields() {
		if sentWithin(inner, within) {
			return true
		}
	}
	return false
}

// loops leaves same to those types alone that are in a cycle of types. All others
// are followed to an end without it. After Tarjan, "Depth-First Search and Linear Graph
// Algorithms" (SIAM J. Comput. 1972).
func (m *manifest) loops() {
	v := visitor{m: m, met: make([]int, len(m.types)), low: make([]int, len(m.types))}
	for i := range m.types {
		if v.met[i] == 0 {
			v.visit(i)
		}
	}
}

type visitor struct {
	m        *manifest
	met, low []int // by type: when, from 1 on, and the first that is reached from it; 0, done
	clock    int
	path     []int // types whose cycle is not known yet
}

func (v *visitor) visit(i int) {
	from := len(v.path)
	v.clock++
	v.met[i], v.low[i] = v.clock, v.clock
	v.path = append(v.path, i)
	self := false
	v.m.leads(i, func(j int) {
		self = self || i == j
		if v.met[j] == 0 {
			v.visit(j)
		}
		if v.low[j] > 0 { // not done
			v.low[i] = min(v.low[i], v.low[j])
		}
	})
	if v.low[i] < v.met[i] {
		return
	}
	cycle := v.path[from:]
	for _, j := range cycle {
		v.low[j] = 0
		t := &v.m.types[j]
		t.same = t.same && (len(cycle) > 1 || self)
	}
	v.path = v.path[:from]
}

// leads calls to for each type that a value of type i has in it or points to.
func (m *manifest) leads(i int, to func(int)) {
	switch t := &m.types[i]; t.kind {
	case kArray:
		if t.len > 0 {
			to(t.elem)
		}
	case kSlice, kPointer:
		to(t.elem)
	case kMap:
		to(t.key)
		to(t.elem)
	case kStruct:
		for _, f := range t.fields {
			to(f.typ)
		}
	}
}
