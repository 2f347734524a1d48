//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	roleAttack = "attack"
	roleSink   = "sink"
)

// A weapon is one way to disturb a job from outside.
type weapon struct {
	name, about string
	overUDP     bool
	curt        bool // mpiv throws it out as soon as it has spoken
	use         func(ctx context.Context, a *attacker)
}

// weapons are what strangers do, in the order of the trial.
var weapons = []weapon{
	{"garbage", "200 connections that send random bytes", false, true, garbage},
	{"slowloris", "200 connections that send a ClientHello byte by byte", false, false, slowloris},
	{"half-open", "connections that send half a ClientHello and stop, up to 10 000 per second", false, false, halfOpen},
	{"syn", "SYNs from addresses where nobody is, up to 10 000 per second", false, false, synFlood},
	{"udp-garbage", "random datagrams, up to 10 000 per second", true, false, udpGarbage},
	{"initials", "QUIC Initials with whole ClientHellos, up to 10 000 per second", true, false, initials},
}

func attackNames() (names []string) {
	for _, w := range weapons {
		names = append(names, w.name)
	}
	return names
}

const (
	crowd     = 200
	floodRate = 10_000 // per second
	openMost  = 1000   // half-open connections that one attacker holds
)

// An attacker uses one weapon against some addresses.
type attacker struct {
	weapon  weapon
	from    string // its own address
	targets []string
	tries   atomic.Int64 // connections, or datagrams
	bytes   atomic.Int64
	errors  atomic.Int64
	said    atomic.Pointer[string] // the last error
}

// attack is the role of who attacks: WEAPON DURATION OWN-ADDRESS TARGET…. It prints
// what it has done.
func attack(args []string) error {
	if len(args) < 4 {
		return errors.New("want a weapon, a duration, an address of its own, targets")
	}
	i := slices.IndexFunc(weapons, func(w weapon) bool { return w.name == args[0] })
	if i < 0 {
		return fmt.Errorf("no weapon is called %q", args[0])
	}
	long, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	a := &attacker{weapon: weapons[i], from: args[2], targets: args[3:]}
	ctx, stop := context.WithTimeout(context.Background(), long)
	defer stop()
	a.weapon.use(ctx, a)
	fmt.Printf("did %d tries, %d bytes, %d errors", a.tries.Load(), a.bytes.Load(), a.errors.Load())
	if s := a.said.Load(); s != nil {
		fmt.Printf(", the last: %s", *s)
	}
	fmt.Println()
	return nil
}

func (a *attacker) failed(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	s := err.Error()
	a.errors.Add(1)
	a.said.Store(&s)
}

// target is the n-th, in turn.
func (a *attacker) target(n int) string { return a.targets[n%len(a.targets)] }

// many runs f n times at once, again whenever it returns.
func (a *attacker) many(ctx context.Context, n int, f func(ctx context.Context, target string) error) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				a.tries.Add(1)
				if err := f(ctx, a.target(i)); err != nil {
					a.failed(ctx, err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
	wg.Wait()
}

// dial connects; the connection is reset when it or ctx ends, so that no ports run out.
func dial(ctx context.Context, target string) (c net.Conn, stop func(), err error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	if c, err = d.DialContext(ctx, "tcp", target); err != nil {
		return nil, nil, err
	}
	_ = c.(*net.TCPConn).SetLinger(0) // best effort
	after := context.AfterFunc(ctx, func() { c.Close() })
	return c, func() { after(); c.Close() }, nil
}

func garbage(ctx context.Context, a *attacker) {
	a.many(ctx, crowd, func(ctx context.Context, target string) error {
		c, stop, err := dial(ctx, target)
		if err != nil {
			return err
		}
		defer stop()
		b := make([]byte, 1024)
		for {
			_, _ = rand.Read(b) // never fails
			n, err := c.Write(b)
			a.bytes.Add(int64(n))
			if err != nil {
				return nil // it was thrown out, as it should be
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(10 * time.Millisecond):
			}
		}
	})
}

func slowloris(ctx context.Context, a *attacker) {
	hello, err := clientHello()
	if err != nil {
		a.failed(ctx, err)
		return
	}
	a.many(ctx, crowd, func(ctx context.Context, target string) error {
		c, stop, err := dial(ctx, target)
		if err != nil {
			return err
		}
		defer stop()
		for i := range hello {
			n, err := c.Write(hello[i : i+1])
			a.bytes.Add(int64(n))
			if err != nil {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond):
			}
		}
		return nil
	})
}

// halfOpen keeps the latest connections open and resets the oldest.
func halfOpen(ctx context.Context, a *attacker) {
	hello, err := clientHello()
	if err != nil {
		a.failed(ctx, err)
		return
	}
	const workers = 16
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			var open [openMost / workers]func()
			a.paced(ctx, floodRate/workers, func(n int) {
				c, stop, err := dial(ctx, a.target(i+n))
				if err != nil {
					a.failed(ctx, err)
					return
				}
				m, _ := c.Write(hello[:len(hello)/2]) // it may be thrown out already
				a.bytes.Add(int64(m))
				slot := &open[n%len(open)]
				if *slot != nil {
					(*slot)()
				}
				*slot = stop
			})
			for _, stop := range open {
				if stop != nil {
					stop()
				}
			}
		})
	}
	wg.Wait()
}

// paced calls f up to so many times a second, less where f takes longer, until ctx
// ends.
func (a *attacker) paced(ctx context.Context, rate int, f func(n int)) {
	const beat = 10 * time.Millisecond
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for n := 0; ; {
		for range max(1, int(float64(rate)*beat.Seconds())) {
			if ctx.Err() != nil {
				return
			}
			a.tries.Add(1)
			f(n)
			n++
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// datagrams sends what next returns to all targets in turn.
func (a *attacker) datagrams(ctx context.Context, next func(n int) []byte) {
	var conns []net.Conn
	for _, t := range a.targets {
		c, err := net.Dial("udp", t)
		if err != nil {
			a.failed(ctx, err)
			return
		}
		defer c.Close()
		conns = append(conns, c)
	}
	a.paced(ctx, floodRate, func(n int) {
		m, err := conns[n%len(conns)].Write(next(n))
		a.bytes.Add(int64(m))
		if err != nil {
			a.failed(ctx, err)
		}
	})
}

func udpGarbage(ctx context.Context, a *attacker) {
	b := make([]byte, 1200)
	a.datagrams(ctx, func(int) []byte {
		_, _ = rand.Read(b) // never fails
		return b
	})
}

// sink is the role of who is attacked for comparison: it accepts what comes and reads
// it. The arguments are an address, how many TCP ports and how many of UDP, and for how
// long it reads from a connection; "0s" is until something came. It ends with its
// input.
func sink(args []string) error {
	if len(args) != 4 {
		return errors.New("want an address, how many TCP ports, how many UDP ports, a time")
	}
	patience, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	var tcp, udp int
	if _, err := fmt.Sscan(args[1]+" "+args[2], &tcp, &udp); err != nil {
		return err
	}
	var all []string
	for range tcp {
		ln, err := net.Listen("tcp", net.JoinHostPort(args[0], "0"))
		if err != nil {
			return err
		}
		all = append(all, "tcp:"+ln.Addr().String())
		go acceptAll(ln, patience) // until the process ends
	}
	for range udp {
		c, err := net.ListenPacket("udp", net.JoinHostPort(args[0], "0"))
		if err != nil {
			return err
		}
		all = append(all, "udp:"+c.LocalAddr().String())
		go func() { // until the process ends
			b := make([]byte, 2048)
			for {
				if _, _, err := c.ReadFrom(b); err != nil {
					return
				}
			}
		}()
	}
	fmt.Println(strings.Join(all, " "))
	<-untilInputEnds()
	return nil
}

// sinkPatience is how long mpiv's transports wait for the rest of a handshake.
const sinkPatience = 2 * time.Second

// acceptAll reads what comes, and throws its sender out after patience.
func acceptAll(ln net.Listener, patience time.Duration) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(max(patience, sinkPatience))) // on an open connection it cannot fail
			b := make([]byte, 4096)
			for {
				if _, err := c.Read(b); err != nil || patience == 0 {
					return
				}
			}
		}()
	}
}
