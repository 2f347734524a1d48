package libp2p

// Streams is how many streams are open, of all peers.
func (e *Endpoint) Streams() (n int) {
	for _, c := range e.host.Network().Conns() {
		n += len(c.GetStreams())
	}
	return n
}

// Cut ends the connections to another.
func (e *Endpoint) Cut(o *Endpoint) { e.host.Network().ClosePeer(o.host.ID()) }

// Has tells whether it is connected.
func (e *Endpoint) Has(o *Endpoint) bool { return len(e.host.Network().ConnsToPeer(o.host.ID())) > 0 }
