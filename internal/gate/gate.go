//go:build linux

// Package gate makes ports that cost little to flood.
//
// A [Gate] is a TCP listener; a [Guard] looks after the UDP sockets of a QUIC server.
//
// Who connects gets a goroutine only when its first bytes are all there and could be
// a member's: until then it is a descriptor and nothing else, and a stranger that
// sends something else costs three system calls. An address from which nobody but
// strangers come has a budget. When that is spent the kernel drops its attempts to
// connect, unanswered, for a second: they reach neither this process nor the cable.
// Addresses from which members come have no budget.
package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options of a Gate. First must be set.
type Options struct {
	// First is told what a connection has sent so far, and says how many bytes there
	// must be before it is worth a goroutine, or that it is a stranger's. It is asked
	// again when so many are there; up to 8 KiB can be asked for.
	First func(b []byte) (need int, ok bool)
	// Refused is told, by the goroutine that accepts, of each connection that is
	// turned away. It may be nil. Those that the kernel drops nobody sees.
	Refused func(from netip.AddrPort, why error)
	// Waiting is how many connections may be open whose first bytes are not all
	// there. When they are so many, the oldest goes of the address that has the most,
	// at once if that is no member's and has many, otherwise when it has had 100 ms;
	// newcomers wait meanwhile. Zero means 256.
	Waiting int
	// Patience is how long the first bytes may take. Zero means 2 s.
	Patience time.Duration
	// Control is that of the net.ListenConfig. It may be nil.
	Control func(network, address string, c syscall.RawConn) error
}

const (
	// grace is what who waits gets when others wait for its place.
	grace = 100 * time.Millisecond
	// few is how many may wait from one address as long as there is room at all.
	few = 16
	// batch is how many are accepted at a time.
	batch = 64
	// firstMost is how many first bytes are looked at.
	firstMost = 8 << 10
	// deferFor is how long the kernel keeps a connection to itself that says nothing.
	deferFor = 1 // s
)

// ErrHungUp is why one was refused that ended its connection, or whose connection broke.
var ErrHungUp = errors.New("it hung up before it had said who it is")

var (
	errFirst  = errors.New("its first bytes are not a member's")
	errSilent = errors.New("its first bytes did not come in time")
	errRoom   = errors.New("too many others came meanwhile")
)

// A Gate implements net.Listener. Accept is for one goroutine at a time.
type Gate struct {
	opt      Options
	addr     net.Addr
	fd       int      // of the socket that listens
	epoll    int      // watches fd and who waits
	file     *os.File // epoll, in Go's poller
	refusals atomic.Uint64

	mu      sync.Mutex // guards what follows; held for no I/O that waits
	closed  bool
	paused  bool // fd is not watched: there is no room
	peek    []byte
	waiting []*guest // oldest first
	byFD    map[int32]*guest
	counts  map[netip.Addr]int // of waiting, by place
	ready   []*guest
	told    []refusal // that Refused is to be told of
	budget  budget
	filter  bool // there was ever one on fd, so accepted sockets may have it
}

// A guest is a connection whose first bytes are not all there.
type guest struct {
	fd    int
	from  netip.AddrPort
	since time.Time
	need  int  // bytes until it is looked at again; 0: epoll does not watch it
	said  bool // there are some
}

// A refusal is what Refused is told.
type refusal struct {
	from netip.AddrPort
	why  error
}

// Listen listens as net.Listen("tcp", address) does.
func Listen(ctx context.Context, address string, o Options) (*Gate, error) {
	if o.Waiting == 0 {
		o.Waiting = 256
	}
	if o.Patience == 0 {
		o.Patience = 2 * time.Second
	}
	lc := net.ListenConfig{Control: o.Control}
	lc.SetMultipathTCP(false) // such a socket takes no filter
	ln, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer ln.Close() // the socket lives on
	g := &Gate{opt: o, addr: ln.Addr(), peek: make([]byte, firstMost), byFD: map[int32]*guest{}, counts: map[netip.Addr]int{}, budget: newBudget()}
	if g.fd, err = duplicate(ln.(*net.TCPListener)); err != nil {
		return nil, fmt.Errorf("listen %s: %w", address, err)
	}
	// So that a connection is looked at once, with its bytes; a kernel that cannot is
	// no reason to stop.
	_ = unix.SetsockoptInt(g.fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, deferFor)
	if g.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		unix.Close(g.fd)
		return nil, fmt.Errorf("listen %s: make an epoll descriptor: %w", address, err)
	}
	err = unix.SetNonblock(g.epoll, true) // or else NewFile keeps it out of the poller
	if err == nil {
		err = g.watchLocked(unix.EPOLL_CTL_ADD, g.fd, unix.EPOLLIN)
	}
	if err != nil {
		unix.Close(g.fd)
		unix.Close(g.epoll)
		return nil, fmt.Errorf("listen %s: watch the socket: %w", address, err)
	}
	g.file = os.NewFile(uintptr(g.epoll), "epoll")
	return g, nil
}

func duplicate(ln *net.TCPListener) (fd int, err error) {
	raw, err := ln.SyscallConn()
	if err != nil {
		return 0, err
	}
	err2 := raw.Control(func(old uintptr) { fd, err = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) })
	return fd, errors.Join(err, err2)
}

// Addr is where the gate listens.
func (g *Gate) Addr() net.Addr { return g.addr }

// Strangers is how many connections were turned away. Those from where members are that hung up are none: a member may
// have found a better path meanwhile.
func (g *Gate) Strangers() uint64 { return g.refusals.Load() }

// Expect says that members are at these addresses, which therefore have no budget.
func (g *Gate) Expect(addrs ...netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed { // fd may be another's
		return
	}
	for _, a := range addrs {
		if g.budget.expect(place(a)) {
			g.filterLocked()
		}
	}
}

// Member says that from there came one who has shown to be a member: Expect, for an
// address of a net.Conn.
func (g *Gate) Member(a net.Addr) {
	if t, ok := a.(*net.TCPAddr); ok {
		g.Expect(t.AddrPort().Addr())
	}
}

// HungUp tells whether err, of a connection from a, is that it was ended there, where members are.
func (g *Gate) HungUp(a net.Addr, err error) bool {
	t, ok := a.(*net.TCPAddr)
	if !ok || !Broken(err) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.budget.expected(place(t.AddrPort().Addr()))
}

// Broken tells whether err is that the other end of a connection has ended it, or that it broke.
func Broken(err error) bool {
	return slices.ContainsFunc([]error{ErrHungUp, io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(because error) bool { return errors.Is(err, because) })
}

// Accept waits for a connection whose first bytes are there and could be a member's;
// nothing of them has been read. After Close the error is net.ErrClosed; after
// others, such as a lack of descriptors, it may be called again.
func (g *Gate) Accept() (net.Conn, error) {
	raw, err := g.file.SyscallConn()
	if err != nil {
		return nil, net.ErrClosed
	}
	var events [batch]unix.EpollEvent
	n := 0
	wait := func(fd uintptr) bool {
		for {
			var err error
			n, err = unix.EpollWait(int(fd), events[:], 0)
			if err != unix.EINTR {
				return n != 0 // an error is -1
			}
		}
	}
	for {
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			return nil, net.ErrClosed
		}
		var first *guest
		var next time.Time
		if len(g.ready) > 0 {
			first = g.ready[0]
			g.ready = slices.Delete(g.ready, 0, 1)
		} else {
			next = g.tickLocked(time.Now())
		}
		told := g.told
		g.told = nil
		g.mu.Unlock()
		for _, r := range told {
			g.opt.Refused(r.from, r.why)
		}
		if first != nil {
			return first.conn()
		}
		n = 0
		if g.file.SetReadDeadline(next) != nil {
			return nil, net.ErrClosed
		}
		if err := raw.Read(wait); errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		} else if err != nil {
			return nil, net.ErrClosed
		}
		if n < 0 {
			panic("gate: its own epoll descriptor is none")
		}
		if err := g.handle(events[:n]); err != nil {
			return nil, err
		}
	}
}

// handle does what events ask for. The error is accept's.
func (g *Gate) handle(events []unix.EpollEvent) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	for _, ev := range events { // first those who were here first
		if w := g.byFD[ev.Fd]; w != nil {
			g.lookLocked(w, ev.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0)
		}
	}
	for _, ev := range events {
		if int(ev.Fd) == g.fd {
			err = g.acceptLocked()
		}
	}
	return err
}

// acceptLocked takes from the kernel who has connected.
func (g *Gate) acceptLocked() error {
	for range batch {
		now := time.Now()
		full := len(g.waiting) >= g.opt.Waiting
		if full && !g.somebodyLocked() {
			return nil // nobody goes for nobody
		}
		if full && !g.makeRoomLocked(now) {
			g.paused = true
			return g.watchLocked(unix.EPOLL_CTL_MOD, g.fd, 0)
		}
		fd, sa, err := unix.Accept4(g.fd, unix.SOCK_CLOEXEC) // blocking: so os.NewFile leaves it out of Go's poller
		switch err {
		case nil:
		case unix.EAGAIN:
			return nil
		case unix.EINTR, unix.ECONNABORTED:
			continue
		default:
			return fmt.Errorf("accept at %v: %w", g.addr, err)
		}
		w := &guest{fd: fd, from: addrPort(sa), since: now}
		if g.budget.charge(place(w.from.Addr()), now) {
			g.filterLocked()
		}
		g.lookLocked(w, false)
	}
	return nil
}

// somebodyLocked tells whether the kernel has somebody to accept, or an error that accept tells.
func (g *Gate) somebodyLocked() bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(g.fd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR {
			return n != 0 // an error is -1
		}
	}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// lookLocked looks at what w has sent. ended: no more will come.
func (g *Gate) lookLocked(w *guest, ended bool) {
	n, _, err := unix.Recvfrom(w.fd, g.peek, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if err == unix.EAGAIN || err == unix.EINTR {
		n, err = 0, nil
	} else if n == 0 {
		ended = true
	}
	if err != nil {
		g.refuseLocked(w, ErrHungUp)
		return
	}
	w.said = n > 0
	need, ok := g.opt.First(g.peek[:n])
	switch {
	case !ok || need > firstMost:
		g.refuseLocked(w, errFirst)
	case n >= need:
		g.passLocked(w)
	case ended:
		g.refuseLocked(w, ErrHungUp)
	case need != w.need:
		g.holdLocked(w, need)
	}
}

// holdLocked has w wait until it has sent that many bytes; the kernel counts them.
func (g *Gate) holdLocked(w *guest, need int) {
	err := unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, need)
	if w.need == 0 && err == nil {
		if err = g.watchLocked(unix.EPOLL_CTL_ADD, w.fd, unix.EPOLLIN|unix.EPOLLRDHUP); err == nil {
			g.waiting = append(g.waiting, w)
			g.byFD[int32(w.fd)] = w
			g.counts[place(w.from.Addr())]++
		}
	}
	w.need = need
	if err != nil {
		g.refuseLocked(w, fmt.Errorf("it cannot be watched: %w", err))
	}
}

// passLocked makes w ready for Accept.
func (g *Gate) passLocked(w *guest) {
	if w.need > 0 {
		g.leaveLocked(w)
		// Neither can fail: the one is watched, the other any socket takes.
		_ = g.watchLocked(unix.EPOLL_CTL_DEL, w.fd, 0)
		_ = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	}
	if g.filter {
		_ = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) // ENOENT if there was none then
	}
	g.ready = append(g.ready, w)
}

// refuseLocked turns w away: the connection is reset, which is one packet and no
// farewell.
func (g *Gate) refuseLocked(w *guest, why error) {
	g.leaveLocked(w)
	if !w.said { // the kernel resets by itself where bytes are unread
		_ = unix.SetsockoptLinger(w.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // any socket takes it
	}
	unix.Close(w.fd)
	if why != ErrHungUp || !g.budget.expected(place(w.from.Addr())) {
		g.refusals.Add(1)
	}
	if g.opt.Refused != nil {
		g.told = append(g.told, refusal{w.from, why})
	}
}

func (g *Gate) leaveLocked(w *guest) {
	if g.byFD[int32(w.fd)] != w {
		return
	}
	delete(g.byFD, int32(w.fd))
	i := slices.Index(g.waiting, w)
	g.waiting = slices.Delete(g.waiting, i, i+1)
	p := place(w.from.Addr())
	if g.counts[p]--; g.counts[p] == 0 {
		delete(g.counts, p)
	}
}

// makeRoomLocked turns one away who waits; false: not now.
func (g *Gate) makeRoomLocked(now time.Time) bool {
	greedy, most := netip.Addr{}, few
	for p, n := range g.counts {
		if n > most && !g.budget.expected(p) {
			greedy, most = p, n
		}
	}
	if most > few {
		i := slices.IndexFunc(g.waiting, func(w *guest) bool { return place(w.from.Addr()) == greedy })
		g.refuseLocked(g.waiting[i], errRoom)
		return true
	}
	oldest := g.waiting[0]
	if now.Sub(oldest.since) < grace {
		return false
	}
	g.refuseLocked(oldest, errRoom)
	return true
}

// tickLocked does what is due, and says when the next is; zero is never.
func (g *Gate) tickLocked(now time.Time) (next time.Time) {
	for len(g.waiting) > 0 && !now.Before(g.waiting[0].since.Add(g.opt.Patience)) {
		g.refuseLocked(g.waiting[0], errSilent)
	}
	if g.budget.reopen(now) {
		g.filterLocked()
	}
	next = g.budget.next()
	if len(g.waiting) > 0 {
		next = earlier(next, g.waiting[0].since.Add(g.opt.Patience))
	}
	if g.paused {
		if at := g.waiting0(); len(g.waiting) < g.opt.Waiting || !now.Before(at.Add(grace)) {
			g.paused = false
			_ = g.watchLocked(unix.EPOLL_CTL_MOD, g.fd, unix.EPOLLIN) // it is watched
		} else {
			next = earlier(next, at.Add(grace))
		}
	}
	return next
}

// waiting0 is since when the oldest waits; zero if nobody does.
func (g *Gate) waiting0() (t time.Time) {
	if len(g.waiting) > 0 {
		t = g.waiting[0].since
	}
	return t
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

// filterLocked tells the kernel whom to drop. A kernel that cannot is no reason to
// stop: then each is turned away here.
func (g *Gate) filterLocked() {
	g.filter = shutOut(g.fd, g.budget.shutPlaces()) == nil || g.filter
}

func (g *Gate) watchLocked(op, fd int, events uint32) error {
	return unix.EpollCtl(g.epoll, op, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

// conn makes w's socket one of Go's.
func (w *guest) conn() (net.Conn, error) {
	f := os.NewFile(uintptr(w.fd), "")
	defer f.Close() // FileConn duplicates it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("accept from %v: %w", w.from, err)
	}
	return c, nil
}

// Close ends Accept and turns away who waits. Twice is harmless.
func (g *Gate) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	g.closed = true
	unix.Close(g.fd)
	for _, w := range append(slices.Clone(g.waiting), g.ready...) {
		unix.Close(w.fd)
	}
	g.waiting, g.ready, g.byFD, g.counts = nil, nil, nil, nil
	return g.file.Close()
}
