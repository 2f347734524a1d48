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
	"syscall"
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
	curt        bool // a sink throws it out as soon as it has spoken
	rate        int  // tries per second that it promises; 0: as many as the other end lets it
	use         func(ctx context.Context, a *attacker)
}

// weapons are what strangers do, in the order of the trial.
var weapons = []weapon{
	{"garbage", "200 connections that send random bytes", false, true, 0, garbage},
	{"slowloris", "200 connections that send a ClientHello byte by byte", false, false, 0, slowloris},
	{"half-open", "connections that send half a ClientHello and stop, 10 000 per second", false, true, floodRate, halfOpen},
	{"syn", "SYNs from addresses where nobody is, 10 000 per second", false, false, floodRate, synFlood},
	{"udp-garbage", "random datagrams, 10 000 per second", true, false, floodRate, udpGarbage},
	{"initials", "QUIC Initials with whole ClientHellos, 10 000 per second", true, false, floodRate, initials},
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
)

// An attacker uses one weapon against some addresses.
type attacker struct {
	weapon  weapon
	from    string // its own address
	targets []string
	tries   atomic.Int64 // connections, or datagrams
	met     atomic.Int64 // connections that were answered
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
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return err
	}
	fmt.Println(haul{int(a.tries.Load()), int(a.met.Load()), int(a.bytes.Load()), int(a.errors.Load()),
		time.Duration(use.Utime.Nano() + use.Stime.Nano()).Seconds()})
	if s := a.said.Load(); s != nil {
		fmt.Printf("the last error: %s\n", *s)
	}
	return nil
}

// A haul is what an attacker has done.
type haul struct {
	tries, met, bytes, errors int
	cpu                       float64 // s
}

const haulFormat = "did %d tries, %d answered, %d bytes, %d errors, %g s of CPU"

func (h haul) String() string {
	return fmt.Sprintf(haulFormat, h.tries, h.met, h.bytes, h.errors, h.cpu)
}

// parseHaul reads what String writes, at the beginning of text.
func parseHaul(text string) (h haul, err error) {
	_, err = fmt.Sscanf(text, haulFormat, &h.tries, &h.met, &h.bytes, &h.errors, &h.cpu)
	return h, err
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

// many runs f in a crowd at once, again whenever it returns.
func (a *attacker) many(ctx context.Context, f func(ctx context.Context, target string) error) {
	var wg sync.WaitGroup
	for i := range crowd {
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
func (a *attacker) dial(ctx context.Context, target string) (c net.Conn, stop func(), err error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	if c, err = d.DialContext(ctx, "tcp", target); err != nil {
		return nil, nil, err
	}
	a.met.Add(1)
	_ = c.(*net.TCPConn).SetLinger(0) // best effort
	after := context.AfterFunc(ctx, func() { c.Close() })
	return c, func() { after(); c.Close() }, nil
}

func garbage(ctx context.Context, a *attacker) {
	a.many(ctx, func(ctx context.Context, target string) error {
		c, stop, err := a.dial(ctx, target)
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
	a.many(ctx, func(ctx context.Context, target string) error {
		c, stop, err := a.dial(ctx, target)
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

// paced calls f floodRate times a second, less where f takes longer, until ctx ends.
// What a beat was late for is made up for, as far as a tenth of a second goes.
func (a *attacker) paced(ctx context.Context, f func(n int)) {
	const beat = 2 * time.Millisecond
	tick := time.NewTicker(beat)
	defer tick.Stop()
	begun := time.Now()
	forgone := 0
	for n := 0; ; {
		due := int(floodRate*time.Since(begun).Seconds()) - forgone
		if late := due - n - floodRate/10; late > 0 {
			forgone += late
			due -= late
		}
		for ; n < due && ctx.Err() == nil; n++ {
			a.tries.Add(1)
			f(n)
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
	a.paced(ctx, func(n int) {
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
