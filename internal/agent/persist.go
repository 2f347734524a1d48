package agent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// tcpRTOMax is TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const tcpRTOMax = 44

// persist has the kernel try again each second what a cut has held up. Left to
// itself it waits for ever longer, and may miss a network that comes back for
// short whiles only. Older kernels do as they like.
func persist(c net.Conn) { setTCP(c, tcpRTOMax, int(time.Second.Milliseconds())) }

// insist is persist for what is little and must come soon: it is tried again at the same
// pace, each fifth of a second or so, for the first six times. Congestion control by rate
// (bbr) would not have that.
func insist(c net.Conn) {
	persist(c)
	setTCP(c, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	onSocket(c, func(fd int) { unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno") })
}

// outwait has the kernel keep c, which would else be given up after some fifteen
// tries, until its reader has been patient for silence.
func outwait(c net.Conn, silence time.Duration) {
	setTCP(c, unix.TCP_USER_TIMEOUT, int(2*silence.Milliseconds()))
}

// setTCP sets an option of c. What the kernel does not know it need not do.
func setTCP(c net.Conn, option, value int) {
	onSocket(c, func(fd int) { unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) })
}

func onSocket(c net.Conn, do func(fd int)) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { do(int(fd)) })
	}
}
