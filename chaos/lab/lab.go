//go:build linux

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// ErrUnavailable means that this machine, or this user on it, cannot have what was
// asked for. The error that wraps it says what is missing: tests skip with it.
var ErrUnavailable = errors.New("not available here")

// A Lab is several hosts on this machine. Its methods may be called from any
// goroutine.
type Lab struct {
	dir      string           // holds the socket
	nodes    map[string]*node // set once, as all here
	hosts    []*node          // in the order of Options
	routers  []*node          // of the private networks
	networks []*network       // in the order of Options
	fabric   *node            // the switch that all bridges are in
	keeper   *keeper
	cgroups  *cgroups
	server   *server

	gate   sync.RWMutex // read-held while a process is started: Close sees all or none
	closed bool

	// starting is read-held while a process is made, after gate and mu. Who stops or limits a host
	// holds it: a child that is stopped before it has become the program would hold up all
	// that this process starts, and one that is not looked for yet would have no limit.
	starting sync.RWMutex

	mu     sync.Mutex // one change of the lab at a time; guards links, groups and throttles
	groups [][]string // of the partition
	duty   map[*node]*throttle
}

// A node is a host, a router or the switch.
type node struct {
	name   string
	router bool
	ns     *namespace
	conf   *netlink.Handle // configures its network; used with Lab.mu held
	links  []*link
}

func (n *node) id() map[string]bool { return map[string]bool{n.ns.id: true} }

func (n *node) link(network string) *link {
	for _, l := range n.links {
		if l.network.Name == network {
			return l
		}
	}
	return nil
}

// New makes a lab. The error wraps ErrUnavailable where none can be made.
func New(o Options) (*Lab, error) {
	if err := available(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	l := &Lab{nodes: map[string]*node{}, duty: map[*node]*throttle{}}
	if err := l.build(o); err != nil {
		return nil, fmt.Errorf("lab: %w", errors.Join(err, l.Close()))
	}
	return l, nil
}

// build does what New does; Close undoes what it has done when it fails.
func (l *Lab) build(o Options) error {
	var err error
	if l.fabric, err = newNode("switch"); err != nil {
		return err
	}
	for _, h := range o.Hosts {
		n, err := newNode(h.Name)
		if err != nil {
			return err
		}
		l.hosts = append(l.hosts, n)
		l.nodes[h.Name] = n
		if err := n.control(o.Congestion); err != nil {
			return err
		}
	}
	for _, n := range o.Networks {
		if n.Behind == "" {
			continue
		}
		r, err := newNode(n.Name)
		if err != nil {
			return err
		}
		r.router = true
		l.routers = append(l.routers, r)
		l.nodes[n.Name] = r
	}
	if l.dir, err = os.MkdirTemp(home(), dirPrefix); err != nil { // not before: who kills us until the keeper is there leaves it
		return err
	}
	l.cgroups = &cgroups{name: cgroupName(l.dir)}
	if l.keeper, err = startKeeper(l); err != nil {
		return err
	}
	for i, n := range o.Networks {
		if err := l.addNetwork(i, n); err != nil {
			return fmt.Errorf("network %s: %w", n.Name, err)
		}
	}
	for i, h := range o.Hosts {
		for _, name := range h.Networks {
			net := l.network(name)
			if err := l.addLink(l.hosts[i], net, hostAddr(net.prefix, i)); err != nil {
				return err
			}
		}
	}
	for i, r := range l.routers {
		inside := l.network(r.name)
		outside := l.network(inside.Behind)
		if err := l.addLink(r, inside, routerAddr(inside.prefix)); err != nil {
			return err
		}
		if err := l.addLink(r, outside, hostAddr(outside.prefix, len(l.hosts)+i)); err != nil {
			return err
		}
		if err := masquerade(r, outside.Name); err != nil {
			return err
		}
	}
	l.server, err = serve(l)
	return err
}

func newNode(name string) (*node, error) {
	ns, err := newNamespace(name)
	if err != nil {
		return nil, err
	}
	n := &node{name: name, ns: ns}
	if n.conf, err = netlink.NewHandleAt(netns.NsHandle(ns.net.Fd()), netlinkRoute); err != nil {
		ns.close()
		return nil, err
	}
	lo, err := n.conf.LinkByName("lo")
	if err == nil {
		err = n.conf.LinkSetUp(lo)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// control sets the congestion control of TCP.
func (n *node) control(congestion string) error {
	if congestion == "" {
		return nil
	}
	err := n.ns.do(func() error {
		return os.WriteFile("/proc/sys/net/ipv4/tcp_congestion_control", []byte(congestion), 0)
	})
	if err != nil {
		allowed, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
		return fmt.Errorf("congestion control %q on host %s: %w; one of these can be had: %s", congestion, n.name, err, strings.TrimSpace(string(allowed)))
	}
	return nil
}

func (n *node) close() {
	for _, l := range n.links {
		if l.wire != nil {
			l.wire.close()
		}
	}
	n.conf.Close()
	n.ns.close()
}

const netlinkRoute = 0 // NETLINK_ROUTE

func (l *Lab) addNetwork(i int, o Network) error {
	n := &network{Network: o, prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i + 1), 0, 0}), 16)}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = o.Name
	b := &netlink.Bridge{LinkAttrs: attrs}
	if err := l.fabric.conf.LinkAdd(b); err != nil {
		return err
	}
	dev, err := l.fabric.conf.LinkByName(o.Name)
	if err != nil {
		return err
	}
	const none = 1
	_ = l.fabric.conf.LinkSetIP6AddrGenMode(dev, none)
	n.bridge = dev.Attrs().Index
	l.networks = append(l.networks, n)
	return l.fabric.conf.LinkSetUp(dev)
}

func (l *Lab) addLink(n *node, on *network, addr netip.Addr) error {
	a := addr.As4()
	c := &link{
		node: n, network: on, rate: on.Rate,
		addr: netip.PrefixFrom(addr, on.prefix.Bits()),
		mac:  net.HardwareAddr{2, 0, a[0], a[1], a[2], a[3]}, // 2: of local make
		port: fmt.Sprintf("p%d.%d.%d", a[1], a[2], a[3]),
	}
	n.links = append(n.links, c)
	return c.plug(l.fabric)
}

func (l *Lab) network(name string) *network {
	for _, n := range l.networks {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// hostAddr is the address of the i-th host of a lab, the same in every network but
// for the second number.
func hostAddr(p netip.Prefix, i int) netip.Addr {
	a := p.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], byte(i / 250), byte(i%250 + 1)})
}

func routerAddr(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	return netip.AddrFrom4([4]byte{a[0], a[1], 255, 254})
}

// Hosts returns the names of the hosts, in the order of Options.
func (l *Lab) Hosts() []string {
	var names []string
	for _, n := range l.hosts {
		names = append(names, n.name)
	}
	return names
}

// Addr returns the address of a host, or a router, on a network that it is on.
func (l *Lab) Addr(host, network string) (netip.Addr, error) {
	c, err := l.link(host, network)
	if err != nil {
		return netip.Addr{}, err
	}
	return c.addr.Addr(), nil
}

// Hostfile returns a line for each host, as mpivrun takes them: its name, its
// slots, and its address on each network.
func (l *Lab) Hostfile(slots int) string {
	var b strings.Builder
	for _, n := range l.hosts {
		fmt.Fprintf(&b, "%s slots=%d", n.name, slots)
		for _, c := range n.links {
			fmt.Fprintf(&b, " %s=%s", c.network.Name, c.addr.Addr())
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (l *Lab) node(name string) (*node, error) {
	if n := l.nodes[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("lab: no host %q: there are %s", name, strings.Join(l.Hosts(), ", "))
}

func (l *Lab) link(host, network string) (*link, error) {
	n, err := l.node(host)
	if err != nil {
		return nil, err
	}
	c := n.link(network)
	if c == nil {
		var on []string
		for _, c := range n.links {
			on = append(on, c.network.Name)
		}
		return nil, fmt.Errorf("lab: host %s is not on network %q, but on %s", host, network, strings.Join(on, ", "))
	}
	return c, nil
}

// all is every node that processes may run on.
func (l *Lab) all() []*node { return slices.Concat(l.hosts, l.routers) }

// Close kills every process of the hosts and takes everything away. Sockets that
// this process holds on a host reach nobody from then on. Twice is harmless.
func (l *Lab) Close() error {
	l.gate.Lock()
	was := l.closed
	l.closed = true
	l.gate.Unlock()
	if was {
		return nil
	}
	var errs []error
	if l.server != nil {
		l.server.close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.duty {
		t.end()
	}
	clear(l.duty)
	ids := map[string]bool{}
	for _, n := range l.all() {
		ids[n.ns.id] = true
	}
	errs = append(errs, killAll(ids))
	if l.cgroups != nil {
		errs = append(errs, l.cgroups.remove())
	}
	for _, n := range l.all() {
		n.close()
	}
	if l.fabric != nil {
		l.fabric.close()
	}
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	if l.keeper != nil {
		errs = append(errs, l.keeper.close())
	}
	return errors.Join(errs...)
}

// change runs f with the lab to itself, unless it is closed.
func (l *Lab) change(f func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate.RLock()
	defer l.gate.RUnlock()
	if l.closed {
		return errClosed
	}
	if err := f(); err != nil {
		return fmt.Errorf("lab: %w", err)
	}
	return nil
}

var errClosed = fmt.Errorf("lab: %w", net.ErrClosed)
