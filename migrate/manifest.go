package migrate

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
)

// A manifest is what must be known of an image before its segments come. Of
// each there is one way to write it.
type manifest struct {
	types    []wireType
	vars     []wireVar
	segments []int // lengths: the rest, then what lies still, then what was met on the way
}

type wireVar struct {
	name string
	typ  int
}

// A wireType is a type of the program that laid the state out.
type wireType struct {
	kind      kind
	name      string // of structs, to tell people; of opaque types, to compare
	len       uint64 // of arrays
	elem, key int
	fields    []wireVar

	// Derived.
	size    int64 // bytes of each value, or -1
	min     int64 // bytes that each value takes of the rest at least
	statics int64 // segments in a value that lies still
	state   uint8 // of measure
	fix     uint8 // of fixed
	same    bool  // slices, maps, pointers: what is the same stays the same
}

const (
	magic    = "mpiS"
	version  = 1
	maxTypes = 1 << 12
	huge     = math.MaxInt64 >> 2 // sums and products end here
)

func (m *manifest) bytes() []byte { return appendLengths(m.head(), m.segments) }

// head is the manifest before the lengths of the segments.
func (m *manifest) head() []byte {
	b := binary.AppendUvarint([]byte(magic), version)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	num := func(n int) { b = binary.AppendUvarint(b, uint64(n)) }
	num(len(m.types))
	for _, t := range m.types {
		b = append(b, byte(t.kind))
		switch t.kind {
		case kArray:
			b = binary.AppendUvarint(b, t.len)
			num(t.elem)
		case kSlice, kPointer:
			num(t.elem)
		case kMap:
			num(t.key)
			num(t.elem)
		case kStruct:
			str(t.name)
			num(len(t.fields))
			for _, f := range t.fields {
				str(f.name)
				num(f.typ)
			}
		case kOpaque:
			str(t.name)
		}
	}
	num(len(m.vars))
	for _, v := range m.vars {
		str(v.name)
		num(v.typ)
	}
	return b
}

func appendLengths(b []byte, lengths []int) []byte {
	b = binary.AppendUvarint(b, uint64(len(lengths)))
	for _, n := range lengths {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// describe is the manifest of list, without segments.
func describe(list []variable) *manifest {
	m := &manifest{}
	numbers := make(map[*node]int)
	for _, v := range list {
		m.vars = append(m.vars, wireVar{v.name, m.number(v.node, numbers)})
	}
	return m
}

func (m *manifest) number(n *node, numbers map[*node]int) int {
	if i, ok := numbers[n]; ok {
		return i
	}
	i := len(m.types)
	numbers[n] = i
	m.types = append(m.types, wireType{kind: n.kind})
	t := wireType{kind: n.kind}
	switch n.kind {
	case kArray:
		t.len = uint64(n.t.Len())
		t.elem = m.number(n.elem, numbers)
	case kSlice, kPointer:
		t.elem = m.number(n.elem, numbers)
	case kMap:
		t.key = m.number(n.key, numbers)
		t.elem = m.number(n.elem, numbers)
	case kStruct:
		t.name = n.t.Name()
		for _, f := range n.fields {
			t.fields = append(t.fields, wireVar{f.name, m.number(f.node, numbers)})
		}
	case kOpaque:
		t.name = n.t.String()
	}
	m.types[i] = t
	return i
}

// parseManifest reads what manifest.bytes wrote, and nothing else.
func parseManifest(b []byte) (*manifest, error) {
	p := parser{b: b}
	if string(p.take(len(magic))) != magic {
		return nil, fmt.Errorf("%w: it does not begin as a manifest", ErrMalformed)
	}
	if v := p.uvarint(); v != version && p.err == nil {
		return nil, fmt.Errorf("%w: it has version %d of the format, and this program reads %d", ErrMalformed, v, version)
	}
	m := &manifest{}
	n := p.count(1)
	if n > maxTypes {
		return nil, fmt.Errorf("%w: %d types", ErrMalformed, n)
	}
	m.types = make([]wireType, n)
	for i := range m.types {
		m.types[i] = p.wireType(len(m.types))
	}
	m.vars = p.named(len(m.types))
	m.segments = p.lengths()
	for i := range m.types {
		if p.err == nil && !m.measure(i) {
			p.fail()
		}
	}
	if p.err != nil {
		return nil, p.err
	}
	return m, nil
}

// lengths reads those of the segments, which end a manifest.
func (p *parser) lengths() []int {
	list := make([]int, p.count(1))
	var total int64
	for i := range list {
		n := p.uvarint()
		if n > math.MaxInt>>1 || int64(n) > huge-total {
			p.fail()
			break
		}
		list[i] = int(n)
		total += int64(n)
	}
	if len(p.b) > 0 || len(list) == 0 {
		p.fail()
	}
	return list
}

func (p *parser) wireType(types int) (t wireType) {
	if b := p.take(1); len(b) == 1 {
		t.kind = kind(b[0])
	}
	switch t.kind {
	case kArray:
		t.len = p.uvarint()
		t.elem = p.below(types)
	case kSlice, kPointer:
		t.elem, t.same = p.below(types), true
	case kMap:
		t.key = p.below(types)
		t.elem, t.same = p.below(types), true
	case kStruct:
		t.name = p.str()
		t.fields = p.named(types)
	case kOpaque:
		t.name = p.str()
	}
	if t.kind == 0 || t.kind >= kindEnd {
		p.fail()
	}
	return t
}

// named reads names, each once, and their types.
func (p *parser) named(types int) []wireVar {
	list := make([]wireVar, p.count(3))
	seen := make(map[string]bool, len(list))
	for i := range list {
		list[i] = wireVar{p.str(), p.below(types)}
		if name := list[i].name; name == "" || seen[name] {
			p.fail()
			return nil
		}
		seen[list[i].name] = true
	}
	return list
}

// measure fills in what is derived for type i; false if it contains itself.
func (m *manifest) measure(i int) bool {
	const under, done = 1, 2
	t := &m.types[i]
	if t.state != 0 {
		return t.state == done
	}
	t.state = under
	ok := true
	switch {
	case t.kind < kString:
		t.size = int64(widths[t.kind])
		t.min = t.size
	case t.kind == kArray:
		ok = m.measure(t.elem)
		e := &m.types[t.elem]
		t.min = times(e.min, t.len)
		t.size = -1
		if e.size >= 0 || t.len == 0 {
			t.size = t.min
		}
		if t.size >= large {
			t.statics = 1
		}
	case t.kind == kStruct:
		for _, f := range t.fields {
			ok = ok && m.measure(f.typ)
			e := &m.types[f.typ]
			t.min = min(t.min+e.min, huge)
			t.statics = min(t.statics+e.statics, huge)
			if e.size < 0 || t.size < 0 {
				t.size = -1
			} else {
				t.size = t.min
			}
		}
	case t.kind == kSlice && m.flatElem(t.elem):
		t.size, t.min, t.statics = -1, 1, 1
	default:
		t.size, t.min = -1, 1
	}
	t.state = done
	return ok
}

// flatElem tells whether type i has one size, which is not 0. It looks through
// arrays and structs only, and so ends wherever measure does.
func (m *manifest) flatElem(i int) bool {
	// A slice may be of a type that is being measured, and which then holds a
	// slice: that has no fixed size.
	return m.fixed(i) && m.measure(i) && m.types[i].size > 0
}

func (m *manifest) fixed(i int) bool {
	const yes, no = 1, 2
	t := &m.types[i]
	if t.fix != 0 {
		return t.fix == yes
	}
	t.fix = yes // what contains itself is refused by measure
	is := true
	switch {
	case t.kind == kArray:
		is = t.len == 0 || m.fixed(t.elem)
	case t.kind == kStruct:
		for _, f := range t.fields {
			is = is && m.fixed(f.typ)
		}
	default:
		is = t.kind < kString
	}
	if !is {
		t.fix = no
	}
	return is
}

func times(a int64, n uint64) int64 {
	if a == 0 || n == 0 {
		return 0
	}
	if n > uint64(huge/a) {
		return huge
	}
	return a * int64(n)
}

// flat is node.flat of a wireType.
func (m *manifest) flat(t *wireType) bool {
	return t.kind == kSlice && m.types[t.elem].size > 0
}

// typeString is type i for people.
func (m *manifest) typeString(i int) string {
	s := ""
	for range 16 { // deeper is too long to read
		t := &m.types[i]
		switch t.kind {
		case kArray:
			s += "[" + strconv.FormatUint(t.len, 10) + "]"
		case kSlice:
			s += "[]"
		case kPointer:
			s += "*"
		case kMap:
			key := &m.types[t.key]
			if key.kind <= kString {
				s += "map[" + kindNames[key.kind] + "]"
			} else {
				s += "map[" + key.name + "]"
			}
		case kStruct:
			if t.name == "" {
				return s + "struct"
			}
			return s + t.name
		case kOpaque:
			return s + t.name
		default:
			return s + kindNames[t.kind]
		}
		i = t.elem
	}
	return s + "…"
}

// A parser reads bytes that may be anybody's. After an error all it reads is
// empty.
type parser struct {
	b   []byte
	err error
}

func (p *parser) fail() {
	if p.err == nil {
		p.err = fmt.Errorf("%w: it ends early or contradicts itself", ErrMalformed)
	}
	p.b = nil
}

// take is the next n bytes, or nil.
func (p *parser) take(n int) []byte {
	if n < 0 || n > len(p.b) {
		p.fail()
		return nil
	}
	b := p.b[:n:n]
	p.b = p.b[n:]
	return b
}

func (p *parser) uvarint() uint64 {
	x, n := binary.Uvarint(p.b)
	if n <= 0 || n > 1 && p.b[n-1] == 0 { // a shorter way to write it
		p.fail()
		return 0
	}
	p.b = p.b[n:]
	return x
}

// count is a number of things that take so many bytes or more each.
func (p *parser) count(each int) int {
	n := p.uvarint()
	if n > uint64(len(p.b)/each) {
		p.fail()
		return 0
	}
	return int(n)
}

func (p *parser) below(n int) int {
	i := p.uvarint()
	if i >= uint64(n) {
		p.fail()
		return 0
	}
	return int(i)
}

func (p *parser) str() string { return string(p.take(p.count(1))) }
