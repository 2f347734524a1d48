package migrate

import (
	"encoding"
	"encoding/gob"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unsafe"
)

// A kind is how a type travels. The values are part of the format.
type kind uint8

const (
	kBool kind = iota + 1
	kInt
	kInt8
	kInt16
	kInt32
	kInt64
	kUint
	kUint8
	kUint16
	kUint32
	kUint64
	kFloat32
	kFloat64
	kComplex64
	kComplex128
	kString
	kArray
	kSlice
	kMap
	kStruct
	kPointer
	kOpaque // as the type's own methods say
	kindEnd
)

// widths are the bytes of a value on the wire, for the kinds before kString.
var widths = [...]int{kBool: 1, kInt: 8, kInt8: 1, kInt16: 2, kInt32: 4, kInt64: 8, kUint: 8, kUint8: 1,
	kUint16: 2, kUint32: 4, kUint64: 8, kFloat32: 4, kFloat64: 8, kComplex64: 8, kComplex128: 16}

var kindNames = [...]string{kBool: "bool", kInt: "int", kInt8: "int8", kInt16: "int16", kInt32: "int32",
	kInt64: "int64", kUint: "uint", kUint8: "uint8", kUint16: "uint16", kUint32: "uint32", kUint64: "uint64",
	kFloat32: "float32", kFloat64: "float64", kComplex64: "complex64", kComplex128: "complex128", kString: "string"}

var kindOf = map[reflect.Kind]kind{
	reflect.Bool: kBool, reflect.Int: kInt, reflect.Int8: kInt8, reflect.Int16: kInt16, reflect.Int32: kInt32,
	reflect.Int64: kInt64, reflect.Uint: kUint, reflect.Uint8: kUint8, reflect.Uint16: kUint16,
	reflect.Uint32: kUint32, reflect.Uint64: kUint64, reflect.Float32: kFloat32, reflect.Float64: kFloat64,
	reflect.Complex64: kComplex64, reflect.Complex128: kComplex128, reflect.String: kString,
	reflect.Array: kArray, reflect.Slice: kSlice, reflect.Map: kMap, reflect.Struct: kStruct,
	reflect.Pointer: kPointer,
}

// A node is a type of this program, as far as it travels.
type node struct {
	t         reflect.Type
	kind      kind
	elem, key *node
	fields    []field  // those that travel
	drop      []string // names of fields that may be lost
	gob       bool     // opaque, by GobEncode
	same      bool     // slices, maps, pointers: what is the same stays the same

	wire  int  // bytes on the wire, if always the same; otherwise -1
	plain bool // memory is what travels
}

type field struct {
	name   string
	offset uintptr
	node   *node
}

// littleEndian and the size of an int decide whether memory is what travels.
var littleEndian = *(*byte)(unsafe.Pointer(&[]uint16{1}[0])) == 1

// types are the nodes of the types seen, recursive ones included.
type types struct {
	nodes   map[reflect.Type]*node
	added   []reflect.Type // since the last call of add
	object  bool           // they are for messages, not for state
	foreign bool           // for tests: as where no memory is what travels
}

// add is the node of t, which is called name where it has no better name.
func (ts *types) add(t reflect.Type, name string) (*node, error) {
	if ts.nodes == nil {
		ts.nodes = make(map[reflect.Type]*node)
	}
	if t.Kind() == reflect.Struct && t.Name() != "" {
		name = t.Name()
	}
	ts.added = ts.added[:0]
	n, err := ts.node(t, name)
	for _, t := range ts.added { // now that every type is whole
		if n := ts.nodes[t]; err == nil && n.kind == kMap && !n.key.keyable() {
			err = ts.refused(name, t, "keys that hold pointers have no order that could travel")
		}
	}
	if err != nil { // what was being built is not whole
		for _, t := range ts.added {
			delete(ts.nodes, t)
		}
		return nil, err
	}
	for _, t := range ts.added {
		ts.nodes[t].layout(ts.foreign)
	}
	for _, t := range ts.added {
		if n := ts.nodes[t]; ts.object && n.kind == kSlice && n.elem.wire == 0 && n.elem.t.Size() > 0 {
			return nil, ts.refused(name, t, "") // their number would be all that comes
		}
	}
	return n, nil
}

func (ts *types) node(t reflect.Type, path string) (*node, error) {
	if n := ts.nodes[t]; n != nil {
		return n, nil
	}
	k, ok := kindOf[t.Kind()]
	if !ok {
		return nil, ts.refused(path, t, "keep it out of the state, or tag its field `mpiv:\"-\"`")
	}
	n := &node{t: t, kind: k, wire: unknown, same: !ts.object}
	ts.nodes[t] = n
	ts.added = append(ts.added, t)
	if k != kPointer && n.opaque() {
		n.kind = kOpaque
		return n, nil
	}
	var err error
	switch k {
	case kArray, kSlice:
		n.elem, err = ts.node(t.Elem(), path+"[]")
	case kPointer:
		n.elem, err = ts.node(t.Elem(), path)
	case kMap:
		if n.key, err = ts.node(t.Key(), path+"[key]"); err == nil {
			n.elem, err = ts.node(t.Elem(), path+"[]")
		}
	case kStruct:
		err = ts.structure(n, path)
	}
	return n, err
}

func (ts *types) structure(n *node, path string) error {
	if isLock(n.t) {
		return nil
	}
	if n.t.PkgPath() == "sync" {
		return ts.refused(path, n.t, "tag its field `mpiv:\"-\"`, and make it anew before the state is restored")
	}
	for f := range n.t.Fields() { // before anything else is refused
		tag, tagged := f.Tag.Lookup("mpiv")
		if drops := strings.HasPrefix(tag, "drop="); tagged && tag != "-" && !(drops && f.Name == "_") {
			return fmt.Errorf("%w: field %s.%s has `mpiv:%q`; there is `mpiv:\"-\"`, and `mpiv:\"drop=name,name\"` on a field called _", ErrTag, path, f.Name, tag)
		}
	}
	for f := range n.t.Fields() {
		tag, tagged := f.Tag.Lookup("mpiv")
		names, drops := strings.CutPrefix(tag, "drop=")
		switch {
		case drops: // it is called _
			n.drop = append(n.drop, strings.Split(names, ",")...)
			continue
		case tagged, f.Name == "_", isLock(f.Type), ts.object && !sent(f):
			continue
		}
		m, err := ts.node(f.Type, path+"."+f.Name)
		if err != nil {
			return err
		}
		n.fields = append(n.fields, field{f.Name, f.Offset, m})
	}
	if ts.object && len(n.fields) == 0 && n.t.NumField() > 0 {
		return ts.refused(path, n.t, "")
	}
	return nil
}

// refused is the error about t, which does not travel, and what to do about it in state.
func (ts *types) refused(path string, t reflect.Type, advice string) error {
	if !ts.object {
		return fmt.Errorf("%s is of type %v; %s", path, t, advice)
	}
	what := t.String()
	if t.Kind() == reflect.Struct {
		what += ", which has no exported field that does"
	}
	if path == "" || path == t.Name() {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %s", path, what)
}

func isLock(t reflect.Type) bool {
	return t.PkgPath() == "sync" && (t.Name() == "Mutex" || t.Name() == "RWMutex")
}

var (
	binaryOut = reflect.TypeFor[encoding.BinaryMarshaler]()
	binaryIn  = reflect.TypeFor[encoding.BinaryUnmarshaler]()
	gobOut    = reflect.TypeFor[gob.GobEncoder]()
	gobIn     = reflect.TypeFor[gob.GobDecoder]()
)

// opaque tells whether values of n's type lay themselves out, and sets n.gob.
// Methods that come from an embedded field would leave the other fields out.
func (n *node) opaque() bool {
	if n.own(binaryOut, binaryIn) {
		return true
	}
	n.gob = n.own(gobOut, gobIn)
	return n.gob
}

func (n *node) own(out, in reflect.Type) bool {
	has := func(t reflect.Type) bool {
		p := reflect.PointerTo(t)
		return p.Implements(out) && p.Implements(in)
	}
	if !has(n.t) {
		return false
	}
	if n.t.Kind() == reflect.Struct {
		for f := range n.t.Fields() {
			if f.Anonymous && (f.Type.Implements(out) || reflect.PointerTo(f.Type).Implements(out) || reflect.PointerTo(f.Type).Implements(in)) {
				return false
			}
		}
	}
	return true
}

func (n *node) keyable() bool {
	switch n.kind {
	case kSlice, kMap, kPointer:
		return false
	case kArray:
		return n.elem.keyable()
	case kStruct:
		for _, f := range n.fields {
			if !f.node.keyable() {
				return false
			}
		}
	}
	return true
}

const unknown = -2 // in node.wire, before layout

// layout fills in wire and plain.
func (n *node) layout(foreign bool) {
	if n.wire != unknown {
		return
	}
	n.wire = -1
	size := int(n.t.Size())
	switch {
	case n.kind < kString:
		n.wire = widths[n.kind]
		n.plain = n.wire == size && (littleEndian && !foreign || n.wire == 1)
	case n.kind == kArray:
		n.elem.layout(foreign)
		n.plain = n.elem.plain
		if n.elem.wire >= 0 {
			n.wire = n.elem.wire * n.t.Len()
		} else if n.t.Len() == 0 {
			n.wire = 0
		}
	case n.kind == kStruct:
		n.wire, n.plain = 0, true
		for _, f := range n.fields {
			f.node.layout(foreign)
			if f.node.wire < 0 {
				n.wire, n.plain = -1, false
				return
			}
			n.plain = n.plain && f.node.plain && int(f.offset) == n.wire
			n.wire += f.node.wire
		}
		n.plain = n.plain && n.wire == size
	}
}

// flat tells whether n is a slice of elements that have one size on the wire.
func (n *node) flat() bool { return n.kind == kSlice && n.elem.wire > 0 }
