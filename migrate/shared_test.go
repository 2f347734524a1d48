//lint:file-ignore U1000 fields are set and read by reflection

package migrate

import (
	"testing"

	"github.com/stretchr/testify/require"
)

type link struct {
	n          int
	prev, next *link
}

func TestCyclesTravel(t *testing.T) {
	const n = 200_000 // deep, if it were a recursion
	ring := &link{}
	last := ring
	for i := range n {
		last.next = &link{n: i, prev: last}
		last = last.next
	}
	last.next, ring.prev = ring, last
	var got *link
	require.NoError(t, carry(protect(t, &ring), protect(t, &got)))
	require.Equal(t, n-1, got.prev.n)
	require.Same(t, got, got.prev.next)
	p := got
	for range n + 1 {
		require.True(t, p.next.prev == p && p.next != p)
		p = p.next
	}
	require.Same(t, got, p)
}

type nested []nested
type knot map[string]knot

type sharing struct {
	root     *int
	a, b     *point
	s1, s2   []float64
	m1, m2   map[int]int
	self     nested
	k        knot
	inMap    map[string]*point
	doubled  **point
	onlyHere []string
	also     []string
}

func TestWhatIsTheSameStaysTheSame(t *testing.T) {
	n := 5
	x := sharing{root: &n, a: &point{1, 2}, s1: ramp(3), m1: map[int]int{1: 2}, self: make(nested, 2), k: knot{}, onlyHere: []string{"one"}}
	x.b, x.s2, x.m2, x.self[1], x.k["k"], x.also = x.a, x.s1, x.m1, x.self, x.k, x.onlyHere
	x.inMap = map[string]*point{"p": x.a, "q": nil}
	x.doubled = &x.inMapPointer().p
	from := protect(t, &x)
	require.NoError(t, from.Protect("n", &n))

	var y sharing
	var m int
	into := new(Vars)
	require.NoError(t, into.Protect("n", &m)) // another order is fine
	require.NoError(t, into.Protect("x", &y))
	require.NoError(t, carry(from, into))

	require.Equal(t, 5, m)
	require.Same(t, &m, y.root)
	require.Equal(t, point{1, 2}, *y.a)
	require.Same(t, y.a, y.b)
	require.Same(t, y.a, y.inMap["p"])
	require.Same(t, y.a, *y.doubled)
	require.Same(t, &y.s1[0], &y.s2[0])
	require.Same(t, &y.onlyHere[0], &y.also[0])
	y.m1[3] = 4
	require.Equal(t, 4, y.m2[3])
	require.Same(t, &y.self[0], &y.self[1][0])
	y.k["new"] = nil
	require.Contains(t, y.k["k"], "new")
}

// inMapPointer holds a pointer outside of x.
func (x *sharing) inMapPointer() *struct{ p *point } { return &struct{ p *point }{x.a} }

func TestOverlapsAreRefused(t *testing.T) {
	grid := ramp(10)
	type particle struct{ x, y int }
	cells := make([]particle, 3)
	both := struct{ a, b int }{}
	for _, c := range []struct {
		name string
		a, b any
	}{
		{"a slice of a slice", &grid, pointer(grid[2:4])},
		{"a longer slice", pointer(grid[:9]), &grid},
		{"pointers into a slice", &cells, &[]*particle{&cells[1]}},
		{"a pointer to a field", &both, pointer(&both.b)},
		{"a field as a variable", &both, &both.a},
		{"a variable twice", &both, &both},
		{"an array's elements", pointer(&[2]int{}), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.b == nil {
				p := *c.a.(**[2]int)
				c.b = pointer(p[:])
			}
			v := protect(t, c.a)
			require.NoError(t, v.Protect("other", c.b))
			_, err := v.Image()
			require.ErrorIs(t, err, ErrShared)
			require.ErrorContains(t, err, "variable x")
			require.ErrorContains(t, err, "variable other")
		})
	}
	v := protect(t, pointer(grid[:5]))
	require.NoError(t, v.Protect("other", pointer(grid[5:])))
	_, err := v.Image()
	require.NoError(t, err, "halves do not overlap")
}

func TestValuesThatAreRefused(t *testing.T) {
	var deep nested
	for range maxDepth + 1 {
		deep = nested{deep}
	}
	_, err := protect(t, &deep).Image()
	require.ErrorIs(t, err, ErrValue)
	many := make([]struct{}, maxEmpty+1)
	_, err = protect(t, &many).Image()
	require.ErrorIs(t, err, ErrValue)
}
