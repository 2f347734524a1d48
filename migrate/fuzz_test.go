//lint:file-ignore U1000 fields are set and read by reflection

package migrate

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

type fuzzed struct {
	_     struct{} `mpiv:"drop=gone"`
	n     int
	bools []bool
	on    bool
	f     []float64
	pad   []padded
	big   [520]int64
	text  []string
	rows  [][]uint16
	m     map[string]*fuzzed
	keys  map[point][2]int8
	next  *fuzzed
	kids  []fuzzed
	self  nested
}

// FuzzManifest: what parses prints as it was.
func FuzzManifest(f *testing.F) {
	for _, c := range values {
		i, err := protect(f, c.ptr).Image()
		require.NoError(f, err)
		f.Add(i.Manifest)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseManifest(b)
		if err == nil {
			require.Equal(t, b, m.bytes())
			for i := range m.types {
				_ = m.typeString(i)
			}
		}
	})
}

// FuzzReceive: whatever the segments hold is refused or is the state of
// variables that are laid out as it was; under any manifest nothing panics.
func FuzzReceive(f *testing.F) {
	p := &fuzzed{n: 1, next: nil}
	x := fuzzed{bools: []bool{true}, f: ramp(2), pad: make([]padded, 2), text: []string{"a"}, rows: [][]uint16{{1}, nil}, m: map[string]*fuzzed{"a": p, "b": p},
		keys: map[point][2]int8{{1, 2}: {3}}, next: p, kids: []fuzzed{{on: true}}, self: nested{nil, {}}}
	i, err := protect(f, &x).Image()
	require.NoError(f, err)
	type older struct {
		kids []fuzzed
		gone map[string][]*fuzzed
		m    map[string]*fuzzed
		f    []float64
	}
	old, err := protect(f, &older{kids: x.kids, gone: map[string][]*fuzzed{"a": {p, nil}}, f: ramp(3)}).Image()
	require.NoError(f, err)
	f.Add(i.Manifest, slices.Concat(i.Segments...))
	f.Add(i.Manifest, slices.Repeat([]byte{1}, 6000))
	f.Add(old.Manifest, slices.Concat(old.Segments...))
	f.Fuzz(func(t *testing.T, manifest, segments []byte) {
		var y fuzzed
		v := protect(t, &y)
		fill, err := v.Receive(manifest)
		if err != nil || fill.Bytes() > 1<<20 {
			fill, err = v.Receive(resized(t, i.Manifest, len(segments)))
			require.NoError(t, err)
		}
		var all [][]byte
		for _, s := range fill.Segments() {
			segments = segments[copy(s, segments):]
			all = append(all, slices.Clone(s))
		}
		if fill.Finish() != nil {
			return
		}
		own, err := v.Image()
		require.NoError(t, err)
		m, err := parseManifest(own.Manifest)
		require.NoError(t, err)
		theirs, err := parseManifest(manifest)
		if err == nil && fmt.Sprint(m.types) != fmt.Sprint(theirs.types) {
			return // another build's
		}
		require.Equal(t, all, own.Segments)
	})
}

type Fuzzed struct {
	_     struct{} `mpiv:"drop=Gone"`
	N     int
	Bools []bool
	On    bool
	F     []float64
	Pad   []Padded
	Big   [520]int64
	Text  []string
	Rows  [][]uint16
	M     map[string]*Fuzzed
	Keys  map[Place][2]int8
	At    *Place
	Ats   []*[]*Place
	Next  *Fuzzed
	Kids  []Fuzzed
	None  []struct{}
}

// FuzzDecode: whatever the bytes are, or those behind a manifest, Decode does not panic
// and sets aside no more than hangs on their number. What it takes is laid out as it was.
func FuzzDecode(f *testing.F) {
	encode := func(t testing.TB, ptr any) []byte {
		b, err := Encode(ptr)
		require.NoError(t, err)
		return b
	}
	p := &Fuzzed{N: 1}
	x := Fuzzed{Bools: []bool{true}, F: ramp(2), Pad: make([]Padded, 2), Text: []string{"a"}, Rows: [][]uint16{{1}, nil}, M: map[string]*Fuzzed{"a": p, "b": p},
		Keys: map[Place][2]int8{{1, 2}: {3}}, At: &Place{}, Ats: []*[]*Place{{nil, {}}}, Next: p, Kids: []Fuzzed{{On: true}}, None: make([]struct{}, 3)}
	type older struct {
		Kids []Fuzzed
		Gone map[string][]*Fuzzed
		M    map[string]*Fuzzed
		F    []float64
	}
	f.Add(encode(f, &x))
	f.Add(encode(f, &older{Kids: x.Kids, Gone: map[string][]*Fuzzed{"a": {p, nil}}, F: ramp(600)}))
	f.Add(encode(f, &struct{ N int }{1}))
	for _, c := range objects {
		f.Add(encode(f, c.ptr))
	}
	most := int(reflect.TypeFor[Fuzzed]().Size())
	own, err := parseManifest(appendLengths(slices.Clone(shapeOf(reflect.TypeFor[Fuzzed]()).head), []int{0}))
	require.NoError(f, err)
	decode := func(t *testing.T, b []byte) {
		var y, z Fuzzed
		was, err := slices.Clone(b), error(nil)
		n := allocated(func() { err = Decode(b, &y) })
		require.Less(t, n, uint64(1<<20+(512+most)*len(b)))
		require.Equal(t, was, b)
		if err != nil {
			return
		}
		again := encode(t, &y)
		if length, n := binary.Uvarint(b); bytes.HasPrefix(b[n:n+int(length)], own.head()) {
			require.Equal(t, b, again)
			return
		}
		require.NoError(t, Decode(again, &z)) // b was another build's
		require.Equal(t, again, encode(t, &z))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		decode(t, b)
		decode(t, object(own, b))
	})
}

// resized is manifest for a rest that takes what the other segments leave.
func resized(t *testing.T, manifest []byte, n int) []byte {
	m, err := parseManifest(manifest)
	require.NoError(t, err)
	for _, s := range m.segments[1:] {
		n -= s
	}
	m.segments[0] = max(0, n)
	return m.bytes()
}
