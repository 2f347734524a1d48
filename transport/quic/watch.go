//go:build linux

package quic

import (
	"context"
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// moveTime is what a move to another address may take.
	moveTime = 5 * time.Second
	// moveAgain is how long after a move that came to nothing the next is tried, if no
	// address changes before. Nobody can listen on an IPv6 address until the kernel has
	// made sure that no other host has it, which takes a second or two.
	moveAgain = time.Second
)

// watch moves the endpoint when the address it listens on goes away, to another
// that its interface has or gets. The kernel tells of every change.
func (e *Endpoint) watch() error {
	at := e.Addr()
	host, _, err := net.SplitHostPort(at.Local())
	ip := net.ParseIP(host)
	if err != nil || ip == nil || ip.IsLoopback() {
		return nil
	}
	iface := interfaceOf(ip)
	if iface == "" {
		return nil // it is advertised for somebody else, or of another network namespace
	}
	changes, err := addressChanges()
	if err != nil {
		return err
	}
	e.running.Go(func() {
		<-e.life.Done()
		changes.Close()
	})
	e.running.Go(func() {
		defer changes.Close()
		var warned net.IP // of a move there
		buf := make([]byte, 16<<10)
		for {
			// ENOBUFS: changes came faster than they were read. What there is now tells.
			_, err := changes.Read(buf)
			if err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, os.ErrDeadlineExceeded) {
				if e.life.Err() == nil {
					e.opt.Log.Warn("addresses that change are not noticed any more", "addr", e.Addr(), "err", err)
				}
				return
			}
			changes.SetReadDeadline(time.Time{})
			next := e.nextAddress(iface, ip)
			if next == nil {
				continue
			}
			ctx, stop := context.WithTimeout(e.life, moveTime)
			err = e.Rebind(ctx, net.JoinHostPort(next.String(), "0"))
			stop()
			if err != nil && !next.Equal(warned) {
				warned = next
				e.opt.Log.Warn("quic endpoint moved", "addr", at, "to", next, "err", err)
			}
			switch {
			case e.isAt(next): // if without some connections
				ip, warned = next, nil
			case errors.Is(err, errSettled):
				return
			default:
				changes.SetReadDeadline(time.Now().Add(moveAgain))
			}
		}
	})
	return nil
}

// isAt tells whether this endpoint listens on ip now.
func (e *Endpoint) isAt(ip net.IP) bool {
	host, _, err := net.SplitHostPort(e.Addr().Local())
	return err == nil && ip.Equal(net.ParseIP(host))
}

// nextAddress is where to go from ip, which interface iface had; nil while ip is
// there, or nothing else is.
func (e *Endpoint) nextAddress(iface string, ip net.IP) net.IP {
	in, err := net.InterfaceByName(iface)
	if err != nil {
		return nil
	}
	addrs, err := in.Addrs()
	if err != nil {
		return nil
	}
	var next net.IP
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || (n.IP.To4() == nil) != (ip.To4() == nil) || n.IP.IsLinkLocalUnicast():
		case n.IP.Equal(ip):
			return nil
		case next == nil:
			next = n.IP
		}
	}
	return next
}

// interfaceOf is the interface that has ip; "" if none has.
func interfaceOf(ip net.IP) string {
	all, _ := net.Interfaces()
	for _, in := range all {
		addrs, _ := in.Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return in.Name
			}
		}
	}
	return ""
}

// addressChanges can be read whenever an address came or went.
func addressChanges() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR}); err != nil {
		unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	return os.NewFile(uintptr(fd), "addresses"), nil
}
