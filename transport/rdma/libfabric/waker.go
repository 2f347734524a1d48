//go:build ofi && cgo && linux

package libfabric

// #include "fabric.h"
import "C"

import (
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Where completion queues cannot be waited for, the waker looks at them, at first
// after shortNap, and each time in vain after twice as long, up to longNap.
const (
	shortNap = 20 * time.Microsecond
	longNap  = 500 * time.Microsecond
)

// A waker makes progress while a queue pair is armed and nobody polls.
type waker struct {
	d         *Domain
	file      *os.File // epoll, with the completion queues' descriptors, in Go's poller; may be nil
	raw       syscall.RawConn
	kicks     chan struct{} // holds one
	kicked    atomic.Bool   // to look again before the next sleep
	congested atomic.Bool   // a queue pair that is armed waits for room that nobody announces
}

func newWaker(d *Domain) (*waker, error) {
	w := &waker{d: d, kicks: make(chan struct{}, 1)}
	if d.fabric.c.fd[0] < 0 {
		return w, nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err == nil {
		err = unix.SetNonblock(fd, true) // or else NewFile keeps it out of the poller
	}
	if err != nil {
		return nil, fmt.Errorf("make an epoll descriptor: %w", err)
	}
	w.file = os.NewFile(uintptr(fd), "completion queues")
	w.raw, err = w.file.SyscallConn()
	return w, err
}

// kick has the waker look now.
func (w *waker) kick() {
	w.kicked.Store(true)
	select {
	case w.kicks <- struct{}{}:
	default:
	}
	if w.file != nil {
		w.file.SetReadDeadline(time.Unix(1, 0))
	}
}

func (w *waker) loop() {
	for {
		select {
		case <-w.kicks:
		case <-w.d.closed:
			return
		}
		for nap := shortNap; w.d.armed.Load() > 0 && !w.d.isClosed(); {
			w.kicked.Store(false)
			switch {
			case w.d.progressAll():
				nap = shortNap
			case w.congested.Swap(false):
				time.Sleep(longNap)
				for _, q := range w.d.all() {
					q.fire()
				}
			case w.file != nil:
				w.sleep()
			default:
				time.Sleep(nap)
				nap = min(2*nap, longNap)
			}
		}
	}
}

// sleep waits for the completion queues, or a kick. Only now does epoll watch them:
// otherwise it would wake a thread of Go's for each message that a caller polls.
func (w *waker) sleep() {
	w.file.SetReadDeadline(time.Time{})
	w.watch(unix.EPOLL_CTL_ADD)
	defer w.watch(unix.EPOLL_CTL_DEL)
	if w.kicked.Load() || !w.d.fabric.maySleep() {
		return
	}
	var poll [1]unix.PollFd
	w.raw.Read(func(fd uintptr) bool {
		poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		n, err := unix.Poll(poll[:], 0)
		return n != 0 && err != unix.EINTR
	})
}

func (w *waker) watch(op int) {
	w.raw.Control(func(epoll uintptr) {
		for _, queue := range w.d.fabric.c.fd {
			if err := unix.EpollCtl(int(epoll), op, int(queue), &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
				panic(fmt.Sprintf("libfabric: watch a completion queue's descriptor: %v", err))
			}
		}
	})
}

// maySleep tells whether what comes from now on will show at the descriptors.
func (f *fabric) maySleep() bool {
	if !f.enter() {
		return false
	}
	defer f.leave()
	return C.mpiv_may_sleep(f.c) != 0
}

// close ends loop. The domain is closed.
func (w *waker) close() {
	w.kick()
	if w.file != nil {
		w.file.Close()
	}
}
