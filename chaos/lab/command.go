//go:build linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"os/signal"
)

// Variable is the environment variable that says to a process of a lab where the
// lab is: mpivlab's commands find it so.
const Variable = "MPIV_LAB"

// A Cmd is an [exec.Cmd] that starts on a host. Its fields may be set, and its
// methods do, as usual; who starts it waits for it.
type Cmd struct {
	*exec.Cmd
	lab  *Lab
	node *node
}

// Command returns a command that runs on a host with the environment of this
// process and [Variable]. When ctx ends the process is killed; ones that it has
// started are killed when the lab is closed. A host that the lab does not have
// is reported by Start.
func (l *Lab) Command(ctx context.Context, host, name string, args ...string) *Cmd {
	c := &Cmd{Cmd: exec.CommandContext(ctx, name, args...), lab: l}
	c.Env = append(os.Environ(), Variable+"="+l.Path())
	var err error
	if c.node, err = l.node(host); err != nil {
		c.Err = err
	}
	return c
}

// Start starts the command on its host.
func (c *Cmd) Start() error {
	if c.Err != nil {
		return c.Err
	}
	c.lab.gate.RLock()
	defer c.lab.gate.RUnlock()
	if c.lab.closed {
		return errClosed
	}
	c.lab.starting.RLock()
	defer c.lab.starting.RUnlock()
	return c.node.ns.do(func() error { return c.lab.cgroups.start(c.node, c.Cmd) })
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Relay runs the command as a shell would: it passes on the signals that this
// process gets, and returns the exit code, 128 and the number of the signal if
// one ended the command.
func (c *Cmd) Relay() (code int, err error) {
	signals := catch()
	defer signal.Stop(signals)
	if err := c.Start(); err != nil {
		return 0, err
	}
	return relay(c.Cmd, signals), nil
}

// Output runs the command and returns what it writes to its standard output.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("lab: Stdout is set already")
	}
	var out bytes.Buffer
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// CombinedOutput runs the command and returns all that it writes.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stderr != nil {
		return nil, errors.New("lab: Stderr is set already")
	}
	var out bytes.Buffer
	c.Stderr = &out
	if c.Stdout != nil {
		return nil, errors.New("lab: Stdout is set already")
	}
	c.Stdout = &out
	err := c.Run()
	return out.Bytes(), err
}

// Do runs f on a thread that is on the host: sockets that f itself makes are the
// host's for good, and so are processes that it starts. Goroutines that f starts
// are not on the host.
func (l *Lab) Do(host string, f func() error) error {
	n, err := l.node(host)
	if err != nil {
		return err
	}
	return away(func() error {
		if err := l.enter(n); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the calling thread, which must be locked, to n, unless the lab is closed: the
// descriptors of n may be another's then.
func (l *Lab) enter(n *node) error {
	l.gate.RLock()
	defer l.gate.RUnlock()
	if l.closed {
		return errClosed
	}
	return n.ns.enter()
}

// Dial connects from a host, as [net.Dialer.DialContext] does. The address is
// numeric.
func (l *Lab) Dial(ctx context.Context, host, network, address string) (c net.Conn, err error) {
	err = l.Do(host, func() error {
		d := net.Dialer{FallbackDelay: -1} // one address after the other, in this thread
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Listen listens on a host, as [net.Listen] does.
func (l *Lab) Listen(host, network, address string) (ln net.Listener, err error) {
	err = l.Do(host, func() error {
		ln, err = net.Listen(network, address)
		return err
	})
	return ln, err
}
