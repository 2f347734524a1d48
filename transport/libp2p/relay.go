package libp2p

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/relay"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/mpiv/mpiv/transport"
)

// newRelay lets e relay, without limits, between members of the job.
func newRelay(e *Endpoint) (*relay.Relay, error) {
	const many = 1 << 14
	return relay.New(e.host, relay.WithACL((*members)(e)), relay.WithResources(relay.Resources{
		ReservationTTL: time.Hour, MaxReservations: many, MaxCircuits: many, BufferSize: 64 << 10,
		MaxReservationsPerIP: many, MaxReservationsPerASN: many,
	}))
}

// members is whom a relay serves.
type members Endpoint

func (m *members) AllowReserve(p peer.ID, _ ma.Multiaddr) bool { return (*Endpoint)(m).member(p) }

func (m *members) AllowConnect(from peer.ID, _ ma.Multiaddr, to peer.ID) bool {
	return (*Endpoint)(m).member(from) && (*Endpoint)(m).member(to)
}

// reserve shows a relay that this endpoint belongs to the job, and asks it for a
// place: how long that lasts.
func (e *Endpoint) reserve(ctx context.Context, r peer.AddrInfo) (time.Duration, error) {
	ctx, stop := e.bounded(ctx)
	defer stop()
	ctx, late := context.WithTimeout(ctx, 2*e.opt.Patience)
	defer late()
	if err := e.show(ctx, r); err != nil {
		return 0, err
	}
	place, err := client.Reserve(ctx, e.host, r)
	if err != nil {
		return 0, fmt.Errorf("ask for a place: %w", err)
	}
	return time.Until(place.Expiration), nil
}

// show shows a relay that this endpoint belongs to the job.
func (e *Endpoint) show(ctx context.Context, r peer.AddrInfo) error {
	if err := e.meet(ctx, r); err != nil {
		return err
	}
	s, err := e.open1(ctx, r.ID, 0, joining)
	if err != nil {
		return err
	}
	defer s.Reset()
	defer context.AfterFunc(ctx, func() { s.Reset() })()
	_, err = e.answer(s, joining)
	return err
}

// showFor is how long a dial waits for the relays on its way to know this endpoint.
// One that is late would refuse this endpoint, and take it for a stranger as what shows it is taken back.
const showFor = time.Second

// showAll shows the relays on the way to a peer that this endpoint belongs to the job, or they would refuse it. One
// that knows it is enough.
func (e *Endpoint) showAll(ctx context.Context, to peer.AddrInfo) {
	relays := make(map[peer.ID]peer.AddrInfo)
	for _, a := range to.Addrs {
		if way, _ := ma.SplitFunc(a, func(c ma.Component) bool { return c.Protocol().Code == ma.P_CIRCUIT }); circuit(a) && way != nil {
			if r, err := peer.AddrInfoFromP2pAddr(way); err == nil && r.ID != e.host.ID() {
				r.Addrs = append(r.Addrs, relays[r.ID].Addrs...)
				relays[r.ID] = *r
			}
		}
	}
	for id := range relays {
		if e.member(id) {
			return
		}
	}
	ctx, stop := context.WithTimeout(ctx, showFor)
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	shown := make(chan error, len(relays))
	for _, r := range relays {
		all.Go(func() { shown <- e.show(ctx, r) })
	}
	for range relays {
		if <-shown == nil {
			return
		}
	}
}

// Forget ends the connections to an endpoint that is no more, and with them those that go through it: one over QUIC would
// be found to be dead after half a minute.
func (e *Endpoint) Forget(peer transport.Addr) {
	info, err := parseAddr(string(peer))
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil && !e.ended {
		e.running.Go(func() { e.host.Network().ClosePeer(info.ID) })
	}
}

// keepPlace asks for a place again before it ends, or when the relay was lost.
func (e *Endpoint) keepPlace(r peer.AddrInfo, left time.Duration) {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	renew, over := time.Now().Add(left/2), e.host.Network().ConnsToPeer(r.ID)
	for lost := false; ; {
		select {
		case <-look.C:
		case <-e.life.Done():
			return
		}
		if !lost && slices.ContainsFunc(over, func(c network.Conn) bool { return !c.IsClosed() }) && time.Now().Before(renew) {
			continue
		}
		left, err := e.reserve(e.life, r)
		switch {
		case err == nil:
			renew, over = time.Now().Add(left/2), e.host.Network().ConnsToPeer(r.ID)
			if lost {
				e.opt.Log.Info("relay found again", "relay", r.ID)
			}
		case !lost && e.life.Err() == nil:
			e.opt.Log.Warn("relay lost: others may not reach this process until it is back", "relay", r.ID, "err", err)
		}
		lost = err != nil
	}
}
