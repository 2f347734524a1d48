package quic

import (
	"errors"
	"net"
	"syscall"
)

// A patient socket loses what the system refuses to send for want of an address
// or a route, as a network would. quic-go ends a connection otherwise, which
// might go on in a moment: from another address, or when the cable is back.
type patient struct{ *net.UDPConn }

func (p patient) WriteMsgUDP(b, oob []byte, to *net.UDPAddr) (n, oobn int, err error) {
	n, oobn, err = p.UDPConn.WriteMsgUDP(b, oob, to)
	if unreachable(err) {
		return len(b), len(oob), nil
	}
	return n, oobn, err
}

func (p patient) WriteTo(b []byte, to net.Addr) (int, error) {
	n, err := p.UDPConn.WriteTo(b, to)
	if unreachable(err) {
		return len(b), nil
	}
	return n, err
}

func unreachable(err error) bool {
	for _, e := range []syscall.Errno{syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENETDOWN, syscall.EADDRNOTAVAIL} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
