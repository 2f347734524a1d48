//go:build linux

package tcp

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// notSentMost is about what the kernel takes of a lane beyond what it has put on
// the way to another host. More leaves the caches before it is sent: of 1 MiB
// messages both ways over a veth, 2.8 GB/s passed without a limit and 3.2 with
// this one (2-core Xeon VM, medians of 14 by turns); 128 KiB was as good as none.
const notSentMost = 64 << 10

// The calls below do not tell Go's scheduler that they are system calls: the
// sockets do not block, so they take as long as copying takes, and an 8-byte
// message would pay a twentieth of its way for the telling.

func read(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), syscall.MSG_DONTWAIT, 0, 0)
	return int(n), errno
}

func write(fd int, p []byte) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
	return int(n), errno
}

func readv(fd int, iov []syscall.Iovec) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_READV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}

func writev(fd int, iov []syscall.Iovec) (int, syscall.Errno) {
	n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
	return int(n), errno
}

func vec(p []byte) syscall.Iovec {
	v := syscall.Iovec{Base: unsafe.SliceData(p)}
	v.SetLen(len(p))
	return v
}

// later tells whether a call that did not succeed may succeed another time.
func later(errno syscall.Errno) bool {
	return errno == syscall.EAGAIN || errno == syscall.EINTR || errno == syscall.ENOBUFS || errno == syscall.ENOMEM
}

func closeFD(fd int) { syscall.Close(fd) }

// detach takes the socket out of s, and with it out of Go's poller. s is still
// to be closed.
func detach(s net.Conn) (fd int, err error) {
	raw, err := s.(*net.TCPConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var errno syscall.Errno
	err = raw.Control(func(old uintptr) {
		var r uintptr
		r, _, errno = syscall.Syscall(syscall.SYS_FCNTL, old, syscall.F_DUPFD_CLOEXEC, 3)
		fd = int(r)
	})
	if err == nil && errno != 0 {
		err = fmt.Errorf("duplicate the socket: %w", errno)
	}
	return fd, err
}

// unpaced is a congestion control that does not pace. Where there is no congestion pacing, as
// bbr's, costs a third of the bandwidth.
const unpaced = "reno"

// unpace makes sockets of c start without pacing, and says which congestion control they
// would have had. A socket that was ever paced remains so, whatever it has later; so this comes
// before it is known where the other end is.
func unpace(c syscall.RawConn) (otherwise string, err error) {
	err = c.Control(func(fd uintptr) {
		otherwise, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpaced) // who may not have it is slower
	})
	return otherwise, err
}

// tune sets what this package wants otherwise than net does. To another host s goes with the
// system's congestion control.
func tune(fd int, s net.Conn, congestion string) {
	if sameHost(s) {
		return
	}
	if now, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && now == unpaced && congestion != "" {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentMost)
}

func sameHost(s net.Conn) bool {
	here, ok1 := s.LocalAddr().(*net.TCPAddr)
	there, ok2 := s.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && (here.IP.IsLoopback() || here.IP.Equal(there.IP))
}
