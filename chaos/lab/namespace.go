//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A namespace is a network and a host name of its own. It has no name in the file
// system: it is gone when its descriptors are closed and its processes ended.
type namespace struct {
	net, uts *os.File
	id       string // what /proc/PID/ns/net says for a process in it
}

// newNamespace makes one whose host name is name.
func newNamespace(name string) (ns *namespace, err error) {
	err = away(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
			return os.NewSyscallError("unshare", err)
		}
		if err := unix.Sethostname([]byte(name)); err != nil {
			return os.NewSyscallError("sethostname", err)
		}
		ns, err = thisNamespace()
		return err
	})
	return ns, err
}

// thisNamespace is the one of the calling thread, which must be locked.
func thisNamespace() (*namespace, error) {
	const dir = "/proc/thread-self/ns/"
	id, err := os.Readlink(dir + "net")
	if err != nil {
		return nil, err
	}
	n, err := os.Open(dir + "net")
	if err != nil {
		return nil, err
	}
	u, err := os.Open(dir + "uts")
	if err != nil {
		n.Close()
		return nil, err
	}
	return &namespace{net: n, uts: u, id: id}, nil
}

// enter moves the calling thread, which must be locked, into ns.
func (ns *namespace) enter() error {
	return errors.Join(
		os.NewSyscallError("setns", unix.Setns(int(ns.net.Fd()), unix.CLONE_NEWNET)),
		os.NewSyscallError("setns", unix.Setns(int(ns.uts.Fd()), unix.CLONE_NEWUTS)))
}

// do runs f on a thread that is in ns while f runs.
func (ns *namespace) do(f func() error) error {
	return away(func() error {
		if err := ns.enter(); err != nil {
			return err
		}
		return f()
	})
}

func (ns *namespace) close() {
	ns.net.Close()
	ns.uts.Close()
}

// away runs f, which may take its thread into other namespaces, and takes the
// thread back afterwards.
func away(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := thisNamespace()
	if err != nil {
		return err
	}
	defer home.close()
	defer func() {
		if err := home.enter(); err != nil {
			panic(fmt.Sprintf("lab: a thread cannot return to the namespace it came from: %v", err))
		}
	}()
	return f()
}
