package quic

import "net"

// Unfinished is how many handshakes have begun and not ended.
func (e *Endpoint) Unfinished() int64 { return e.unfinished.Load() }

// Spent tells whether from there too many begin, with one more.
func (e *Endpoint) Spent(a net.Addr) bool { return e.guard.Charge(a) }
