//go:build linux

package lab

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Cut pulls the cable of a host, or a router, out of a network. Its carrier goes;
// its address stays, and connections wait.
func (l *Lab) Cut(host, network string) error { return l.setCut(host, network, true) }

// Heal puts the cable back.
func (l *Lab) Heal(host, network string) error { return l.setCut(host, network, false) }

func (l *Lab) setCut(host, network string, cut bool) error {
	c, err := l.link(host, network)
	if err != nil {
		return err
	}
	return l.change(func() error {
		before := c.cut
		c.cut = cut
		err := c.connect(l.fabric)
		if err != nil {
			c.cut = before
			_ = c.connect(l.fabric) // what there is of it
		}
		return err
	})
}

// HealAll puts every cable back and ends the partition.
func (l *Lab) HealAll() error {
	errs := []error{l.Partition()}
	for _, n := range l.all() {
		for _, c := range n.links {
			errs = append(errs, l.setCut(n.name, c.network.Name, false))
		}
	}
	return errors.Join(errs...)
}

// SetRate changes the rate of a host's link, both ways and at once. Zero means
// unshaped.
func (l *Lab) SetRate(host, network string, r Rate) error {
	c, err := l.link(host, network)
	if err != nil {
		return err
	}
	if err := r.check(); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return l.change(func() error {
		before := c.rate
		c.rate = r
		err := c.shape(l.fabric)
		if err != nil {
			c.rate = before
			_ = c.shape(l.fabric) // the end that has the new one
		}
		return err
	})
}

// Impair makes a host's link delay and lose frames; the zero Impairment ends
// that. The link then runs through this process, after its shaping, which costs
// CPU time: see docs/lab.md for how fast it is. Frames that are on their way at
// the change are lost. It needs /dev/net/tun; the error wraps ErrUnavailable
// where that may not be used.
func (l *Lab) Impair(host, network string, i Impairment) error {
	c, err := l.link(host, network)
	if err != nil {
		return err
	}
	if err := i.check(); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	if i.Delay == 0 && i.Loss == 0 {
		i = Impairment{}
	}
	return l.change(func() error {
		if i == c.slow {
			return nil
		}
		before := c.slow
		err := c.unplug(l.fabric)
		if err == nil {
			c.slow = i
			err = c.plug(l.fabric)
		}
		if err != nil {
			_ = c.unplug(l.fabric) // what there is of it
			c.slow = before
			return errors.Join(err, c.plug(l.fabric))
		}
		return nil
	})
}

// Partition drops, in silence, every packet between hosts of different groups. No
// carrier goes and nothing is answered. Hosts in no group reach everyone. It
// takes the place of the partition before; without groups it ends it.
func (l *Lab) Partition(groups ...[]string) error {
	group := map[*node]int{}
	for i, names := range groups {
		for _, name := range names {
			n, err := l.node(name)
			if err != nil {
				return err
			}
			if j, twice := group[n]; twice && j != i {
				return fmt.Errorf("lab: host %s is in two groups of a partition", name)
			}
			group[n] = i
		}
	}
	return l.change(func() error {
		drops := map[*node][]drop{}
		for n, i := range group {
			for other, j := range group {
				if i == j {
					continue
				}
				for _, from := range other.links {
					drops[n] = append(drops[n], drop{from: from.addr.Addr()})
				}
				l.dropOnTheWayOut(drops, n, other)
			}
		}
		for _, n := range l.all() {
			if err := setDrops(n, drops[n]); err != nil {
				return err
			}
		}
		l.groups = slices.Clone(groups)
		return nil
	})
}

// dropOnTheWayOut adds what keeps n from reaching other through a router, behind
// which it is not known by its own address.
func (l *Lab) dropOnTheWayOut(drops map[*node][]drop, n, other *node) {
	for _, own := range n.links {
		r := l.nodes[own.network.Name]
		if own.network.Behind == "" || r == n {
			continue
		}
		for _, c := range other.links {
			drops[r] = append(drops[r], drop{from: own.addr.Addr(), to: c.addr.Addr()})
		}
	}
}

// Pids returns the processes that run on a host.
func (l *Lab) Pids(host string) ([]int, error) {
	n, err := l.node(host)
	if err != nil {
		return nil, err
	}
	return processesIn(n.id())
}

// Signal sends sig to every process of a host, those included that they start
// meanwhile if sig is SIGSTOP or SIGKILL. It returns when the processes are
// gone if sig is SIGKILL. What this process does on the host goes on.
func (l *Lab) Signal(host string, sig syscall.Signal) error {
	n, err := l.node(host)
	if err != nil {
		return err
	}
	return l.change(func() error {
		if sig == syscall.SIGKILL {
			return killAll(n.id())
		}
		return l.signal(n, sig)
	})
}

// signal sends sig to every process of n, but to none that is being started.
func (l *Lab) signal(n *node, sig syscall.Signal) error {
	l.starting.Lock()
	defer l.starting.Unlock()
	return signalAll(n.id(), sig)
}

// LimitCPU lets the processes of a host have so many cores' time between them,
// such as 0.5; zero means no limit. The error wraps ErrUnavailable where this
// user may not make control groups.
func (l *Lab) LimitCPU(host string, cores float64) error {
	n, err := l.node(host)
	if err != nil {
		return err
	}
	if cores != 0 && !(cores >= 0.01 && cores <= 1024) {
		return fmt.Errorf("lab: %v cores for host %s: it must be from 0.01 to 1024, or 0 for no limit", cores, host)
	}
	return l.change(func() error {
		l.starting.Lock()
		defer l.starting.Unlock()
		return l.cgroups.limit(n, cores)
	})
}
