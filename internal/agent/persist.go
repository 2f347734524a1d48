package agent

import (
	"net"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const tcpRTOMax = 44

// persist has the kernel try again each second what a cut has held up. Left to
// itself it waits for ever longer, and may miss a network that comes back for
// short whiles only. Older kernels do as they like.
func persist(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, tcpRTOMax, 1000) })
	}
}
