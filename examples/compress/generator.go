package main

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
)

// poolBytes bounds what a generator makes; after that it begins again. It is no
// multiple of any likely block size, so no two blocks are alike for a long time.
const poolBytes = 4<<20 + 4099

// A generator is endless input that is the same for the same seed.
type generator struct {
	pool []byte
	at   int
}

// newGenerator makes input of which zstd saves about the given part, in percent.
// Its pieces are either random or repeat what came shortly before, as text does.
// No more than n bytes will be read.
func newGenerator(seed uint64, percent int, n int64) io.Reader {
	const piece = 64
	// A repeated piece costs some bytes too: about six of 64.
	repeat := min(float64(percent)/100/(1-6./piece), 1)
	rnd := rand.New(rand.NewPCG(seed, uint64(percent)))
	size := int(min(n, poolBytes))
	pool := make([]byte, 0, size+piece)
	for len(pool) < size {
		if reach := min(len(pool), 32<<10); reach >= piece && rnd.Float64() < repeat {
			from := len(pool) - piece - rnd.IntN(reach-piece+1)
			pool = append(pool, pool[from:from+piece]...)
			continue
		}
		for range piece / 8 {
			pool = binary.LittleEndian.AppendUint64(pool, rnd.Uint64())
		}
	}
	return &generator{pool: pool[:size]}
}

func (g *generator) Read(p []byte) (int, error) {
	n := copy(p, g.pool[g.at:])
	g.at = (g.at + n) % len(g.pool)
	return n, nil
}
