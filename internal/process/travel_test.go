package process

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
)

func someLuggage(t testing.TB) (g luggage, parts [][]byte, first []byte) {
	long := bytes.Repeat([]byte("x"), shortPart+1)
	parts = [][]byte{[]byte("capsule"), nil, []byte("manifest"), long, []byte("short")}
	g = luggage{Rank: 3, Epoch: 7, SafeTime: 11, Number: 2, Saved: &control.Saved{Rank: 3, Number: 2, File: "f"}, Choices: []checkpoint.Determinant{{Kind: 1}}, Chosen: engine.Counts{1, 2, 3}}
	for _, part := range parts {
		g.Lengths = append(g.Lengths, int64(len(part)))
	}
	first, err := g.pack(parts)
	require.NoError(t, err)
	return g, parts, first
}

func TestLuggageTravels(t *testing.T) {
	want, parts, first := someLuggage(t)
	var g luggage
	got, err := g.unpack(first)
	require.NoError(t, err)
	require.Equal(t, want, g)
	for i := range parts {
		switch {
		case i == 3:
			require.Nil(t, got[i], "it is a message of its own")
		default:
			require.True(t, bytes.Equal(parts[i], got[i]), "part %d", i)
		}
	}
}

func TestMalformedLuggageIsRefused(t *testing.T) {
	_, _, first := someLuggage(t)
	for n := range first {
		var g luggage
		_, err := g.unpack(first[:n])
		require.ErrorIs(t, err, errLuggage, "%d bytes of %d", n, len(first))
	}
	var g luggage
	_, err := g.unpack(append(first, 0))
	require.ErrorIs(t, err, errLuggage)
}

func FuzzLuggage(f *testing.F) {
	_, _, first := someLuggage(f)
	f.Add(first)
	f.Fuzz(func(t *testing.T, b []byte) {
		var g luggage
		parts, err := g.unpack(b)
		if err != nil {
			return
		}
		for i, n := range g.Lengths {
			if inFirst(i, n) && int64(len(parts[i])) != n || !inFirst(i, n) && parts[i] != nil {
				t.Fatalf("part %d of %d bytes came as %d", i, n, len(parts[i]))
			}
		}
	})
}
