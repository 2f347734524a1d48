package libfabric

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/rdma"
)

// Name is the first part of this network's addresses.
const Name = "ofi"

// Network makes endpoints over a provider of libfabric, such as "tcp;ofi_rxm".
// Where this program was built without libfabric, they cannot listen.
func Network(provider string) transport.Network {
	return transport.Network{Name: Name, Named: true, Device: true, Short: maxBody, Listen: func(ctx context.Context, s transport.Site) (transport.Endpoint, error) {
		d, err := Listen(ctx, Options{
			Provider: provider, Listen: net.JoinHostPort(s.Address, "0"), Secret: s.Secret, TLS: s.TLS, Log: s.Log,
		})
		if err != nil {
			return nil, err
		}
		return rdma.New(d), nil
	}}
}

// Options of a Domain. The zero value works, among processes of one host where
// nobody else is.
type Options struct {
	// Provider is the one to use, as fi_info -l names it, with its utility
	// provider after a semicolon. Zero means "shm".
	Provider string
	// Listen is the host and port of the side channel; the fabric's endpoints are
	// on the same host address. Zero means 127.0.0.1, any port.
	Listen string
	// TLS is for the side channel, for both ends of it. Nil means none.
	TLS *tls.Config
	// Secret is what both ends must know, also with TLS. They show that they do, and
	// do not tell it.
	Secret [16]byte
	// Handshakes is how many may be unfinished at a time. When they are so many,
	// the oldest goes once it has had 100 ms. Zero means 64.
	Handshakes int
	// Patience is how long a handshake may take. Zero means 5 s.
	Patience time.Duration
	// Naps wakes by looking now and then, after at most 0.5 ms, instead of by the
	// completion queues' descriptors. A message then costs less where those are the
	// provider's own making (tcp;ofi_rxm: two system calls each), and a process
	// that waits for long uses some of its processor. Where there are no
	// descriptors (shm) it is so anyway.
	Naps bool
	// RegisterLocal behaves as where the provider reaches no memory that was not
	// registered.
	RegisterLocal bool
	// Log is told who was refused, and why. Zero means slog.DiscardHandler.
	Log *slog.Logger
}
