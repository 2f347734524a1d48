package agent

import (
	"net"

	"golang.org/x/sys/unix"
)

// lines is the connections over which copies of snapshots come and go now.
func (b *buddies) lines() (all []net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.guests {
		all = append(all, c)
	}
	if b.out != nil {
		all = append(all, b.out)
	}
	return all
}

// A carriage is what each of some connections had carried when it was last looked at.
type carriage map[net.Conn][2]uint64

// since is how many bytes came and went over the connections since the last time. The kernel knows: what a
// program has written may wait for long. Those that have ended meanwhile count no more.
func (c carriage) since(lines []net.Conn) (in, out uint64) {
	gone := make(map[net.Conn]bool, len(c))
	for l := range c {
		gone[l] = true
	}
	for _, l := range lines {
		delete(gone, l)
		now, ok := carriedBy(l)
		if !ok {
			continue
		}
		before := c[l]
		in, out = in+now[0]-before[0], out+now[1]-before[1]
		c[l] = now
	}
	for l := range gone {
		delete(c, l)
	}
	return in, out
}

// carriedBy is how many bytes have come over a TCP connection, and how many that were sent have
// arrived; false: the kernel does not tell.
func carriedBy(c net.Conn) (bytes [2]uint64, ok bool) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return bytes, false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return bytes, false
	}
	ok = false
	err = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes, ok = [2]uint64{info.Bytes_received, info.Bytes_acked}, true
		}
	})
	return bytes, ok && err == nil
}
