package agent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const tcpRTOMax = 44

// persist has the kernel try again what a cut has held up: at a steady pace at first, each fifth
// of a second or so, where little is on its way and congestion control is not by rate (bbr),
// and each second at last. Left to itself it waits for ever longer, and may miss a network that
// comes back for short whiles only. Older kernels do as they like.
func persist(c net.Conn) {
	setTCP(c, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	setTCP(c, tcpRTOMax, int(time.Second.Milliseconds()))
}

// outwait has the kernel keep c, which would else be given up after some fifteen
// tries, until its reader has been patient for silence.
func outwait(c net.Conn, silence time.Duration) {
	setTCP(c, unix.TCP_USER_TIMEOUT, int(2*silence.Milliseconds()))
}

// setTCP sets an option of c. What the kernel does not know it need not do.
func setTCP(c net.Conn, option, value int) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, option, value) })
	}
}
