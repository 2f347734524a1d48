//go:build linux

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Options describe a lab. The zero value is five hosts, X, Y, Z, W and A, on a
// network "lan" of 100 Mbit/s, and a faster one, "san" of 1 Gbit/s, between Y
// and Z.
type Options struct {
	// Hosts of the lab. None means X, Y, Z, W and A, of which Y and Z are
	// also on the network san if there is one.
	Hosts []Host
	// Networks between them. None means lan and san.
	Networks []Network
	// Queue is that of networks that name none. Zero means 1 500 000 bytes: a thousand full
	// frames, as Linux has.
	Queue int
	// Congestion is the congestion control of TCP on all hosts, such as "reno". Of those
	// that the kernel has, some may be set in a lab:
	// /proc/sys/net/ipv4/tcp_allowed_congestion_control. Empty means this machine's.
	Congestion string
}

// A Host is one machine of the lab.
type Host struct {
	Name     string
	Networks []string // that it is on; none means the first of the lab
}

// A Network connects the hosts that name it.
type Network struct {
	Name string
	// Rate of each host's cable, each way. Zero means unshaped.
	Rate Rate
	// Queue is how many bytes wait at each end of a cable before frames are
	// dropped. Zero means that of the lab.
	Queue int
	// Behind makes the network private: a router of the network's name stands
	// between it and the network named here, and hides its hosts behind its own
	// address there. They can reach out; nobody outside can reach in; two private
	// networks meet only through a host outside. Empty means public.
	Behind string
}

const (
	defaultQueue = 1500 * 1000
	maxHosts     = 1000
	maxNetworks  = 100
)

func (o Options) withDefaults() Options {
	if len(o.Networks) == 0 {
		o.Networks = []Network{{Name: "lan", Rate: 100 * Mbit}, {Name: "san", Rate: Gbit}}
	}
	o.Networks = slices.Clone(o.Networks)
	for i := range o.Networks {
		if o.Networks[i].Queue == 0 {
			o.Networks[i].Queue = cmp.Or(o.Queue, defaultQueue)
		}
	}
	first := []string{o.Networks[0].Name}
	if len(o.Hosts) == 0 {
		both := first
		if o.network("san") != nil && first[0] != "san" {
			both = []string{first[0], "san"}
		}
		o.Hosts = []Host{{"X", first}, {"Y", both}, {"Z", both}, {"W", first}, {"A", first}}
	}
	o.Hosts = slices.Clone(o.Hosts)
	for i := range o.Hosts {
		if len(o.Hosts[i].Networks) == 0 {
			o.Hosts[i].Networks = first
		}
	}
	return o
}

func (o Options) network(name string) *Network {
	for i := range o.Networks {
		if o.Networks[i].Name == name {
			return &o.Networks[i]
		}
	}
	return nil
}

// Check says what is wrong with o, so that no lab can be made of it.
func (o Options) Check() error { return o.withDefaults().check() }

// check is Check of what has its defaults.
func (o Options) check() error {
	if len(o.Hosts) > maxHosts || len(o.Networks) > maxNetworks {
		return fmt.Errorf("%d hosts and %d networks: a lab has at most %d and %d", len(o.Hosts), len(o.Networks), maxHosts, maxNetworks)
	}
	seen := map[string]bool{}
	for _, n := range o.Networks {
		if err := checkName("network", n.Name); err != nil {
			return err
		}
		if seen[n.Name] {
			return fmt.Errorf("network %s is there twice", n.Name)
		}
		seen[n.Name] = true
		if n.Name == "lo" || n.Name == "all" || n.Name == "default" {
			return fmt.Errorf("network %s: the kernel uses this name; take another", n.Name)
		}
		if err := n.Rate.check(); err != nil {
			return fmt.Errorf("network %s: %w", n.Name, err)
		}
		if n.Queue < 2*frame || n.Queue > 1<<30 {
			return fmt.Errorf("network %s: a queue of %d bytes: it must hold two frames, %d, and at most 1 GiB", n.Name, n.Queue, 2*frame)
		}
		if n.Behind != "" {
			if out := o.network(n.Behind); out == nil || out.Behind != "" {
				return fmt.Errorf("network %s is behind %s, which is no public network of this lab", n.Name, n.Behind)
			}
		}
	}
	seen = map[string]bool{}
	for _, h := range o.Hosts {
		if err := checkName("host", h.Name); err != nil {
			return err
		}
		if seen[h.Name] {
			return fmt.Errorf("host %s is there twice", h.Name)
		}
		seen[h.Name] = true
		if n := o.network(h.Name); n != nil && n.Behind != "" {
			return fmt.Errorf("host %s has the name of a router", h.Name)
		}
		on := map[string]bool{}
		hidden := ""
		for _, name := range h.Networks {
			if o.network(name) == nil {
				return fmt.Errorf("host %s is on network %s, which the lab does not have", h.Name, name)
			}
			if on[name] {
				return fmt.Errorf("host %s is on network %s twice", h.Name, name)
			}
			on[name] = true
			if o.network(name).Behind == "" {
				continue
			}
			if hidden != "" {
				return fmt.Errorf("host %s is on the private networks %s and %s: it has one way out, so leave out one of them", h.Name, hidden, name)
			}
			hidden = name
		}
	}
	return nil
}

// checkName is nil for what can name a host or, being short enough, an interface.
func checkName(what, name string) error {
	ok := name != "" && len(name) <= 15 && !strings.HasPrefix(name, "-")
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return fmt.Errorf("%s %q: a name is 1 to 15 letters, digits and dashes", what, name)
	}
	return nil
}
