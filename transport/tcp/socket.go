//go:build linux

package tcp

import (
	"fmt"
	"net"
	"syscall"
	"unsafe"
)

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
