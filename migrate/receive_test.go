//lint:file-ignore U1000 fields are set and read by reflection

package migrate

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestMismatches(t *testing.T) {
	type old struct{ a, b int }
	type inner struct{ v []old }
	for _, c := range []struct {
		name     string
		from, to any
		want     string
	}{
		{"another number", new(float64), new(float32), "variable x is float64 in the state and float32 here"},
		{"another element", &[]int{1}, new([]int64), "variable x[] is int in the state and int64 here"},
		{"another length", new([3]int), new([4]int), "variable x is [3]int in the state and [4]int here"},
		{"an array's element", new([3]int), new([3]int64), "variable x[] is int in the state and int64 here"},
		{"another key", new(map[string]int), new(map[int]int), "variable x[key] is string in the state and int here"},
		{"a pointer or not", new(*old), new(old), "variable x is *old in the state and migrate.old here"},
		{"a field that is gone", new(inner), new(struct{ v []struct{ a int } }), `variable x.v[].b, a int, is in the state and struct { a int } has no such field that travels; if it may be lost, add a field: _ struct{} ` + "`mpiv:\"drop=b\"`"},
		{"a field of another type", new(old), new(struct{ a, b string }), "variable x.a is int in the state and string here"},
		{"a map of maps", new(map[old][]string), new(int), "variable x is map[old][]string in the state and int here"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := carry(protect(t, c.from), protect(t, c.to))
			require.ErrorIs(t, err, ErrMismatch)
			require.ErrorContains(t, err, c.want)
		})
	}
	two := protect(t, new(int))
	require.NoError(t, two.Protect("y", new(string)))
	err := carry(two, protect(t, new(int)))
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorContains(t, err, `variable "y", a string, is in the state and not protected here`)
	err = carry(protect(t, new(int)), two)
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorContains(t, err, `variable "y", a string, is protected here and not in the state`)
}

type cell1 struct {
	id   int32
	mass float64
	gone *point
}

type world1 struct {
	step  int
	cells []cell1
	flat  []point
	trash []float64
	name  string
	m     map[string]cell1
	big   [1000]int64
}

type cell2 struct {
	_    struct{} `mpiv:"drop=gone"`
	mass float64
	hue  uint8 // new
	id   int32
}

type point2 struct{ y, z, x float64 }

type world2 struct {
	_     struct{} `mpiv:"drop=trash,name"`
	mu    sync.Mutex
	flat  []point2
	added []string // new
	m     map[string]cell2
	cells []cell2
	log   func(string) `mpiv:"-"`
	big   [1000]int64
	step  int
}

// A newer build takes the state over: fields moved, came and went.
func TestNewerBuild(t *testing.T) {
	a := world1{step: 7, cells: []cell1{{1, 2, &point{}}, {3, 4, nil}}, flat: make([]point, 1000), trash: ramp(1000), name: "old",
		m: map[string]cell1{"k": {5, 6, nil}}}
	a.flat[999] = point{8, 9}
	a.big[999] = 10
	logged := ""
	b := world2{added: []string{"kept"}, log: func(s string) { logged = s }}
	require.NoError(t, carry(protect(t, &a), protect(t, &b)))
	b.log("kept too")
	require.Equal(t, "kept too", logged)
	require.Equal(t, []string{"kept"}, b.added)
	require.Equal(t, []cell2{{mass: 2, id: 1}, {mass: 4, id: 3}}, b.cells)
	require.Equal(t, map[string]cell2{"k": {mass: 6, id: 5}}, b.m)
	require.Equal(t, point2{9, 0, 8}, b.flat[999])
	require.Equal(t, 7, b.step)
	require.EqualValues(t, 10, b.big[999])
}

func TestDroppedFieldThatIsShared(t *testing.T) {
	p := &point{1, 2}
	a := struct{ gone, p *point }{p, p}
	b := struct {
		_ struct{} `mpiv:"drop=gone"`
		p *point
	}{p: &point{3, 4}}
	err := carry(protect(t, &a), protect(t, &b))
	require.ErrorIs(t, err, ErrMismatch)
	require.ErrorContains(t, err, "keep that field")
	require.Equal(t, point{3, 4}, *b.p)
}

func TestSegmentsAliasTheProgram(t *testing.T) {
	if !littleEndian {
		t.Skip("memory is what travels on little-endian machines only; this one copies")
	}
	type state struct {
		n    int
		grid []float64
		big  [1000]int64
	}
	a, b := state{1, ramp(1000), [1000]int64{}}, state{2, make([]float64, 1000), [1000]int64{}}
	i, err := protect(t, &a).Image()
	require.NoError(t, err)
	require.Len(t, i.Segments, 3)
	require.Equal(t, []int{8 + 1, 8000, 8000}, []int{len(i.Segments[0]), len(i.Segments[1]), len(i.Segments[2])})
	require.Equal(t, int64(len(i.Manifest))+16009, i.Bytes())
	a.grid[0] = 42
	a.big[7] = 43

	view := b.grid[:3]
	f, err := protect(t, &b).Receive(i.Manifest)
	require.NoError(t, err)
	require.EqualValues(t, 16009, f.Bytes())
	for k, s := range f.Segments() {
		copy(s, i.Segments[k])
	}
	require.Equal(t, 2, b.n, "nothing else changes before Finish")
	require.Equal(t, 42.0, view[0], "the slice is filled where it lies")
	require.NoError(t, f.Finish())
	require.Equal(t, a, b)
	require.Same(t, &view[0], &b.grid[0])
	require.ErrorIs(t, f.Finish(), ErrMalformed, "once")
}

// Two variables that share memory here, and not in the state, do not spoil
// each other.
func TestSharedDestinations(t *testing.T) {
	a, b := ramp(10), make([]float64, 10)
	from := protect(t, &a)
	require.NoError(t, from.Protect("y", &b))
	c := make([]float64, 10)
	d := c
	into := protect(t, &c)
	require.NoError(t, into.Protect("y", &d))
	require.NoError(t, carry(from, into))
	require.Equal(t, a, c)
	require.Equal(t, b, d)
}

func TestErrorChangesNothingElse(t *testing.T) {
	type state struct {
		name string
		grid []float64
		m    map[string]int
	}
	i, err := protect(t, &state{"new", ramp(1000), map[string]int{"a": 1}}).Image()
	require.NoError(t, err)
	kept := state{"old", ramp(3), map[string]int{"b": 2}}
	v := protect(t, &kept)
	_, err = v.Receive(i.Manifest[:len(i.Manifest)-1])
	require.ErrorIs(t, err, ErrMalformed)
	for cut := range len(i.Segments[0]) {
		f, err := v.Receive(i.Manifest)
		require.NoError(t, err)
		copy(f.Segments()[0], i.Segments[0])
		f.Segments()[0][cut] ^= 0x80
		if err := f.Finish(); err == nil { // other letters, another number
			kept = state{"old", ramp(3), map[string]int{"b": 2}}
		}
		require.Equal(t, state{"old", ramp(3), map[string]int{"b": 2}}, kept)
	}
	f, err := v.Receive(i.Manifest)
	require.NoError(t, err)
	require.ErrorIs(t, f.Finish(), ErrMalformed, "no segment was filled")
}

func TestBoolsAreTwo(t *testing.T) {
	a := struct {
		s []bool
		b bool
	}{[]bool{true, false}, true}
	for _, spoil := range []func(Image){
		func(i Image) { i.Segments[1] = []byte{1, 2} },
		func(i Image) { i.Segments[0][1] = 7 },
	} {
		i, err := protect(t, &a).Image()
		require.NoError(t, err)
		spoil(i)
		b := a
		b.s = make([]bool, 2)
		require.ErrorIs(t, put(i, protect(t, &b)), ErrMalformed)
		for _, x := range *(*[]byte)(unsafe.Pointer(&b.s)) {
			require.LessOrEqual(t, x, byte(1))
		}
	}
}

// An image written by hand: what any machine must lay out, and read.
func TestBytesOfTheFormat(t *testing.T) {
	var state struct {
		n    int
		grid []uint16
		s    string
	}
	state.n, state.grid, state.s = -2, []uint16{1, 0x203}, "hi"
	manifest := slices.Concat([]byte("mpiS"), []byte{1, // version
		5, // types
		byte(kStruct), 0, 3, 1, 'n', 1, 4, 'g', 'r', 'i', 'd', 2, 1, 's', 4,
		byte(kInt), byte(kSlice), 3, byte(kUint16), byte(kString),
		1, 1, 'x', 0, // variables
		2, 12, 4, // segments
	})
	rest := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 'h', 'i'}
	grid := []byte{1, 0, 3, 2}
	i, err := protect(t, &state).Image()
	require.NoError(t, err)
	require.Equal(t, Image{manifest, [][]byte{rest, grid}}, i)
	got := state
	got.n, got.grid, got.s = 0, nil, ""
	require.NoError(t, put(Image{manifest, [][]byte{rest, grid}}, protect(t, &got)))
	require.Equal(t, state, got)

	binary.LittleEndian.PutUint64(rest, 1<<40)
	err = put(Image{manifest, [][]byte{rest, grid}}, protect(t, &got))
	if unsafe.Sizeof(int(0)) == 4 {
		require.ErrorIs(t, err, ErrMismatch)
		require.ErrorContains(t, err, "1099511627776")
		require.Equal(t, -2, got.n)
	} else {
		require.NoError(t, err)
	}
	manifest[4] = 2
	_, err = protect(t, &got).Receive(manifest)
	require.ErrorContains(t, err, "version 2")
}

// Manifests that ask for more than they have.
func TestGreedyImages(t *testing.T) {
	long := func(x uint64) []byte { return binary.AppendUvarint(nil, x) }
	head := []byte("mpiS\x01")
	for name, b := range map[string][]byte{
		"types":               slices.Concat(head, long(1<<40)),
		"a struct in itself":  slices.Concat(head, []byte{1, byte(kStruct), 0, 1, 1, 'a', 0, 1, 1, 'x', 0, 1, 0}),
		"an array of itself":  slices.Concat(head, []byte{1, byte(kArray), 2, 0, 1, 1, 'x', 0, 1, 0}),
		"segments":            slices.Concat(head, []byte{1, byte(kInt), 1, 1, 'x', 0, 3}, long(1<<60), long(1<<60), long(1<<60)),
		"a number too long":   slices.Concat(head, []byte{0x81, 0x00, byte(kInt), 1, 1, 'x', 0, 1, 0}),
		"a variable twice":    slices.Concat(head, []byte{1, byte(kInt), 2, 1, 'x', 0, 1, 'x', 0, 1, 0}),
		"no segment":          slices.Concat(head, []byte{1, byte(kInt), 1, 1, 'x', 0, 0}),
		"a kind there is not": slices.Concat(head, []byte{1, byte(kindEnd), 1, 1, 'x', 0, 1, 0}),
	} {
		_, err := protect(t, new(int)).Receive(b)
		require.ErrorIs(t, err, ErrMalformed, name)
	}
	type wide struct{ a [1 << 20]*int }
	for _, c := range []struct {
		name string
		ptr  any
		rest []byte
	}{
		{"a slice", new([]string), append([]byte{1}, long(1<<50)...)},
		{"a long slice", new([][]float64), slices.Concat([]byte{1, 1, 1}, long(1<<50))},
		{"a map", new(map[struct{}]struct{}), append([]byte{1}, long(1<<50)...)},
		{"pointers", new([]*wide), append([]byte{1, 100}, slices.Repeat([]byte{1}, 100)...)},
		{"locks", new([]sync.Mutex), append([]byte{1}, long(1<<50)...)},
		{"a string", new(string), long(1 << 63)},
		{"a later object", new(*int), []byte{9}},
	} {
		i, err := protect(t, c.ptr).Image()
		require.NoError(t, err)
		m, err := parseManifest(i.Manifest)
		require.NoError(t, err)
		m.segments[0] = len(c.rest)
		require.ErrorIs(t, put(Image{m.bytes(), [][]byte{c.rest}}, protect(t, c.ptr)), ErrMalformed, c.name)
	}
}
