package libp2p

// Streams is how many streams are open, of all peers.
func (e *Endpoint) Streams() (n int) {
	for _, c := range e.host.Network().Conns() {
		n += len(c.GetStreams())
	}
	return n
}
