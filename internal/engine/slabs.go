package engine

import (
	"sync"

	"github.com/mpiv/mpiv/internal/hugepages"
)

// slabs is memory of which a little is taken at a time, so that the system finds much of it at
// once, in huge pages: page by page that takes longer than all else about a short message.
type slabs struct {
	mu    sync.Mutex
	small int // bytes made one by one, before it is worth it
	rest  []byte
}

const (
	slabFrom = 256 << 10
	slabLen  = 4 << 20
)

// take is memory for n bytes, which are few in a slab.
func (s *slabs) take(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.small < slabFrom {
		s.small += n
		return make([]byte, 0, n)
	}
	if len(s.rest) < n {
		s.rest = hugepages.Make(slabLen)
	}
	b := s.rest[:0:n]
	s.rest = s.rest[n:]
	return b
}
