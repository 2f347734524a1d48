package process

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/fabric"
	"github.com/mpiv/mpiv/topology"
)

// Two hosts may not reach each other though the job's head reaches both. A process to which
// nothing gets may also be stopped, or starved. So its host is asked: a kernel answers who
// connects, whatever its processes do.
const (
	cutLook   = 200 * time.Millisecond // between two looks at all links
	cutNotice = 500 * time.Millisecond // for which nothing must have got through before the host is asked
	cutAnswer = 300 * time.Millisecond // for the answer
	cutPause  = 2 * time.Second        // after an answer
)

// An estrangement is a host to which nothing gets. Owned by reportCuts.
type estrangement struct {
	stuck []fabric.Stuck
	since time.Time
	quiet time.Time // it has answered: it is not asked again before
}

// betweenHosts tells whether the process is on a network with other hosts.
func (p *Process) betweenHosts() bool {
	for _, n := range p.networks {
		if n.Class != topology.SameHost {
			return true
		}
	}
	return false
}

// reportCuts tells the agent of hosts to which nothing gets, again and again as long as
// that lasts.
func (p *Process) reportCuts() {
	tick := alarm.NewTicker(cutLook)
	defer tick.Stop()
	hosts := map[string]*estrangement{}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for {
		select {
		case <-tick.C:
		case <-p.stopped:
			return
		}
		now := time.Now()
		for _, e := range hosts {
			e.stuck = e.stuck[:0]
		}
		for _, s := range p.fabric.Stuck(cutNotice) {
			if len(s.TCP) == 0 {
				continue // nobody can be asked
			}
			name, _, _ := net.SplitHostPort(s.TCP[0])
			if hosts[name] == nil {
				hosts[name] = &estrangement{since: now}
			}
			e := hosts[name]
			e.stuck = append(e.stuck, s)
			if since := now.Add(-s.For); since.Before(e.since) && since.After(e.quiet) {
				e.since = since
			}
		}
		var asked sync.WaitGroup
		for name, e := range hosts {
			if len(e.stuck) == 0 {
				if now.After(e.quiet) {
					delete(hosts, name)
				}
				continue
			}
			if now.Before(e.quiet) || now.Sub(e.since) < cutNotice {
				continue
			}
			asked.Go(func() {
				if err := answers(ctx, e.stuck[0].TCP); err != nil {
					p.agent.Send(control.Message{Cut: &control.Cut{Process: e.stuck[0].Process, For: time.Since(e.since), Error: err.Error()}}) // if that fails, Receive will
					return
				}
				e.quiet = time.Now().Add(cutPause)
				e.since = e.quiet
			})
		}
		asked.Wait()
	}
}

// answers is nil if the host of one of these addresses does.
func answers(ctx context.Context, addrs []string) error {
	ctx, stop := context.WithTimeout(ctx, cutAnswer)
	defer stop()
	errs := make(chan error, len(addrs))
	var asked sync.WaitGroup
	for _, addr := range addrs {
		asked.Go(func() {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			switch {
			case err == nil:
				_ = c.(*net.TCPConn).SetLinger(0) // reset: it is nobody who could not say who it is
				c.Close()
			case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET):
				err = nil // nobody listens there, as the host itself says
			}
			if err == nil {
				stop() // one is enough
			}
			errs <- err
		})
	}
	asked.Wait()
	close(errs)
	var last error
	for err := range errs {
		if err == nil {
			return nil
		}
		last = err
	}
	return last
}
