//go:build linux

package tcp

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
)

// A stream is one socket of a connection while the handshake runs.
type stream struct {
	net.Conn          // what the handshake reads and writes
	sock     net.Conn // Go's socket, which Conn is or lies upon
	sealed   *sealed  // nil in clear
}

// newStream is a stream over s, which dials or has accepted.
func newStream(s net.Conn, config *tls.Config, dials bool) *stream {
	if config == nil {
		return &stream{Conn: s, sock: s}
	}
	w := newWire(s)
	c := tls.Server(w, config)
	if dials {
		c = tls.Client(w, config)
	}
	return &stream{Conn: c, sock: s, sealed: &sealed{tls: c, wire: w}}
}

// shake runs the TLS handshake, until the socket's deadline.
func (s *stream) shake() error {
	if s.sealed == nil {
		return nil
	}
	if err := s.sealed.tls.Handshake(); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	return nil
}

// certificate is the peer's; nil in clear.
func (s *stream) certificate() *x509.Certificate {
	if s.sealed == nil {
		return nil
	}
	if chain := s.sealed.tls.ConnectionState().PeerCertificates; len(chain) > 0 {
		return chain[0]
	}
	return nil
}

// samePeer tells whether one and the same is at the other ends of both.
func samePeer(a, b *stream) bool {
	ca, cb := a.certificate(), b.certificate()
	if ca == nil || cb == nil {
		return ca == cb
	}
	return bytes.Equal(ca.Raw, cb.Raw)
}

// forLanes is what this package needs of c: TLS 1.3, which has no renegotiation,
// records as long as they can be, and nothing to resume.
func forLanes(c *tls.Config) *tls.Config {
	if c == nil {
		return nil
	}
	c = c.Clone()
	c.MinVersion = tls.VersionTLS13
	c.SessionTicketsDisabled = true
	c.ClientSessionCache = nil
	c.DynamicRecordSizingDisabled = true
	return c
}
