//go:build linux

package lab

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// frame is the longest Ethernet frame on a network of the lab.
const frame = 1514

// packet is the longest that waits in a queue: 64 KiB that the kernel has not taken apart yet,
// counted with a header for each segment.
const packet = 72 << 10

// A link is the cable from a node to the switch. The node's end is called as the
// network is; the other end is a port of the network's bridge.
type link struct {
	node    *node
	network *network
	addr    netip.Prefix
	mac     net.HardwareAddr // of the node's end, so that a new cable is not noticed
	port    string           // name of the other end

	rate   Rate
	shaped bool // this cable was
	cut    bool
	slow   Impairment
	wire   *wire // not nil when the cable runs through this process
}

// A network is a bridge in the switch.
type network struct {
	Network
	prefix netip.Prefix
	bridge int // index of its interface
}

// plug lays the cable that l describes, and connects it.
func (l *link) plug(sw *node) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("link of %s to %s: %w", l.node.name, l.network.Name, err)
		}
	}()
	if l.slow == (Impairment{}) {
		err = l.layVeth(sw)
	} else {
		l.wire, err = startWire(l, sw)
	}
	if err != nil {
		return err
	}
	port, err := sw.conf.LinkByName(l.port)
	if err != nil {
		return err
	}
	end, err := l.node.conf.LinkByName(l.network.Name)
	if err != nil {
		return err
	}
	// Without IPv6 addresses of the kernel's making: they are not announced to
	// anyone and differ from run to run. A kernel without IPv6 refuses this.
	const none = 1
	_ = sw.conf.LinkSetIP6AddrGenMode(port, none)
	_ = l.node.conf.LinkSetIP6AddrGenMode(end, none)

	if err := errors.Join(
		l.node.conf.LinkSetHardwareAddr(end, l.mac),
		l.node.conf.AddrAdd(end, &netlink.Addr{IPNet: ipNet(l.addr)}),
		sw.conf.LinkSetMasterByIndex(port, l.network.bridge),
	); err != nil {
		return err
	}
	l.shaped = false
	if err := l.shape(sw); err != nil {
		return err
	}
	if err := l.node.conf.LinkSetUp(end); err != nil {
		return err
	}
	if l.network.Behind != "" && l.node.name != l.network.Name {
		if err := l.node.conf.RouteAdd(&netlink.Route{LinkIndex: end.Attrs().Index, Gw: net.IP(routerAddr(l.network.prefix).AsSlice())}); err != nil {
			return fmt.Errorf("route to the router: %w", err)
		}
	}
	return l.connect(sw)
}

func (l *link) layVeth(sw *node) error {
	v := netlink.NewVeth(netlink.NewLinkAttrs())
	v.Name = l.port
	v.PeerName = l.network.Name
	v.PeerNamespace = netlink.NsFd(l.node.ns.net.Fd())
	return sw.conf.LinkAdd(v)
}

// unplug takes the cable away.
func (l *link) unplug(sw *node) error {
	if l.wire != nil {
		l.wire.close() // its ends go with it
		l.wire = nil
		return nil
	}
	port, err := sw.conf.LinkByName(l.port)
	if err != nil {
		return err
	}
	return sw.conf.LinkDel(port)
}

// connect makes the link carry frames, or not, as l.cut says. A node whose cable
// is pulled sees its carrier go, and keeps its address and routes.
func (l *link) connect(sw *node) error {
	port, err := sw.conf.LinkByName(l.port)
	if err != nil {
		return err
	}
	if l.wire != nil {
		if err := l.wire.carry(!l.cut); err != nil {
			return err
		}
	}
	if l.cut {
		return sw.conf.LinkSetDown(port)
	}
	return sw.conf.LinkSetUp(port)
}

// shape sets the rate of both ends to l.rate.
func (l *link) shape(sw *node) error {
	port, err := sw.conf.LinkByName(l.port)
	if err != nil {
		return err
	}
	end, err := l.node.conf.LinkByName(l.network.Name)
	if err != nil {
		return err
	}
	least := 2 * frame
	if l.shaped { // what waits may be longer than a frame, and would never leave
		least = packet
	}
	l.shaped = true
	return errors.Join(shape(sw.conf, port, l.rate, l.network.Queue, least), shape(l.node.conf, end, l.rate, l.network.Queue, least))
}

// shape makes what leaves through dev wait its turn in a queue of so many bytes. At least
// so many can leave at once.
func shape(conf *netlink.Handle, dev netlink.Link, r Rate, queue, least int) error {
	q := &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: dev.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Limit:      uint32(queue),
	}
	if r == 0 {
		if err := conf.QdiscDel(q); err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unshape %s: %w", dev.Attrs().Name, err)
		}
		return nil
	}
	perSecond := float64(r) / 8
	q.Rate = uint64(perSecond)
	// What may leave at once: two milliseconds' worth, so that a timer that is
	// late by one loses nothing.
	burst := max(perSecond*0.002, float64(least))
	if int(burst)+frame > queue {
		q.Limit = uint32(burst) + frame
	}
	microseconds := burst / perSecond * float64(time.Second/time.Microsecond)
	q.Buffer = uint32(min(math.Ceil(microseconds*netlink.TickInUsec()), math.MaxUint32))
	if err := conf.QdiscReplace(q); err != nil {
		return fmt.Errorf("shape %s to %v: %w", dev.Attrs().Name, r, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
