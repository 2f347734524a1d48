//go:build linux

package lab

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// A throttle stops the processes of a host again and again.
type throttle struct {
	stop context.CancelFunc
	done chan struct{}
}

// Throttle lets the processes of a host run for the one time and stops them for
// the other, in turn, until it is called with stop zero. It needs no privileges.
func (l *Lab) Throttle(host string, run, stop time.Duration) error {
	n, err := l.node(host)
	if err != nil {
		return err
	}
	if stop != 0 && (run < time.Millisecond || stop < time.Millisecond) {
		return fmt.Errorf("lab: run %v, stop %v: each must be at least 1ms, or stop 0 to end it", run, stop)
	}
	return l.change(func() error {
		if t := l.duty[n]; t != nil {
			t.end()
			delete(l.duty, n)
		}
		if stop != 0 {
			l.duty[n] = l.startThrottle(n, run, stop)
		}
		return nil
	})
}

func (l *Lab) startThrottle(n *node, run, stop time.Duration) *throttle {
	ctx, cancel := context.WithCancel(context.Background())
	t := &throttle{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(t.done)
		// A process that ends meanwhile, or may not be signalled, is as it is.
		defer func() { _ = l.signal(n, syscall.SIGCONT) }()
		for {
			_ = l.signal(n, syscall.SIGSTOP)
			if !sleep(ctx, stop) {
				return
			}
			_ = l.signal(n, syscall.SIGCONT)
			if !sleep(ctx, run) {
				return
			}
		}
	}()
	return t
}

// end leaves the processes running.
func (t *throttle) end() {
	t.stop()
	<-t.done
}

// sleep reports whether d went by before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
