package gate

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// perSecond is how many connections an address may make, in the long run, from
	// which no member has come, and burst how many at a time. Members that
	// connect from there for the first time together fit into a burst.
	perSecond, burst = 50, 200
	// shutFor is how long an address is shut out that has spent its budget. TCP tries
	// again after a second.
	shutFor = time.Second
	// accountsMost is how many addresses are told apart, and shutMost how many can be
	// shut out at a time. Those beyond are turned away one by one.
	accountsMost, shutMost = 4096, 64
)

// A budget says who may connect how often. It is told the time.
type budget struct {
	members  map[netip.Addr]struct{}
	accounts map[netip.Addr]*account
	shut     []shut // the first to end first
	tidied   time.Time
}

type account struct {
	left float64 // connections
	at   time.Time
}

type shut struct {
	place netip.Addr
	until time.Time
}

func newBudget() budget {
	return budget{members: map[netip.Addr]struct{}{}, accounts: map[netip.Addr]*account{}}
}

// place is what has a budget: an IPv4 address, or the network of an IPv6 address,
// in which a host has any address that it likes.
func place(a netip.Addr) netip.Addr {
	a = a.Unmap().WithZone("")
	if a.Is4() {
		return a
	}
	p, _ := a.Prefix(64) // of an IPv6 address; the zero Addr stays as it is
	return p.Addr()
}

// expected tells whether p has no budget: members are there, or it is this machine,
// of which users share the address.
func (b *budget) expected(p netip.Addr) bool {
	_, ok := b.members[p]
	return ok || p.IsLoopback() || !p.IsValid()
}

// expect notes that members are at p; true if it was shut out, and is no more.
func (b *budget) expect(p netip.Addr) (reopened bool) {
	if _, ok := b.members[p]; ok {
		return false
	}
	b.members[p] = struct{}{}
	delete(b.accounts, p)
	n := len(b.shut)
	b.shut = slices.DeleteFunc(b.shut, func(s shut) bool { return s.place == p })
	return len(b.shut) < n
}

// charge notes a connection from p; true if p is shut out from now on.
func (b *budget) charge(p netip.Addr, now time.Time) (shuts bool) {
	if b.expected(p) {
		return false
	}
	a := b.accounts[p]
	if a == nil {
		if len(b.accounts) >= accountsMost && !b.tidy(now) {
			return false
		}
		a = &account{left: burst, at: now}
		b.accounts[p] = a
	}
	a.refill(now)
	a.left--
	if a.left >= 0 || len(b.shut) >= shutMost || b.isShut(p) {
		a.left = max(a.left, 0)
		return false
	}
	a.left = 0
	b.shut = append(b.shut, shut{p, now.Add(shutFor)})
	return true
}

// spent tells whether p has nothing left.
func (b *budget) spent(p netip.Addr) bool {
	a := b.accounts[p]
	return a != nil && a.left < 1
}

func (a *account) refill(now time.Time) {
	a.left = min(burst, a.left+perSecond*now.Sub(a.at).Seconds())
	a.at = now
}

func (b *budget) isShut(p netip.Addr) bool {
	return slices.ContainsFunc(b.shut, func(s shut) bool { return s.place == p })
}

// tidy forgets accounts that have all of their budget; false if there is none. It
// takes a while, so it is done once a second.
func (b *budget) tidy(now time.Time) bool {
	if now.Sub(b.tidied) < time.Second {
		return false
	}
	b.tidied = now
	n := len(b.accounts)
	for p, a := range b.accounts {
		if a.refill(now); a.left >= burst {
			delete(b.accounts, p)
		}
	}
	return len(b.accounts) < n
}

// reopen lets in again those whose time is up; true if there were any.
func (b *budget) reopen(now time.Time) bool {
	n := 0
	for n < len(b.shut) && !now.Before(b.shut[n].until) {
		n++
	}
	b.shut = slices.Delete(b.shut, 0, n)
	return n > 0
}

// next is when reopen has something to do; zero is never.
func (b *budget) next() time.Time {
	if len(b.shut) == 0 {
		return time.Time{}
	}
	return b.shut[0].until
}

func (b *budget) shutPlaces() (all []netip.Addr) {
	for _, s := range b.shut {
		all = append(all, s.place)
	}
	return all
}
