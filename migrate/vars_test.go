//lint:file-ignore U1000 fields are set and read by reflection

package migrate

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// protect is Vars with one variable, x, at ptr.
func protect(t testing.TB, ptr any) *Vars {
	t.Helper()
	v := new(Vars)
	require.NoError(t, v.Protect("x", ptr))
	return v
}

// carry brings the state of from to into, as the network would.
func carry(from, into *Vars) error {
	i, err := from.Image()
	if err != nil {
		return err
	}
	return put(i, into)
}

func put(i Image, into *Vars) error {
	f, err := into.Receive(i.Manifest)
	if err != nil {
		return err
	}
	for k, s := range f.Segments() {
		copy(s, i.Segments[k])
	}
	return f.Finish()
}

type point struct{ x, y float64 }

type padded struct {
	a int8
	b int64
	c bool
	d [3]uint16
}

type everything struct {
	b      bool
	i      int
	i8     int8
	i16    int16
	i32    int32
	I64    int64
	u      uint
	u8     uint8
	u16    uint16
	u32    uint32
	u64    uint64
	f32    float32
	f64    float64
	c64    complex64
	c128   complex128
	s      string
	array  [3]string
	points []point
	mu     sync.Mutex
	Inner
	m map[string][]int
	p *point
	t time.Time
	z *big.Int
}

type Inner struct{ deep [2]padded }

// stamped has time.Time's methods, which would leave n out.
type stamped struct {
	time.Time
	n int
}

type tree struct {
	name string
	kids []tree
}

func whole() everything {
	return everything{b: true, i: -5, i8: -8, i16: -16, i32: -32, I64: math.MinInt64, u: 5, u8: 8, u16: 16, u32: 32, u64: math.MaxUint64,
		f32: 1.5, f64: math.Pi, c64: complex(1, -2), c128: complex(3, -4), s: "s", array: [3]string{"a", "", "c"},
		points: []point{{1, 2}, {3, 4}}, Inner: Inner{[2]padded{{1, 2, true, [3]uint16{1, 2, 3}}, {}}},
		m: map[string][]int{"one": {1}, "none": nil, "empty": {}}, p: &point{5, 6},
		t: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), z: big.NewInt(-1e15)}
}

func ramp(n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = float64(i) + 0.5
	}
	return s
}

func pointer[T any](x T) *T { return &x }

var values = []struct {
	name string
	ptr  any
}{
	{"a bool", pointer(true)},
	{"an int", pointer(math.MinInt32)},
	{"a uint8", pointer(uint8(200))},
	{"a complex number", pointer(complex(1, 2))},
	{"a string", pointer("état")},
	{"a long string", pointer(strings.Repeat("long", large))},
	{"a short slice", pointer([]int32{1, 2, 3})},
	{"a long slice", pointer(ramp(3000))},
	{"a slice of ints", pointer(make([]int, 1000))},
	{"a long slice of structs with padding", pointer(make([]padded, 1000))},
	{"a nil slice", pointer([]float64(nil))},
	{"an empty slice", pointer([]float64{})},
	{"bools", pointer([]bool{true, false, true})},
	{"long bytes", pointer(make([]byte, 3*large))},
	{"a slice of slices", pointer([][]float64{ramp(3), nil, {}, ramp(large)})},
	{"a slice of strings", pointer([]string{"a", strings.Repeat("b", large), ""})},
	{"nothing, often", pointer(make([]struct{}, 1000))},
	{"an array", pointer([4]uint16{1, 2, 3, 4})},
	{"a large array", pointer([1024]int64{1023: 7})},
	{"a large array in a struct", pointer(struct {
		a int
		b [2000]uint32
		c string
	}{1, [2000]uint32{1999: 9}, "c"})},
	{"a map", pointer(map[int]string{1: "one", -2: "two"})},
	{"a nil map", pointer(map[int]string(nil))},
	{"a set", pointer(map[point]struct{}{{1, 2}: {}, {3, 4}: {}})},
	{"a map of long strings", pointer(map[string]string{strings.Repeat("k", large): strings.Repeat("v", large)})},
	{"a map by address", pointer(map[netip.Addr]time.Duration{netip.MustParseAddr("10.0.0.1"): time.Second})},
	{"a pointer", pointer(&point{1, 2})},
	{"a nil pointer", pointer((*point)(nil))},
	{"a pointer to a pointer", pointer(pointer(pointer(3)))},
	{"pointers to nothing", pointer([]*struct{}{{}, nil, {}})},
	{"a tree", pointer(tree{"root", []tree{{"a", nil}, {"b", []tree{{"c", []tree{}}}}}})},
	{"a time", pointer(time.Date(2026, 5, 6, 7, 8, 9, 10, time.FixedZone("", 7200)))},
	{"a big number", pointer(*new(big.Int).Lsh(big.NewInt(3), 1000))},
	{"an embedded time", pointer(stamped{time.Unix(5, 0).UTC(), 7})},
	{"a generator", rand.NewPCG(1, 2)},
	{"everything", pointer(whole())},
	{"everything, twice", pointer([]everything{whole(), whole()})},
}

// What is laid out, in any way, and filled in, in any way, is the same.
func TestRoundTrip(t *testing.T) {
	for _, c := range values {
		t.Run(c.name, func(t *testing.T) {
			var first Image
			for _, foreign := range []bool{false, true} {
				from := &Vars{types: types{foreign: foreign}}
				require.NoError(t, from.Protect("x", c.ptr))
				i, err := from.Image()
				require.NoError(t, err)
				if foreign {
					require.Equal(t, first, i, "a machine whose memory is not what travels lays out the same bytes")
				}
				first = i
				for _, foreign := range []bool{false, true} {
					got := reflect.New(reflect.TypeOf(c.ptr).Elem())
					into := &Vars{types: types{foreign: foreign}}
					require.NoError(t, into.Protect("x", got.Interface()))
					require.NoError(t, put(i, into))
					require.Equal(t, c.ptr, got.Interface())
					again, err := into.Image()
					require.NoError(t, err)
					require.Equal(t, i, again)
				}
			}
		})
	}
}

func TestEqualStateGivesEqualBytes(t *testing.T) {
	layout := func(order []int) Image {
		m := make(map[int]*point)
		for _, k := range order {
			m[k] = &point{x: float64(k)}
		}
		i, err := protect(t, &m).Image()
		require.NoError(t, err)
		return i
	}
	order := rand.Perm(100)
	require.Equal(t, layout(order), layout(rand.Perm(100)))
	require.NotEqual(t, layout(order), layout(order[1:]))
}

func TestPayloadsOfNaNStay(t *testing.T) {
	for _, foreign := range []bool{false, true} {
		x, y := math.Float32frombits(0x7f800001), math.Float64frombits(0x7ff0000000000001) // signalling
		a := struct {
			x float32
			y float64
			s []float64
			c complex64
		}{x, y, []float64{y}, complex(x, x)}
		b := a
		b.x, b.y, b.s, b.c = 0, 0, nil, 0
		from, into := &Vars{types: types{foreign: foreign}}, &Vars{types: types{foreign: foreign}}
		require.NoError(t, from.Protect("x", &a))
		require.NoError(t, into.Protect("x", &b))
		require.NoError(t, carry(from, into))
		require.Equal(t, uint32(0x7f800001), math.Float32bits(b.x))
		require.Equal(t, uint64(0x7ff0000000000001), math.Float64bits(b.y))
		require.Equal(t, uint64(0x7ff0000000000001), math.Float64bits(b.s[0]))
		require.Equal(t, *(*[2]uint32)(unsafe.Pointer(&a.c)), *(*[2]uint32)(unsafe.Pointer(&b.c)))
	}
}

type Grid struct {
	cells []float64
	lock  chan int
}

func TestProtectRefuses(t *testing.T) {
	type sim struct{ grids []Grid }
	type keyed struct{ next *map[keyed]int }
	for _, c := range []struct {
		name string
		ptr  any
		want string
	}{
		{"a channel in a struct", new(Grid), "Grid.lock is of type chan int"},
		{"one further down", new(sim), "sim.grids[].lock is of type chan int"},
		{"an interface", new(struct{ err error }), "x.err is of type error"},
		{"any", new(map[string]any), "x[] is of type interface {}"},
		{"a function", new(func()), "x is of type func()"},
		{"a uintptr", new(uintptr), "x is of type uintptr"},
		{"an unsafe pointer", new([2]unsafe.Pointer), "x[] is of type unsafe.Pointer"},
		{"a context", new(context.Context), "x is of type context.Context"},
		{"a wait group", new(struct{ wg sync.WaitGroup }), "x.wg is of type sync.WaitGroup"},
		{"a generator behind an interface", new(rand.Rand), "Rand.src is of type rand.Source"},
		{"keys that are pointers", new(map[*int]int), "map[*int]int; keys"},
		{"keys that hold themselves", new(keyed), "keys that hold pointers"},
		{"a tag that is none", new(struct {
			a int `mpiv:"skip"`
		}), `unknown tag: field x.a has`},
		{"a value", 3, "pass the address of the variable, not int"},
		{"nil", nil, "pass the address"},
		{"a nil pointer", (*int)(nil), "pass the address"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v Vars
			for range 2 { // the second time as the first
				err := v.Protect("x", c.ptr)
				require.ErrorIs(t, err, ErrType)
				require.ErrorContains(t, err, c.want)
			}
			require.Empty(t, v.list)
		})
	}
}

func TestNames(t *testing.T) {
	var v Vars
	require.NoError(t, v.Protect("b", new(int)))
	require.NoError(t, v.Protect("a", new(int)))
	require.ErrorIs(t, v.Protect("b", new(int)), ErrName)
	require.ErrorIs(t, v.Protect("", new(int)), ErrName)
	require.Len(t, v.list, 2)
}

// However many slices a state has, its image has segments for so many only as a snapshot has parts for.
func TestManySlicesHaveFewSegments(t *testing.T) {
	type state struct {
		Rows  [][]float64
		Names []string
		Last  []float64
	}
	was := state{Last: make([]float64, veryLarge/8)}
	for i := range mostDynamics + 1000 {
		was.Rows = append(was.Rows, make([]float64, large/8))
		was.Rows[i][3] = float64(i)
	}
	was.Names = []string{strings.Repeat("a", large), "b", strings.Repeat("c", veryLarge)}
	was.Last[7] = 8
	from := []*state{&was}
	v := protect(t, &from)
	i, err := v.Image()
	require.NoError(t, err)
	require.Len(t, i.Segments, 1+mostDynamics+2, "the rest, the first rows, and the two that are very large")
	var is []*state
	require.NoError(t, put(i, protect(t, &is)))
	require.True(t, reflect.DeepEqual(from, is))

	b, err := Encode(&was)
	require.NoError(t, err)
	var object state
	require.NoError(t, Decode(b, &object))
	require.True(t, reflect.DeepEqual(was, object))
}
