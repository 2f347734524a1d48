package agent

import (
	"net"
	"slices"
	"sync"
)

// Handshakes are the connections of a door whose other ends have not shown who they are, the
// oldest first. There are only so many: one more, and the first of them is closed, so strangers
// who say nothing keep nobody out and hold little.
type handshakes struct {
	mu   sync.Mutex
	list []net.Conn
}

// begin notes that c is one, of at most most.
func (s *handshakes) begin(c net.Conn, most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, c)
	if len(s.list) > most {
		s.list[0].Close()
		s.list = slices.Delete(s.list, 0, 1)
	}
}

// ended is told that c is one no more. False: it has been closed to make room.
func (s *handshakes) ended(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.list, c)
	if i >= 0 {
		s.list = slices.Delete(s.list, i, i+1)
	}
	return i >= 0
}
