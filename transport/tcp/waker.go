//go:build linux

package tcp

import (
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
)

// A waker waits for the sockets of all Conns that are armed. Its epoll
// descriptor is itself in Go's poller, so its one goroutine blocks no thread.
type waker struct {
	file *os.File
	fd   int

	mu    sync.Mutex // guards what follows
	conns map[uint64]*Conn
	last  uint64
	ended bool
}

func newWaker() (*waker, error) {
	fd, err := syscall.EpollCreate1(syscall.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make an epoll descriptor: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // or else NewFile keeps it out of the poller
		closeFD(fd)
		return nil, fmt.Errorf("make the epoll descriptor non-blocking: %w", err)
	}
	return &waker{file: os.NewFile(uintptr(fd), "epoll"), fd: fd, conns: make(map[uint64]*Conn)}, nil
}

// add makes c known, and gives it its id.
func (w *waker) add(c *Conn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.last++
	c.id = w.last
	for _, fd := range c.fds {
		if err := c.ask(syscall.EPOLL_CTL_ADD, fd, 0); err != nil {
			return fmt.Errorf("watch the socket: %w", err)
		}
	}
	w.conns[c.id] = c
	return nil
}

func (w *waker) remove(c *Conn) {
	w.mu.Lock()
	delete(w.conns, c.id)
	w.mu.Unlock()
}

// loop wakes until close.
func (w *waker) loop() {
	raw, err := w.file.SyscallConn()
	if err != nil {
		return // closed
	}
	var events [64]syscall.EpollEvent
	var n int
	wait := func(fd uintptr) bool {
		for {
			n, err = syscall.EpollWait(int(fd), events[:], 0)
			if err != syscall.EINTR {
				return n != 0
			}
		}
	}
	for {
		if raw.Read(wait) != nil {
			return // closed
		}
		if err != nil {
			panic(fmt.Sprintf("tcp: wait for the epoll descriptor: %v", err))
		}
		for _, ev := range events[:n] {
			w.mu.Lock()
			c := w.conns[uint64(uint32(ev.Fd))|uint64(uint32(ev.Pad))<<32]
			w.mu.Unlock()
			if c != nil {
				c.wake()
			}
		}
	}
}

// close ends loop. No Conn may arm any more.
func (w *waker) close() {
	w.mu.Lock()
	w.ended = true
	w.mu.Unlock()
	w.file.Close()
}

// Arm asks epoll for one event of each lane. Epoll looks at a socket's state
// when it is asked, so an Arm that comes late fires at once.
func (c *Conn) Arm(wake func()) {
	c.arm.Lock()
	c.arm.wake = wake
	c.armed.Store(true)
	due := !c.alive() // then the sockets may be gone
	if !due {
		due = c.in[0].more.Load() || c.in[1].more.Load()
		for i := range c.fds {
			c.askFor(i, c.wanted(i))
		}
	}
	c.arm.Unlock()
	if due {
		c.wake()
	}
}

// disarm takes back what Arm asked for. Who polls needs no wake, and each message would wake the thread that waits
// for events, which would find that it was received already.
func (c *Conn) disarm() {
	c.arm.Lock()
	defer c.arm.Unlock()
	if c.arm.wake == nil || !c.alive() {
		return
	}
	c.arm.wake = nil
	c.armed.Store(false)
	for i := range c.fds {
		c.askFor(i, 0)
	}
}

// rearm asks for room where a Send or Flush has left something behind since Arm.
func (c *Conn) rearm() {
	if !c.armed.Load() || !c.lanes[0].waiting() && !c.lanes[1].waiting() {
		return
	}
	c.arm.Lock()
	defer c.arm.Unlock()
	for i := range c.fds {
		if c.arm.wake != nil && c.lanes[i].waiting() && c.alive() {
			c.askFor(i, c.wanted(i))
		}
	}
}

// wanted is the events of a lane: something has come, or there is room for what waits.
func (c *Conn) wanted(lane int) uint32 {
	if c.lanes[lane].waiting() {
		return syscall.EPOLLIN | syscall.EPOLLRDHUP | syscall.EPOLLOUT
	}
	return syscall.EPOLLIN | syscall.EPOLLRDHUP
}

// askFor asks epoll for one of these events of a lane. c.arm is held, and c is alive.
func (c *Conn) askFor(lane int, events uint32) {
	if err := c.ask(syscall.EPOLL_CTL_MOD, c.fds[lane], events); err != nil {
		panic(fmt.Sprintf("tcp: arm a connection to %s: %v", c.peer, err))
	}
}

// ask asks epoll for one event of a socket.
func (c *Conn) ask(op, fd int, events uint32) error {
	ev := syscall.EpollEvent{Events: events | syscall.EPOLLONESHOT, Fd: int32(c.id), Pad: int32(c.id >> 32)}
	return syscall.EpollCtl(c.e.waker.fd, op, fd, &ev)
}

// wake makes the one call that Arm asked for.
func (c *Conn) wake() {
	c.arm.Lock()
	wake := c.arm.wake
	c.arm.wake = nil
	c.armed.Store(false)
	c.arm.Unlock()
	if wake != nil {
		wake()
	}
}
