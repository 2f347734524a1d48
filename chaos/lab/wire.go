//go:build linux

package lab

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// An Impairment is what a bad cable does to frames. The zero value is a good one.
type Impairment struct {
	Delay time.Duration // of every frame, each way
	Loss  float64       // share of the frames that are lost, each way, from 0 to 1
	Seed  uint64        // of the losses: which frames in the order they come
}

func (i Impairment) check() error {
	switch {
	case i.Delay < 0 || i.Delay > time.Minute:
		return fmt.Errorf("a delay of %v: it must be from 0 to 1m", i.Delay)
	case !(i.Loss >= 0 && i.Loss <= 1):
		return fmt.Errorf("a loss of %v: it must be from 0 to 1", i.Loss)
	}
	return nil
}

// String is i as mpivlab's impair takes it.
func (i Impairment) String() string {
	return fmt.Sprintf("%v %g%%", i.Delay, i.Loss*100)
}

// wireQueue bounds the frames on their way in one direction. What comes when it
// is full is lost: it holds 100 ms of 1 Gbit/s.
const wireQueue = 1 << 13

// A wire is a cable that runs through this process: a tap at each end, and a
// queue for each direction between them.
type wire struct {
	node, port *os.File // the taps

	cut  atomic.Bool
	stop context.CancelFunc
	done sync.WaitGroup
}

// A flight is a frame on its way.
type flight struct {
	due   time.Time
	frame []byte
}

// startWire makes both ends of l's cable, and carries frames between them.
func startWire(l *link, sw *node) (*wire, error) {
	w := &wire{}
	var err error
	if w.node, err = openTap(l.node.ns, l.network.Name); err != nil {
		return nil, err
	}
	if w.port, err = openTap(sw.ns, l.port); err != nil {
		w.node.Close()
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	w.direction(ctx, w.node, w.port, l.slow, 0)
	w.direction(ctx, w.port, w.node, l.slow, 1)
	return w, nil
}

// openTap makes an interface in ns whose frames are read from, and written to,
// the file. It is gone when the file is closed.
func openTap(ns *namespace, name string) (f *os.File, err error) {
	const path = "/dev/net/tun"
	err = ns.do(func() error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("delay and loss need %s: %w (%w)", path, err, ErrUnavailable)
		}
		req, err := unix.NewIfreq(name)
		if err == nil {
			req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			unix.Close(fd)
			return fmt.Errorf("tap %s: %w", name, err)
		}
		f = os.NewFile(uintptr(fd), path)
		return nil
	})
	return f, err
}

// direction carries frames from one tap to the other until the wire is closed.
func (w *wire) direction(ctx context.Context, from, to *os.File, i Impairment, stream uint64) {
	queue := make(chan flight, wireQueue)
	w.done.Go(func() {
		defer close(queue)
		dice := rand.New(rand.NewPCG(i.Seed, stream))
		buf := make([]byte, 1<<16)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return // closed
			}
			if dice.Float64() < i.Loss || w.cut.Load() {
				continue
			}
			f := flight{time.Now().Add(i.Delay), append([]byte(nil), buf[:n]...)}
			select {
			case queue <- f:
			default:
			}
		}
	})
	w.done.Go(func() {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for f := range queue {
			if wait := time.Until(f.due); wait > 0 {
				timer.Reset(wait)
				select {
				case <-timer.C:
				case <-ctx.Done():
					return
				}
			}
			if !w.cut.Load() {
				_, _ = to.Write(f.frame) // an end that is down takes nothing, as a cable that hangs loose
			}
		}
	})
}

// carry says whether the cable is connected. The node sees its carrier change.
func (w *wire) carry(yes bool) error {
	w.cut.Store(!yes)
	carrier := 0
	if yes {
		carrier = 1
	}
	raw, err := w.node.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	if err := raw.Control(func(fd uintptr) {
		set = unix.IoctlSetPointerInt(int(fd), unix.TUNSETCARRIER, carrier)
	}); err != nil {
		return err
	}
	return os.NewSyscallError("TUNSETCARRIER", set)
}

func (w *wire) close() {
	w.stop()
	w.node.Close()
	w.port.Close()
	w.done.Wait()
}
