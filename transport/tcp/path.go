//go:build linux

package tcp

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/transport"
)

// Path implements transport.Measured. Of a Conn that was closed here it is zero.
func (c *Conn) Path() (p transport.PathInfo) {
	c.out.Lock() // Close has it once before the sockets are closed
	defer c.out.Unlock()
	if !c.openLocked() {
		return p
	}
	now := time.Now()
	for i := range c.lanes {
		o := &c.lanes[i]
		lane, _ := o.meter.Read(o.fd, now)
		p.RTT = max(p.RTT, lane.RTT)
		p.Retransmits += lane.Retransmits
		p.Delivered += lane.Delivered
		p.Sent += lane.Sent
		p.Received += lane.Received
		p.Stalled = max(p.Stalled, lane.Stalled)
		p.Oldest = max(p.Oldest, lane.Oldest)
		p.Unacked += lane.Unacked
		p.Queued = p.Queued || lane.Queued
	}
	return p
}

// A Meter reads how the path of one TCP socket does, whoever's it is. The zero value is for one that
// was not read yet.
type Meter struct {
	stall stall
	age   age
}

// Read is how the path does now; false: the kernel does not tell.
func (m *Meter) Read(fd int, now time.Time) (p transport.PathInfo, ok bool) {
	info, ok := tcpInfo(fd)
	if !ok {
		return p, false
	}
	p = transport.PathInfo{RTT: time.Duration(info.Rtt) * time.Microsecond, Retransmits: uint64(info.Total_retrans),
		Delivered: info.Bytes_acked, Sent: info.Bytes_sent, Received: info.Bytes_received, Stalled: m.stall.observe(now, &info), Oldest: m.age.observe(now, &info)}
	if info.Unacked > 0 || info.Notsent_bytes > 0 {
		p.Unacked, p.Queued = outstanding(fd), queued(&info)
	}
	return p, true
}

// queued tells whether bytes wait for the path, as congestion control sees it, though the
// peer would take them.
func queued(info *unix.TCPInfo) bool {
	return info.Notsent_bytes > 0 && (info.Unacked+1)*info.Snd_mss < info.Snd_wnd
}

// A stall is how long a lane's path has owed its socket an answer, as far as
// observations tell: never longer than it was.
type stall struct {
	owed      bool      // an answer, at the last observation
	since     time.Time // no later than then; if owed
	delivered uint32    // segments, by then
}

// observe takes what the kernel says of the socket at now.
//
// A peer that does not read closes its window: its kernel answers probes of it,
// and segments that it has no room for, with the same number again and again.
// Then any answer shows that the path is well. With the window open, only
// delivery does: what comes the other way has acknowledgements too, old ones.
func (s *stall) observe(now time.Time, info *unix.TCPInfo) time.Duration {
	open := info.Unacked > 0 && info.Snd_wnd > 0
	owed := open
	switch {
	case open:
	case info.Unacked > 0:
		owed = info.Last_ack_recv > info.Last_data_sent
	default:
		owed = info.Probes > 0
	}
	if !s.owed || info.Delivered != s.delivered {
		s.since = now
	}
	s.owed, s.delivered = owed, info.Delivered
	if !owed {
		return 0
	}
	if open {
		// What is on its way has been since the last segment left, at least.
		least := now.Add(-milliseconds(min(info.Last_ack_recv, info.Last_data_sent)))
		if least.Before(s.since) {
			s.since = least
		}
	} else if answer := now.Add(-milliseconds(info.Last_ack_recv)); answer.After(s.since) {
		s.since = answer
	}
	return now.Sub(s.since)
}

// An age is how long the oldest of the bytes on their way has been: those that had left by a time
// have not all arrived.
type age struct {
	at   time.Time
	left uint64 // bytes, by then
}

// observe takes what the kernel says of the socket at now. While the peer has no room, its program is
// what bytes wait for.
func (a *age) observe(now time.Time, info *unix.TCPInfo) time.Duration {
	if info.Unacked == 0 || info.Snd_wnd == 0 || info.Bytes_acked >= a.left {
		a.at, a.left = now, info.Bytes_sent-info.Bytes_retrans
	}
	return now.Sub(a.at)
}

func milliseconds(n uint32) time.Duration { return time.Duration(n) * time.Millisecond }

// tcpInfo is what the kernel says of a socket; fields that it does not know are
// zero.
func tcpInfo(fd int) (info unix.TCPInfo, ok bool) {
	n := uint32(unix.SizeofTCPInfo)
	_, _, errno := syscall.RawSyscall6(syscall.SYS_GETSOCKOPT, uintptr(fd), syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&n)), 0)
	return info, errno == 0
}

// outstanding is how many bytes of a socket the peer's kernel has not
// acknowledged.
func outstanding(fd int) (n int) {
	var v int32
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(fd), unix.TIOCOUTQ, uintptr(unsafe.Pointer(&v)))
	if errno == 0 {
		n = int(v)
	}
	return n
}
