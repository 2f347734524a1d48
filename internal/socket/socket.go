//go:build linux

// Package socket is what agents ask of the kernel about their TCP connections.
//
// All of it does nothing to a connection that is not TCP's own, or was closed. Any goroutine
// may call it.
package socket

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// rtoMax is TCP_RTO_MAX_MS of linux/tcp.h, since Linux 6.15.
const rtoMax = 44

// Persist has the kernel try again what a cut has held up: at a steady pace at first, each fifth
// of a second or so, where little is on its way and congestion control is not by rate (bbr),
// and each second at last. Left to itself it waits for ever longer, and may miss a network that
// comes back for short whiles only. Older kernels do as they like.
func Persist(c net.Conn) {
	set(c, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	set(c, rtoMax, int(time.Second.Milliseconds()))
}

// Outwait has the kernel keep c, which would else be given up after some fifteen
// tries, until its reader has been patient for silence.
func Outwait(c net.Conn, silence time.Duration) {
	set(c, unix.TCP_USER_TIMEOUT, int(2*silence.Milliseconds()))
}

// set sets an option of c. What the kernel does not know it need not do.
func set(c net.Conn, option, value int) {
	Do(c, func(fd int) { unix.SetsockoptInt(fd, unix.IPPROTO_TCP, option, value) })
}

// Info is what the kernel knows of a TCP connection; nil: nothing, or it does not tell.
func Info(c net.Conn) (info *unix.TCPInfo) {
	Do(c, func(fd int) { info, _ = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO) })
	return info
}

// Do calls f with the descriptor of a TCP connection, which is open until f returns.
func Do(c net.Conn, f func(fd int)) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
