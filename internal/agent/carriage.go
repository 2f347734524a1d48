package agent

import (
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/transport/tcp"
)

// lines is the connections over which copies of snapshots come and go now.
func (b *buddies) lines() (all []net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.guests {
		all = append(all, c)
	}
	for h := range b.hauls {
		all = append(all, h.conn)
	}
	return all
}

// A haul is the connection over which copies go to another agent.
type haul struct {
	conn  net.Conn
	agent int
	addr  string // of its host

	// Guarded by the buddies' lock.
	meter  tcp.Meter
	course path.Course
	looked time.Time
}

// watch looks at the path of h until the function that it returns is called, which waits.
func (b *buddies) watch(h *haul) (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	b.mu.Lock()
	h.looked = time.Now()
	b.mu.Unlock()
	b.look(h)
	go func() {
		defer close(ended)
		tick := time.NewTicker(path.Look)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				b.look(h)
			case <-stop:
				b.look(h)
				return
			}
		}
	}()
	return func() { close(stop); <-ended }
}

func (b *buddies) look(h *haul) {
	b.mu.Lock()
	defer b.mu.Unlock()
	fdOf(h.conn, func(fd int) {
		now := time.Now()
		if info, ok := h.meter.Read(fd, now); ok {
			h.course.See(info, now, now.Sub(h.looked))
			h.looked = now
		}
	})
}

// carried is what was seen of the path over which copies go since the last time, over ago; nil: nothing went.
func (b *buddies) carried(over time.Duration) *control.Carried {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.out == nil {
		return nil
	}
	r, any := b.out.course.Read(over)
	if !any {
		return nil
	}
	return &control.Carried{Reading: r, Agent: b.out.agent, Addr: b.out.addr}
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
	info := tcpInfo(c)
	if info == nil {
		return bytes, false
	}
	return [2]uint64{info.Bytes_received, info.Bytes_acked}, true
}

// tcpInfo is what the kernel knows of a TCP connection; nil: nothing, or it does not tell.
func tcpInfo(c net.Conn) (info *unix.TCPInfo) {
	fdOf(c, func(fd int) { info, _ = unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO) })
	return info
}

// fdOf calls f with the socket of a TCP connection, unless it is none or was closed.
func fdOf(c net.Conn, f func(fd int)) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) { f(int(fd)) })
	}
}
