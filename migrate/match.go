package migrate

import (
	"fmt"
	"reflect"
	"slices"
)

// A reader takes values of a type of the state into a type of this program.
type reader struct {
	w         *wireType
	n         *node // nil: the value is read and forgotten
	elem, key *reader
	fields    []readField

	flat   bool // node.flat, on the wire
	direct bool // memory is what travels
	bools  bool // it is all bools, which have two values out of 256
}

type readField struct {
	r      *reader
	offset uintptr
}

// A matcher finds readers. Where there is none for types that do not fit each
// other, the error is a *misfit.
type matcher struct {
	m    *manifest
	made map[pair]*reader
	most int // readers that may be made; 0: any number
}

// A misfit is where a type that came and a type of this program part.
type misfit struct {
	path  string
	there string // the type that came
	here  reflect.Type
	field string // came, and here has no such field
}

func (m *misfit) Unwrap() error { return ErrMismatch }

// Error speaks of state.
func (m *misfit) Error() string {
	if m.field == "" {
		return fmt.Sprintf("%v: %s is %s in the state and %v here", ErrMismatch, m.path, m.there, m.here)
	}
	return fmt.Sprintf("%v: %s.%s, a %s, is in the state and %v has no such field that travels; %s", ErrMismatch, m.path, m.field, m.there, m.here, m.loss())
}

func (m *misfit) loss() string {
	return fmt.Sprintf("if it may be lost, add a field: _ struct{} `mpiv:\"drop=%s\"`", m.field)
}

type pair struct {
	w int
	n *node
}

// reader is that for type w of the state and the node n; path is where that is.
func (x *matcher) reader(w int, n *node, path string) (*reader, error) {
	if r := x.made[pair{w, n}]; r != nil {
		return r, nil
	}
	if x.most > 0 && len(x.made) == x.most {
		return nil, fmt.Errorf("%w: its types fit in too many ways", ErrMalformed)
	}
	t := &x.m.types[w]
	r := &reader{w: t, n: n, flat: x.m.flat(t)}
	x.made[pair{w, n}] = r
	if n != nil && (t.kind != n.kind || t.kind == kArray && t.len != uint64(n.t.Len()) || t.kind == kOpaque && t.name != n.t.String()) {
		return nil, &misfit{path: path, there: x.m.typeString(w), here: n.t}
	}
	var elem, key *node
	if n != nil {
		elem, key = n.elem, n.key
	}
	var err error
	switch t.kind {
	case kArray, kSlice, kPointer:
		r.elem, err = x.reader(t.elem, elem, path+at(t.kind))
	case kMap:
		if r.key, err = x.reader(t.key, key, path+"[key]"); err == nil {
			r.elem, err = x.reader(t.elem, elem, path+"[]")
		}
	case kStruct:
		err = x.fields(r, path)
	}
	if err != nil {
		return nil, err
	}
	if n != nil && n.wire >= 0 {
		r.settle()
	}
	return r, nil
}

func at(k kind) string {
	if k == kPointer {
		return ""
	}
	return "[]"
}

func (x *matcher) fields(r *reader, path string) error {
	for _, wf := range r.w.fields {
		var f field
		if r.n != nil {
			i := slices.IndexFunc(r.n.fields, func(f field) bool { return f.name == wf.name })
			if i >= 0 {
				f = r.n.fields[i]
			} else if !slices.Contains(r.n.drop, wf.name) {
				return &misfit{path: path, there: x.m.typeString(wf.typ), here: r.n.t, field: wf.name}
			}
		}
		sub, err := x.reader(wf.typ, f.node, path+"."+wf.name)
		if err != nil {
			return err
		}
		r.fields = append(r.fields, readField{sub, f.offset})
	}
	return nil
}

// settle decides whether a value of one size is read by copying it.
func (r *reader) settle() {
	n := r.n
	r.bools = n.kind == kBool || n.kind == kArray && r.elem.bools
	r.direct = n.plain && r.w.size == int64(n.wire)
	switch n.kind {
	case kArray:
		r.direct = r.direct && r.elem.direct
	case kStruct:
		for i, f := range r.fields {
			r.direct = r.direct && f.r.direct && !f.r.bools && i < len(n.fields) && f.offset == n.fields[i].offset
		}
	}
}
