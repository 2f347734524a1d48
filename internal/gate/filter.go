//go:build linux

package gate

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// networkHeader is where, for a filter of a socket, the IP header begins: what the
// filter gets begins with that of TCP or UDP. SKF_NET_OFF in linux/filter.h.
const networkHeader = 0xfff00000

// program drops packets from places and keeps others. header is where the IP header
// begins.
func program(header uint32, places []netip.Addr) []bpf.Instruction {
	const drop, keep = 0, 0xffffffff
	var four, six []bpf.Instruction
	four = append(four, bpf.LoadAbsolute{Off: header + 12, Size: 4}) // the source
	for _, p := range places {
		if p.Is4() {
			a := p.As4()
			four = append(four,
				bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(a[:]), SkipFalse: 1},
				bpf.RetConstant{Val: drop})
			continue
		}
		a := p.As16()
		six = append(six,
			bpf.LoadAbsolute{Off: header + 8, Size: 4}, // the source's network
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(a[:]), SkipFalse: 3},
			bpf.LoadAbsolute{Off: header + 12, Size: 4},
			bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(a[4:]), SkipFalse: 1},
			bpf.RetConstant{Val: drop})
	}
	four = append(four, bpf.RetConstant{Val: keep})
	six = append(six, bpf.RetConstant{Val: keep})
	all := []bpf.Instruction{
		bpf.LoadAbsolute{Off: header, Size: 1},
		bpf.ALUOpConstant{Op: bpf.ALUOpShiftRight, Val: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: 4, SkipTrue: 1},
		bpf.Jump{Skip: uint32(len(four))},
	}
	return append(append(all, four...), six...)
}

// udpHeader is how long the header of UDP is.
const udpHeader = 8

// longHeaders applies p to what has a long header of QUIC, at so many bytes, and keeps
// the rest. All that opens a connection has one, and nothing that an open one needs.
func longHeaders(at uint32, p []bpf.Instruction) []bpf.Instruction {
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: at, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x80, SkipTrue: 1},
		bpf.RetConstant{Val: 0xffffffff},
	}, p...)
}

// shutOut has the kernel drop what comes to the TCP socket from places, instead of
// those before. Of a socket that never had such places the error may be ENOENT.
func shutOut(fd int, places []netip.Addr) error {
	if len(places) == 0 {
		return detach(fd)
	}
	return attach(fd, program(networkHeader, places))
}

// shutOutQUIC is shutOut for a UDP socket, of which only long headers are dropped.
func shutOutQUIC(fd int, places []netip.Addr) error {
	if len(places) == 0 {
		return detach(fd)
	}
	return attach(fd, longHeaders(udpHeader, program(networkHeader, places)))
}

func attach(fd int, p []bpf.Instruction) error {
	raw, err := bpf.Assemble(p)
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
}

func detach(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) }
