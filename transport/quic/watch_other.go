//go:build !linux

package quic

// watch is for systems that tell of changed addresses as Linux does.
func (e *Endpoint) watch() error { return nil }
