//lint:file-ignore U1000 fields are set and read by reflection

package migrate

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type Place struct{ X, Y float64 }

type Padded struct {
	A int8
	B int64
	C bool
	D [3]uint16
}

type Wide struct {
	Mu     sync.Mutex
	B      bool
	I      int
	U      uint
	I16    int16
	F32    float32
	C      complex128
	S      string
	Words  [3]string
	Places []Place
	Place
	M    map[string][]int
	P    *Place
	T    time.Time
	Z    *big.Int
	Seed rand.PCG
}

func wide() Wide {
	return Wide{B: true, I: -5, U: 5, I16: -16, F32: 1.5, C: complex(3, -4), S: "s", Words: [3]string{"a", "", "c"},
		Places: []Place{{1, 2}, {3, 4}}, Place: Place{7, 8}, M: map[string][]int{"one": {1}, "none": nil, "empty": {}}, P: &Place{5, 6},
		T: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Z: big.NewInt(-1e15), Seed: *rand.NewPCG(1, 2)}
}

// Two types that lead back to themselves.
type Node struct {
	Name string
	Kids []*Node
	Up   *Node
}

type Tangle map[string]Tangle

var objects = []struct {
	name string
	ptr  any
}{
	{"a bool", pointer(true)},
	{"an int", pointer(math.MinInt32)},
	{"zero", new(int)},
	{"a complex number", pointer(complex(1, 2))},
	{"a string", pointer("état")},
	{"no string", pointer("")},
	{"a long string", pointer(strings.Repeat("long", large))},
	{"a slice", pointer([]int32{1, 2, 3})},
	{"a long slice", pointer(ramp(3000))},
	{"a long slice of ints", pointer(make([]int, 1000))},
	{"structs with padding", pointer(make([]Padded, 1000))},
	{"a nil slice", pointer([]float64(nil))},
	{"an empty slice", pointer([]float64{})},
	{"bools", pointer([]bool{true, false, true})},
	{"a slice of slices", pointer([][]float64{ramp(3), nil, {}, ramp(large), ramp(large)})},
	{"nothing, often", pointer(make([]struct{}, 1000))},
	{"a large array", pointer([1024]int64{1023: 7})},
	{"a map", pointer(map[int]string{1: "one", -2: "two"})},
	{"a nil map", pointer(map[int]string(nil))},
	{"a set", pointer(map[Place]struct{}{{1, 2}: {}, {3, 4}: {}})},
	{"a map of long strings", pointer(map[string]string{strings.Repeat("k", large): strings.Repeat("v", large)})},
	{"a map by address", pointer(map[netip.Addr]time.Duration{netip.MustParseAddr("10.0.0.1"): time.Second})},
	{"a pointer", pointer(&Place{1, 2})},
	{"a nil pointer", pointer((*Place)(nil))},
	{"a pointer to a nil pointer", pointer(pointer((*Place)(nil)))},
	{"pointers to nothing", pointer([]*struct{}{{}, nil, {}})},
	{"a tree", &Node{Name: "root", Kids: []*Node{{Name: "a"}, nil, {Name: "b", Kids: []*Node{}}}}},
	{"a time", pointer(time.Date(2026, 5, 6, 7, 8, 9, 10, time.FixedZone("", 7200)))},
	{"nothing", new(struct{})},
	{"everything", pointer(wide())},
	{"everything, twice", pointer([]*Wide{pointer(wide()), pointer(wide())})},
}

// What is laid out, in any way, and read, in any way, is the same, and lays out as the same.
func TestObjectsTravel(t *testing.T) {
	for _, c := range objects {
		t.Run(c.name, func(t *testing.T) {
			typ := reflect.TypeOf(c.ptr).Elem()
			first, err := Encode(c.ptr)
			require.NoError(t, err)
			require.NotZero(t, first[0])
			got := reflect.New(typ)
			require.NoError(t, Decode(first, got.Interface()))
			require.Equal(t, c.ptr, got.Interface())
			for _, foreign := range []bool{false, true} {
				s := newShape(typ, foreign)
				b, err := s.encode(reflect.ValueOf(c.ptr).UnsafePointer())
				require.NoError(t, err)
				require.Equal(t, first, b, "a machine whose memory is not what travels lays out the same bytes")
				got := reflect.New(typ)
				require.NoError(t, s.decode(b, got.UnsafePointer()))
				require.Equal(t, c.ptr, got.Interface())
				again, err := s.encode(got.UnsafePointer())
				require.NoError(t, err)
				require.Equal(t, b, again)
			}
		})
	}
}

// Of what gob leaves out, the same is left out. Embedded structs travel though their
// types are not exported.
func TestWhatOfAStructTravels(t *testing.T) {
	type base struct {
		ID     int
		hidden int
	}
	type deep struct{ base }
	type empty struct{ n int }
	type far struct{ Far int }
	type number int
	type whole struct {
		Name string
		note string
		C    chan int
		F    *func()
		Tag  []any `mpiv:"-"`
		Mu   sync.Mutex
		sync.RWMutex
		Place
		deep
		empty
		*far
		number
	}
	f, c := func() {}, make(chan int)
	a := whole{Name: "n", note: "here", C: c, F: &f, Tag: []any{1}, Place: Place{1, 2}, deep: deep{base{3, 4}}, empty: empty{5}, far: &far{6}, number: 7}
	b, err := Encode(&a)
	require.NoError(t, err)
	var got whole
	require.NoError(t, Decode(b, &got))
	require.Equal(t, &whole{Name: "n", Place: Place{1, 2}, deep: deep{base{ID: 3}}, far: &far{6}}, &got)

	// This is what gob makes of it, and so what SendObj once did.
	type plain struct {
		Name string
		note string
		C    chan int
		Place
		deep
		*far
	}
	var buf bytes.Buffer
	require.NoError(t, gob.NewEncoder(&buf).Encode(plain{"n", "here", c, Place{1, 2}, deep{base{3, 4}}, &far{6}}))
	var theirs plain
	require.NoError(t, gob.NewDecoder(&buf).Decode(&theirs))
	require.Equal(t, plain{Name: "n", Place: Place{1, 2}}, theirs)
}

// Each layout has maps in another order, and memory elsewhere.
func TestEqualObjectsHaveEqualBytes(t *testing.T) {
	type entry struct {
		Of   map[string]*Place
		More []string
	}
	layout := func(shared bool) []byte {
		m := make(map[int]entry)
		all := ramp(64)
		for _, k := range rand.Perm(100) {
			p, q := &Place{float64(k), 1}, &Place{float64(k), 1}
			if shared {
				q = p
			}
			m[k] = entry{map[string]*Place{"a": p, "b": q, "c": nil}, strings.Split("a b", " ")}
		}
		x := struct {
			M    map[int]entry
			S, T []float64
		}{m, all, all[:32]}
		if !shared {
			x.T = ramp(32)
		}
		b, err := Encode(&x)
		require.NoError(t, err)
		return b
	}
	first := layout(false)
	require.Equal(t, first, layout(false))
	require.Equal(t, first, layout(true), "what two pointers lead to comes twice, whether it is the same or not")
}

// Only where types may lead back to themselves what is the same stays the same.
func TestObjectsThatLeadBack(t *testing.T) {
	root := &Node{Name: "root"}
	root.Up = root
	kid := &Node{Name: "kid", Up: root}
	root.Kids = []*Node{kid, kid, {Name: "other", Up: kid}}
	root.Kids[2].Kids = root.Kids
	tangle := Tangle{}
	tangle["self"] = tangle
	type all struct {
		Root   *Node
		Tangle Tangle
		Nested []Tangle
		A, B   *Place
		Value  Node
	}
	p := &Place{1, 2}
	x := all{Root: root, Tangle: tangle, Nested: []Tangle{tangle}, A: p, B: p, Value: Node{Name: "v", Up: kid}}
	b, err := Encode(&x)
	require.NoError(t, err)
	var y all
	require.NoError(t, Decode(b, &y))
	require.Same(t, y.Root, y.Root.Up)
	require.Same(t, y.Root.Kids[0], y.Root.Kids[1])
	require.Same(t, y.Root.Kids[0], y.Root.Kids[2].Up)
	require.Same(t, &y.Root.Kids[0], &y.Root.Kids[2].Kids[0])
	require.Same(t, y.Root.Kids[0], y.Value.Up)
	y.Tangle["new"] = nil
	require.Contains(t, y.Tangle["self"], "new")
	require.Contains(t, y.Nested[0], "new")
	require.NotSame(t, y.A, y.B)
	require.Equal(t, y.A, y.B)

	ring := Node{Name: "ring"} // the value that was asked for is in the cycle
	ring.Up = &ring
	b, err = Encode(&ring)
	require.NoError(t, err)
	var got Node
	require.NoError(t, Decode(b, &got))
	require.Same(t, &got, got.Up)

	long := &Node{}
	for range 200_000 { // deep, if it were a recursion
		long = &Node{Up: long}
	}
	b, err = Encode(&long)
	require.NoError(t, err)
	long = nil
	require.NoError(t, Decode(b, &long))
	n := 0
	for ; long != nil; long = long.Up {
		n++
	}
	require.Equal(t, 200_001, n)
}

func TestWhichTypesLeadBack(t *testing.T) {
	type leaf struct{ P *Place }
	type A struct {
		Bs   []*struct{ A *A }
		Leaf *leaf
		Zero [0]*A
	}
	for _, c := range []struct {
		ptr  any
		want []string
	}{
		{new(A), []string{"*migrate.A", "*struct { A *migrate.A }", "[]*struct { A *migrate.A }"}},
		{new(struct{ Zero [0]*struct{ Z [0]*leaf } }), nil},
		{new(map[string]A), []string{"*migrate.A", "*struct { A *migrate.A }", "[]*struct { A *migrate.A }"}},
		{new(Tangle), []string{"migrate.Tangle"}},
		{new(Node), []string{"*migrate.Node", "[]*migrate.Node"}},
		{new([]*[]*Place), nil},
	} {
		s := newShape(reflect.TypeOf(c.ptr).Elem(), false)
		require.NoError(t, s.err)
		var got []string
		seen := make(map[*node]bool)
		var walk func(n *node)
		walk = func(n *node) {
			if n == nil || seen[n] {
				return
			}
			if seen[n] = true; n.same {
				got = append(got, n.t.String())
			}
			walk(n.elem)
			walk(n.key)
			for _, f := range n.fields {
				walk(f.node)
			}
		}
		walk(s.node)
		slices.Sort(got)
		require.Equal(t, c.want, got, "%T", c.ptr)
		require.Equal(t, len(got) > 0, s.loops)
	}
}

func TestObjectsThatAreRefused(t *testing.T) {
	type hidden struct{ n int }
	type inside struct{ H hidden }
	type spaced struct {
		_ int
		A struct{}
	}
	type loose struct{ V any }
	type chans struct{ C []chan int }
	type tagged struct {
		V any
		A int `mpiv:"maybe"`
	}
	came, err := Encode(new(struct{ A int }))
	require.NoError(t, err)
	require.ErrorIs(t, Decode(came, new(tagged)), ErrTag)
	for _, c := range []struct {
		name string
		ptr  any
		want string
	}{
		{"a channel", new(chan int), "type cannot travel: chan int"},
		{"an interface", new(any), "type cannot travel: interface {}"},
		{"an interface in a field", new(loose), "type cannot travel: loose.V: interface {}"},
		{"channels in a slice", new(chans), "type cannot travel: chans.C[]: chan int"},
		{"a struct without exported fields", new(hidden), "type cannot travel: migrate.hidden, which has no exported field that does"},
		{"one in a field", new(inside), "type cannot travel: inside.H: migrate.hidden, which has no exported field that does"},
		{"a lock of another kind", new(struct{ Once sync.Once }), ".Once: sync.Once"},
		{"keys that are pointers", new(map[*int]int), "type cannot travel: map[*int]int"},
		{"elements that take memory and no bytes", new([]spaced), "type cannot travel: []migrate.spaced"},
		{"a tag that there is not", new(tagged), "unknown tag: field tagged.A has `mpiv:\"maybe\"`; there is `mpiv:\"-\"`, and"},
		{"no pointer", 5, "pass the address of the value, not int"},
		{"nothing", nil, "pass the address of the value, not <nil>"},
		{"a nil pointer", (*int)(nil), "pass the address of the value, not *int"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // the second time it is known
				_, err := Encode(c.ptr)
				require.ErrorIs(t, err, ErrType)
				require.ErrorContains(t, err, c.want)
				require.NotContains(t, err.Error(), "state")
			}
		})
	}
	for _, c := range []struct {
		name string
		ptr  any
		want string
	}{
		{"keys that are the same", &map[struct{ A, b int }]int{{1, 2}: 1, {1, 3}: 2}, "two keys of a map[struct"},
		{"too much of nothing", pointer(make([]struct{}, maxEmpty+1)), "[]struct {} has 1048577 elements that take no bytes"},
		{"too deep", pointer(deepTangle()), "more than 10000 deep; use pointers"},
		{"its own methods fail", pointer(time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", 1<<22))), "time.Time: "},
	} {
		_, err := Encode(c.ptr)
		require.ErrorIs(t, err, ErrValue, c.name)
		require.ErrorContains(t, err, c.want)
		require.False(t, strings.HasPrefix(err.Error(), "value cannot travel"), err)
	}
}

// deepTangle is one deeper than what travels.
func deepTangle() Tangle {
	x := Tangle{}
	for range maxDepth + 1 {
		x = Tangle{"": x}
	}
	return x
}

func TestObjectsThatDoNotFit(t *testing.T) {
	type note struct {
		Text string
		Of   map[string]int
	}
	type short struct{ Text string }
	for _, c := range []struct {
		from, to any
		want     string
	}{
		{pointer("text"), new(int), "string came, int was asked for"},
		{pointer(1), new(int64), "int came, int64 was asked for"},
		{&[]int{1}, new([]string), "[]int came, []string was asked for"},
		{new([3]int), new([4]int), "[3]int came, [4]int was asked for"},
		{new(note), new(int), "note came, int was asked for"},
		{new(note), new(any), "note came, interface {} was asked for"},
		{&note{}, new(struct {
			Text string
			Of   map[string]bool
		}), "note came, struct { Text string; Of map[string]bool } was asked for; .Of[] is int there and bool here"},
		{&[]note{}, new([]short), "[]note came, []migrate.short was asked for; [].Of, a map[string]int, has no field here that travels; if it may be lost, add a field: _ struct{} `mpiv:\"drop=Of\"`"},
		{new([]struct{}), new([]short), ""},
		{new([2]struct{}), new([2]short), ""},
		{pointer(make([]struct{}, 2)), new([]short), "a slice came whose elements have no field that a migrate.short has"},
	} {
		b, err := Encode(c.from)
		require.NoError(t, err)
		err = Decode(b, c.to)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, ErrMismatch)
		require.EqualError(t, err, c.want)
	}
}

// The other end may be of another build.
func TestObjectsOfANewerBuild(t *testing.T) {
	type old struct {
		ID   int32
		Mass float64
		Gone map[string]*Place
		Flat []Place
	}
	type point2 struct{ Y, Z, X float64 }
	type newer struct {
		_    struct{} `mpiv:"drop=Gone"`
		Flat []point2
		Hue  uint8
		ID   int32
		Mass float64
	}
	p := &Place{1, 2}
	b, err := Encode(&old{1, 2, map[string]*Place{"a": p, "b": p}, []Place{{3, 4}}})
	require.NoError(t, err)
	x := newer{Hue: 9}
	require.NoError(t, Decode(b, &x))
	require.Equal(t, newer{Hue: 9, ID: 1, Mass: 2, Flat: []point2{{X: 3, Y: 4}}}, x)
}

func TestDecodedValuesHaveTheirOwnMemory(t *testing.T) {
	type all struct {
		S     []float64
		Bytes []byte
		Text  string
		Long  string
		Some  []string
		Z     *big.Int
	}
	x := all{ramp(1000), []byte("some"), "text", strings.Repeat("l", large), []string{"a", strings.Repeat("b", large)}, new(big.Int).Lsh(big.NewInt(1), 8*large)}
	b, err := Encode(&x)
	require.NoError(t, err)
	x.S[0] = -1 // the bytes are a copy
	var y all
	require.NoError(t, Decode(b, &y))
	x.S[0] = 0.5
	for i := range b {
		b[i] = 0xff
	}
	require.Equal(t, x, y)
}

type grumpy struct{ At Place }

func (g grumpy) MarshalBinary() ([]byte, error) {
	if g.At.X > 0 {
		panic("grumpy")
	}
	return []byte("a key that is longer than others"), nil
}

func (g *grumpy) UnmarshalBinary([]byte) error { return errors.New("grumpy") }

func TestTypesWhoseMethodsFail(t *testing.T) {
	last := objects[len(objects)-1].ptr
	want, err := Encode(last)
	require.NoError(t, err)
	for range 20 {
		require.PanicsWithValue(t, "grumpy", func() { Encode(&map[grumpy]string{{Place{1, 0}}: "a"}) })
		got, err := Encode(last)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	b, err := Encode(&grumpy{})
	require.NoError(t, err)
	err = Decode(b, new(grumpy))
	require.ErrorIs(t, err, ErrValue)
	require.EqualError(t, err, "migrate.grumpy: grumpy")
}

// Encoders are used again: they keep nothing of the one before, after an error either.
func TestEncodersForget(t *testing.T) {
	want := make([][]byte, len(objects))
	for i, c := range objects {
		want[i], _ = Encode(c.ptr)
	}
	bad := pointer(deepTangle())
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 20 {
				i := rand.IntN(len(objects))
				if i%5 == 0 {
					if _, err := Encode(bad); !errors.Is(err, ErrValue) {
						t.Errorf("Encode = %v, want ErrValue", err)
					}
				}
				b, err := Encode(objects[i].ptr)
				if err != nil || !bytes.Equal(b, want[i]) {
					t.Errorf("Encode of %s = %x, %v, want %x", objects[i].name, b, err, want[i])
				}
				if err := Decode(b, reflect.New(reflect.TypeOf(objects[i].ptr).Elem()).Interface()); err != nil {
					t.Errorf("Decode of %s = %v", objects[i].name, err)
				}
			}
		})
	}
	group.Wait()
}

// An object written by hand: what any machine must lay out, and read.
func TestBytesOfAnObject(t *testing.T) {
	type state struct {
		N    int
		Grid []uint16
		S    *string
	}
	manifest := slices.Concat([]byte("mpiS"), []byte{1, // version
		6, // types
		byte(kStruct), 5, 's', 't', 'a', 't', 'e', 3, 1, 'N', 1, 4, 'G', 'r', 'i', 'd', 2, 1, 'S', 4,
		byte(kInt), byte(kSlice), 3, byte(kUint16), byte(kPointer), 5, byte(kString),
		1, 6, 'o', 'b', 'j', 'e', 'c', 't', 0, // variables
		1, 18, // segments
	})
	rest := []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 1, 0, 3, 2, 1, 2, 'h', 'i'}
	want := slices.Concat([]byte{byte(len(manifest))}, manifest, rest)
	b, err := Encode(&state{-2, []uint16{1, 0x203}, pointer("hi")})
	require.NoError(t, err)
	require.Equal(t, want, b)
}

// object puts manifest and rest together as an object.
func object(m *manifest, rest []byte) []byte {
	m.segments = []int{len(rest)}
	head := m.bytes()
	return slices.Concat(binary.AppendUvarint(nil, uint64(len(head))), head, rest)
}

// Objects that ask for more than they have, and what is none.
func TestGreedyObjects(t *testing.T) {
	long := func(x uint64) []byte { return binary.AppendUvarint(nil, x) }
	type big struct{ A [1 << 16]int }
	type nested []nested
	nest := slices.Repeat([]byte{1, 0xff, 0xff, 1}, 9000) // each has as many as there may be bytes left
	for _, c := range []struct {
		name string
		ptr  any
		rest []byte
	}{
		{"a slice", new([]string), append([]byte{1}, long(1<<50)...)},
		{"a long slice", new([][]float64), slices.Concat([]byte{1, 1, 1}, long(1<<50))},
		{"slices in slices", new(nested), nest},
		{"maps in maps", new(Tangle), slices.Repeat([]byte{1, 0xff, 0x7f, 0}, 9000)},
		{"a map of nothing", new(map[struct{}]struct{}), append([]byte{1}, long(1<<50)...)},
		{"a map", new(map[uint8]uint8), append([]byte{1}, long(1<<50)...)},
		{"pointers", new([]*big), append([]byte{1, 100}, slices.Repeat([]byte{1}, 100)...)},
		{"a string", new(string), long(1 << 63)},
		{"a later one", new(Node), []byte{0, 0, 9}},
		{"one that has no number", new([]*Place), []byte{1, 1, 2}},
		{"a bool that is neither", new([]bool), []byte{1, 1, 2}},
		{"keys out of order", new(map[string]bool), []byte{1, 2, 1, 'b', 0, 1, 'a', 0}},
		{"something left over", new(int8), []byte{1, 2}},
	} {
		s := shapeOf(reflect.TypeOf(c.ptr).Elem())
		m, err := parseManifest(appendLengths(slices.Clone(s.head), []int{0}))
		require.NoError(t, err)
		b := object(m, c.rest)
		require.Less(t, allocated(func() { err = Decode(b, c.ptr) }), uint64(64<<10+64*len(b)), c.name)
		require.ErrorIs(t, err, ErrMalformed, c.name)
	}

	x := Wide{S: strings.Repeat("long", large)}
	b, err := Encode(&x)
	require.NoError(t, err)
	for cut := range b {
		if cut > 600 && cut < len(b)-10 {
			continue
		}
		require.ErrorIs(t, Decode(b[:cut], new(Wide)), ErrMalformed, "%d bytes of %d", cut, len(b))
	}
	require.ErrorIs(t, Decode(append(b, 0), new(Wide)), ErrMalformed)
	require.ErrorIs(t, Decode(nil, new(any)), ErrMalformed)
	i, err := protect(t, &x).Image()
	require.NoError(t, err)
	require.ErrorIs(t, Decode(slices.Concat(append([][]byte{long(uint64(len(i.Manifest))), i.Manifest}, i.Segments...)...), new(Wide)), ErrMalformed, "this is state")
}

// Manifests with as many types as there may be, all different, or fitting in many ways.
func TestGreedyTypes(t *testing.T) {
	type Loop struct{ A *Loop }
	type Pair struct{ A, B *Pair }
	chain := func(n int, of func(i int) wireType) *manifest {
		m := &manifest{vars: []wireVar{{objectName, 0}}}
		for i := range n {
			m.types = append(m.types, of(i))
		}
		return m
	}
	const n = maxTypes - maxTypes%2
	for _, c := range []struct {
		name string
		m    *manifest
		ptr  any
	}{
		{"a long way around", chain(n, func(i int) wireType {
			if i%2 == 0 {
				return wireType{kind: kStruct, fields: []wireVar{{"A", i + 1}}}
			}
			return wireType{kind: kPointer, elem: (i + 1) % n}
		}), new(Loop)},
		{"two ways at once", chain(n, func(i int) wireType {
			if i%2 == 0 {
				return wireType{kind: kStruct, fields: []wireVar{{"A", i + 1}, {"B", (i + 3) % n}}}
			}
			return wireType{kind: kPointer, elem: (i + 1) % n}
		}), new(Pair)},
		{"slices of slices", chain(n, func(i int) wireType { return wireType{kind: kSlice, elem: (i + 1) % n} }), new(int)},
		{"structs of structs", chain(64, func(i int) wireType {
			if i == 63 {
				return wireType{kind: kStruct}
			}
			return wireType{kind: kStruct, fields: []wireVar{{"A", i + 1}, {"B", i + 1}}}
		}), new(int)},
	} {
		b := object(c.m, nil)
		began := time.Now()
		require.Less(t, allocated(func() { _ = Decode(b, c.ptr) }), uint64(1<<20+512*len(b)), c.name)
		require.Less(t, time.Since(began), 5*time.Second, c.name)
	}
}
