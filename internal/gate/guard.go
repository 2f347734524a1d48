package gate

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Guard keeps UDP sockets of a QUIC server from those who flood it with new
// connections. Such an address is shut out as a Gate does it: the kernel drops
// what it sends. Packets of connections that are open come through all the same,
// so that they can move to that address.
//
// Its methods may be called by several goroutines.
type Guard struct {
	mu      sync.Mutex // guards what follows; held for no I/O that waits
	closed  bool
	budget  budget
	sockets []syscall.RawConn
	timer   *time.Timer // calls reopen; nil: nobody is shut out

	reopening sync.WaitGroup
}

// NewGuard makes a Guard, which must be closed.
func NewGuard() *Guard { return &Guard{budget: newBudget()} }

// Watch adds a socket, until that is closed.
func (g *Guard) Watch(c syscall.Conn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sockets = append(g.sockets, raw)
	if len(g.budget.shut) > 0 {
		g.filterLocked()
	}
	return nil
}

// Charge notes that from wants to connect; true if that has spent its budget. More of
// its packets may be on their way through the socket then.
func (g *Guard) Charge(from net.Addr) (spent bool) {
	p := place(host(from))
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	if now := time.Now(); g.budget.charge(p, now) {
		g.filterLocked()
		if g.timer == nil {
			g.armLocked(now)
		}
	}
	return g.budget.spent(p)
}

// Expect says that members are at these addresses, which therefore have no budget.
func (g *Guard) Expect(addrs ...netip.Addr) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range addrs {
		if g.budget.expect(place(a)) {
			g.filterLocked()
		}
	}
}

// Expects tells whether members are at from.
func (g *Guard) Expects(from net.Addr) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.budget.expected(place(host(from)))
}

// Member says that at from is one who has shown to be a member: Expect, for an
// address of a connection.
func (g *Guard) Member(from net.Addr) { g.Expect(host(from)) }

func host(a net.Addr) netip.Addr {
	if u, ok := a.(*net.UDPAddr); ok {
		return u.AddrPort().Addr()
	}
	return netip.Addr{}
}

// armLocked has reopen called when it has something to do.
func (g *Guard) armLocked(now time.Time) {
	g.timer = nil
	if next := g.budget.next(); !next.IsZero() {
		g.reopening.Add(1)
		g.timer = time.AfterFunc(next.Sub(now), g.reopen)
	}
}

// reopen lets in again those whose time is up.
func (g *Guard) reopen() {
	defer g.reopening.Done()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	now := time.Now()
	if g.budget.reopen(now) {
		g.filterLocked()
	}
	g.armLocked(now)
}

// filterLocked tells the kernel whom to drop. A system that cannot is no reason to
// stop: then the server turns each away.
func (g *Guard) filterLocked() {
	places := g.budget.shutPlaces()
	g.sockets = slices.DeleteFunc(g.sockets, func(s syscall.RawConn) (closed bool) {
		return s.Control(func(fd uintptr) { _ = shutOutQUIC(int(fd), places) }) != nil
	})
}

// Close ends what the Guard does by itself. Who is shut out of a socket that is open
// remains so. Twice is harmless.
func (g *Guard) Close() {
	g.mu.Lock()
	if !g.closed && g.timer != nil && g.timer.Stop() {
		g.reopening.Done()
	}
	g.closed = true
	g.mu.Unlock()
	g.reopening.Wait()
}
