package quic

// Unfinished is how many handshakes have begun and not ended.
func (e *Endpoint) Unfinished() int64 { return e.unfinished.Load() }
