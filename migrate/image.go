package migrate

import (
	"slices"
)

// An Image is protected state laid out: a manifest, and the segments it
// describes, in order. Segments that are flat memory of the program alias it:
// they change when it does, so they are to be sent or copied before the program
// goes on.
type Image struct {
	Manifest []byte
	Segments [][]byte
}

// large is the number of bytes from which something that is one piece of memory
// gets a segment of its own. It is part of the format.
const large = 4096

// mostDynamics is how many pieces that are met on the way get one: a snapshot has at most 65536 parts, and each is a
// message of a rank that moves. Of those after them only pieces of veryLarge bytes do. It is part of the format, too.
const (
	mostDynamics = 32 << 10
	veryLarge    = 1 << 20
)

// apart tells whether n bytes that are met on the way, after so many that did, get a segment.
func apart(n uint64, dynamics int) bool {
	return n >= large && (dynamics < mostDynamics || n >= veryLarge)
}

// Image lays the state out. To be called at a safe point: nothing may change
// the variables meanwhile. Equal state gives equal bytes. Slices and strings that are flat in
// memory are not copied. The error is [ErrShared] or [ErrValue].
func (v *Vars) Image() (Image, error) {
	e := encoder{list: v.list, rest: make([]byte, 0, v.rest+v.rest/8), seen: make(map[identity]int, v.met),
		taken: make([]span, 0, v.met), next: len(v.list)}
	for i, x := range v.list {
		e.current = i
		e.seen[identity{p: x.ptr, n: pointee, elem: x.node}] = i
		e.occupy(x.ptr, x.node, 1)
	}
	for i, x := range v.list {
		e.current = i
		e.still(x.node, x.ptr)
	}
	e.follow()
	e.apart()
	if e.err != nil {
		return Image{}, e.err
	}
	v.rest, v.met = len(e.rest), len(e.seen)
	m := describe(v.list)
	segments := slices.Concat([][]byte{e.rest}, e.statics, e.dynamics)
	for _, s := range segments {
		m.segments = append(m.segments, len(s))
	}
	return Image{Manifest: m.bytes(), Segments: segments}, nil
}

// Bytes is the length of the manifest and all segments.
func (i Image) Bytes() int64 {
	n := int64(len(i.Manifest))
	for _, s := range i.Segments {
		n += int64(len(s))
	}
	return n
}
