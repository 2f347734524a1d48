package libp2p

import (
	"fmt"
	"strings"

	"github.com/libp2p/go-libp2p/core/peer"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/mpiv/mpiv/transport"
)

// maxAddrs is how many multiaddrs an address may have.
const maxAddrs = 32

// parseAddr reads an address with or without "libp2p:".
func parseAddr(text string) (peer.AddrInfo, error) {
	text = strings.TrimPrefix(text, Name+":")
	parts := strings.Split(text, ",")
	if len(parts) > maxAddrs {
		return peer.AddrInfo{}, fmt.Errorf("%d addresses, at most %d are allowed", len(parts), maxAddrs)
	}
	var all peer.AddrInfo
	for _, part := range parts {
		a, err := ma.NewMultiaddr(part)
		if err != nil {
			return peer.AddrInfo{}, fmt.Errorf("%w: an address is a multiaddr that ends in /p2p/ID", err)
		}
		info, err := peer.AddrInfoFromP2pAddr(a)
		if err != nil {
			return peer.AddrInfo{}, fmt.Errorf("%q: %w: an address is a multiaddr that ends in /p2p/ID", part, err)
		}
		if all.ID != "" && all.ID != info.ID {
			return peer.AddrInfo{}, fmt.Errorf("addresses of two peers, %s and %s", all.ID, info.ID)
		}
		all.ID = info.ID
		all.Addrs = append(all.Addrs, info.Addrs...)
	}
	return all, nil
}

// format is the inverse of parseAddr.
func format(info peer.AddrInfo) transport.Addr {
	texts := make([]string, len(info.Addrs))
	for i, a := range info.Addrs {
		texts[i] = fmt.Sprintf("%s/p2p/%s", a, info.ID)
	}
	return transport.Addr(Name + ":" + strings.Join(texts, ","))
}

// reachable is where others find the host: where it listens, and on its relays.
func (e *Endpoint) reachable() transport.Addr {
	self := peer.AddrInfo{ID: e.host.ID()}
	if e.opt.Address != "" {
		listens, err := e.host.Network().InterfaceListenAddresses()
		if err == nil {
			for _, a := range listens {
				if !circuit(a) {
					self.Addrs = append(self.Addrs, a)
				}
			}
		}
	}
	for _, r := range e.relays {
		for _, a := range r.Addrs {
			self.Addrs = append(self.Addrs, a.Encapsulate(ma.StringCast(fmt.Sprintf("/p2p/%s/p2p-circuit", r.ID))))
		}
	}
	return format(self)
}

// circuit tells whether a is through a relay.
func circuit(a ma.Multiaddr) bool {
	_, err := a.ValueForProtocol(ma.P_CIRCUIT)
	return err == nil
}
