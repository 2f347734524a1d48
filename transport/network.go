package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
)

// A Network is a way to make endpoints: what a program hands to mpiv.Main to be
// able to use it.
type Network struct {
	Name   string // "quic": the first part of its addresses
	Named  bool   // it is used only where the user names it: it does not encrypt, or must not be taken for granted
	Relays bool   // its endpoints are reached through others, too: see Site.Relays
	Device bool   // a device may write to a program's memory without the system's knowing when
	Short  int    // MaxBody of its connections, if that is less than 64 KiB; else zero
	Listen func(ctx context.Context, s Site) (Endpoint, error)
}

// A Site is where an endpoint is to listen, and whom it is to serve.
type Site struct {
	Address string      // of this host on the network to listen on: an IP address, without a port
	Secret  [16]byte    // that all processes of the job share
	TLS     *tls.Config // for both ends: who this process is and whom it accepts. Nil: nobody is asked
	Relays  []string    // addresses of endpoints of the same network, through which this one is reached, too, where that can be
	Log     *slog.Logger
}

// An Expecter is an Endpoint that keeps strangers out, and does so better when it is
// told where members of the job are: peers, those of other networks among them.
type Expecter interface{ Expect(peers []Addr) }

// A Forgetter is an Endpoint that others reach each other through: it is told of an end that is no more, so that what
// goes through it ends at once. It must not wait.
type Forgetter interface{ Forget(peer Addr) }

// An Authenticated Conn knows who its peer is: the peer has proved to have the
// key of this certificate, and Site.TLS has accepted it. Nil where Site.TLS was.
type Authenticated interface {
	Certificate() *x509.Certificate
}
