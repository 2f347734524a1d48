//go:build linux

package tcp

import (
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unpaced is a congestion control that does not pace. Where nothing else is on the way pacing,
// as bbr's, costs a third to two thirds of the bandwidth: round trips of some µs tell it too
// little.
const unpaced = "reno"

// paces tells whether a congestion control does.
func paces(congestion string) bool { return strings.HasPrefix(congestion, "bbr") }

// unpace makes sockets of c start without pacing, and says which congestion control they
// would have had. A socket that was ever paced remains so, whatever it has later; so this comes
// before it is known where the other end is.
func unpace(c syscall.RawConn) (otherwise string, err error) {
	err = c.Control(func(fd uintptr) {
		otherwise, _ = unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		if paces(otherwise) {
			_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, unpaced) // who may not have it is slower
		}
	})
	return otherwise, err
}

func sameHost(s net.Conn) bool {
	here, ok1 := s.LocalAddr().(*net.TCPAddr)
	there, ok2 := s.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && (here.IP.IsLoopback() || here.IP.Equal(there.IP))
}

// What tells that a path is not free.
const (
	farRTT = time.Millisecond // it took longer at best,
	surely = 16               // of so many segments

	queueRTT = 5 * time.Millisecond // it takes longer while surely segments are on their way: there is a queue.
	sureRTT  = 24                   // The kernel's mean is of now after so many answers: one to a segment alone may be held back for 40 ms

	lossEvery = 1 << 12        // of so many segments
	lossMost  = lossEvery / 64 // more than these were sent again,
	lossTimes = 4              // so many times in a row: a veth loses some hundred at once when a receiver's window closes
)

// A lane looks whether its path is free while much of what it has sent is on its way, so often.
const (
	lookEvery = time.Millisecond
	lookBytes = 64 << 10
)

// notSentMost is about what the kernel takes of a lane beyond what it has put on the way, where
// the path is not free: what waits for longer is better kept where another path can have it.
const notSentMost = 64 << 10

// An outlook is what a lane knows of how free its path is. While it is, as between hosts of one
// room, whatever is sent leaves at once. Once it is not, and from then on, the system's
// congestion control decides, as for everybody's connections: whoever chose bbr did so for such paths.
type outlook struct {
	free       bool
	congestion string // the system's
	looked     time.Time
	unseen     int         // bytes sent since little was on its way when it was looked at
	due        atomic.Bool // those are many: look; read by others
	answers    uint32      // segments that had come by then, when unseen began
	segments   uint32      // sent, and
	resent     uint32      //   sent again, when lossEvery began
	lossy      int         // such rows before that had more than lossMost
}

// begin begins with what s is at the end of the handshake.
func (o *outlook) begin(s net.Conn, congestion string) {
	o.free, o.congestion = !sameHost(s), congestion // within a host there is no path
}

// sent says that so many bytes have left.
func (o *outlook) sent(n int) {
	if !o.free {
		return
	}
	if o.unseen += n; o.unseen >= lookBytes && !o.due.Load() {
		o.due.Store(true)
	}
}

// look asks the kernel, if it is of interest and was not asked just now.
func (o *outlook) look(fd int, now time.Time) {
	if !o.free || now.Sub(o.looked) < lookEvery {
		return
	}
	o.looked = now
	if info, ok := tcpInfo(fd); ok {
		o.see(fd, &info)
	}
}

func (o *outlook) see(fd int, info *unix.TCPInfo) {
	free := o.stillFree(info)
	if info.Unacked < surely || !free {
		o.unseen, o.answers = 0, info.Segs_in
		o.due.Store(false)
	}
	if free {
		return
	}
	o.free = false
	if paces(o.congestion) {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, o.congestion)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, notSentMost)
}

// stillFree judges what the kernel says.
func (o *outlook) stillFree(info *unix.TCPInfo) bool {
	if n := info.Segs_out - o.segments; n >= lossEvery {
		if resent := info.Total_retrans - o.resent; resent > n/lossEvery*lossMost {
			o.lossy++
		} else {
			o.lossy = 0
		}
		o.segments, o.resent = info.Segs_out, info.Total_retrans
	}
	far := info.Delivered >= surely && microseconds(info.Min_rtt) > farRTT
	queue := info.Unacked >= surely && info.Segs_in-o.answers >= sureRTT && microseconds(info.Rtt) > queueRTT
	return !far && !queue && o.lossy < lossTimes
}

func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
