package engine

import "bytes"

// Dozing tells whether nothing of e runs until something happens.
func (e *Engine) Dozing() bool { return e.dozing.Load() }

// Recorded is the numbers of the messages in Past.
func (s *StreamState) Recorded() (all []uint64) {
	for w := (walk{rest: bytes.Join(s.Past, nil)}); w.next(); {
		all = append(all, w.seq)
	}
	return all
}
