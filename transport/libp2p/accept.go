package libp2p

import (
	"context"
	"time"

	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	rcmgr "github.com/libp2p/go-libp2p/p2p/host/resource-manager"
	ma "github.com/multiformats/go-multiaddr"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/internal/streams"
)

// protocolID names the protocol of a lane, and of a Hello without lanes.
const protocolID = "/mpiv/1"

// grace is how long a guest is left alone when others wait for its place.
const grace = 100 * time.Millisecond

// knocksMost is how many streams a peer may have in their handshake that has not
// shown that it belongs to the job: those of four connections that it opens at a time.
// streamsMost is how many it may have of all protocols, begun or not.
const knocksMost, streamsMost = 8, 16

// joining is the ID of a Hello that asks for no connection: its sender only
// shows that it belongs to the job.
var joining [16]byte

type halfKey struct {
	peer peer.ID
	id   [16]byte
}

// A half is a connection of which one lane is there.
type half struct {
	stream network.Stream
	hello  streams.Hello
	met    chan struct{} // closed when the other lane took the stream over
}

// A guest is a connection that came from a peer that nobody knows yet.
type guest struct {
	since time.Time
	late  *time.Timer
}

// watch sees connections of the host come and go.
type watch Endpoint

func (w *watch) Listen(network.Network, ma.Multiaddr)      {}
func (w *watch) ListenClose(network.Network, ma.Multiaddr) {}

// Connected gives a peer that nobody knows its time to show that it belongs to
// the job. If there is no room it takes the place of the oldest guest, so that those
// who are silent do not keep others out.
func (w *watch) Connected(_ network.Network, c network.Conn) {
	e := (*Endpoint)(w)
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.members[c.RemotePeer()]; known || e.ended || c.Stat().Direction == network.DirOutbound {
		return
	}
	if len(e.guests) >= e.opt.Handshakes {
		oldest := e.oldestGuestLocked()
		if time.Since(e.guests[oldest].since) < grace {
			oldest = c
		}
		e.leaveLocked(oldest)
		e.strangers.Add(1)
		go oldest.Close() // ends by itself; it must not be called from here
		if oldest == c {
			return
		}
	}
	e.guests[c] = guest{since: time.Now(), late: time.AfterFunc(e.opt.Patience, func() {
		if e.leave(c) {
			e.strangers.Add(1)
			c.Close()
		}
	})}
}

// oldestGuestLocked needs a guest.
func (e *Endpoint) oldestGuestLocked() (oldest network.Conn) {
	for c, g := range e.guests {
		if oldest == nil || g.since.Before(e.guests[oldest].since) {
			oldest = c
		}
	}
	return oldest
}

func (w *watch) Disconnected(n network.Network, c network.Conn) {
	e := (*Endpoint)(w)
	if e.leave(c) {
		e.strangers.Add(1)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(n.ConnsToPeer(c.RemotePeer())) == 0 { // asked here, as it may come back and join at any moment
		delete(e.members, c.RemotePeer())
	}
}

// leave tells whether c was a guest until now.
func (e *Endpoint) leave(c network.Conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leaveLocked(c)
}

func (e *Endpoint) leaveLocked(c network.Conn) bool {
	g, ok := e.guests[c]
	if ok {
		g.late.Stop()
		delete(e.guests, c)
	}
	return ok && !e.ended
}

// join notes that a peer belongs to the job: it may open as many streams as it likes.
func (e *Endpoint) join(id peer.ID) {
	if !e.member(id) {
		e.host.Network().ResourceManager().ViewPeer(id, func(p network.PeerScope) error {
			p.(rcmgr.ResourceScopeLimiter).SetLimit(unlimited.GetPeerLimits(id))
			return nil
		})
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.members[id] = struct{}{}
	for c := range e.guests {
		if c.RemotePeer() == id {
			e.leaveLocked(c)
		}
	}
}

func (e *Endpoint) member(id peer.ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.members[id]
	return ok
}

// knock takes a stream that a peer opened.
func (e *Endpoint) knock(s network.Stream) {
	id := s.Conn().RemotePeer()
	e.mu.Lock()
	if e.ended {
		e.mu.Unlock()
		s.Reset()
		return
	}
	_, member := e.members[id]
	welcome := member || e.knocks[id] < knocksMost
	e.knocks[id]++
	e.running.Add(1)
	e.mu.Unlock()
	defer e.running.Done()
	defer e.knocked(id)
	ctx, stop := context.WithTimeout(e.life, e.opt.Patience)
	defer stop()
	shown, ok := false, false
	if welcome {
		shown, ok = e.greet(ctx, s)
	}
	if ok {
		return
	}
	s.Reset()
	if !shown && !member && !e.member(id) { // members give up, or had to wait for too long
		e.strangers.Add(1)
		e.leave(s.Conn())
		s.Conn().Close()
	}
}

// knocked notes that one of a peer's handshakes has ended.
func (e *Endpoint) knocked(id peer.ID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.knocks[id]--; e.knocks[id] == 0 {
		delete(e.knocks, id)
	}
}

// greet runs the handshake of one stream: whether its sender has shown that it belongs to the job, and whether all
// else went well, too.
func (e *Endpoint) greet(ctx context.Context, s network.Stream) (shown, ok bool) {
	cut := context.AfterFunc(ctx, func() { s.Reset() })
	defer cut()
	h, err := streams.ReadHello(s, Name, e.proofOf(s.Conn().RemotePeer(), e.host.ID()))
	if err != nil {
		return false, false
	}
	cert, err := e.verify(h.Cert, s.Conn().RemotePublicKey())
	if err != nil {
		return false, false
	}
	e.join(s.Conn().RemotePeer())
	if h.ID == joining {
		_, err := s.Write(e.hello(s, 0, joining))
		s.Close()
		return true, err == nil
	}
	key := halfKey{s.Conn().RemotePeer(), h.ID}
	e.mu.Lock()
	first := e.halves[key]
	if first == nil {
		first = &half{stream: s, hello: h, met: make(chan struct{})}
		e.halves[key] = first
		e.mu.Unlock()
		return true, e.await(ctx, key, first, cut)
	}
	if first.hello.Lane == h.Lane || first.hello.Addr != h.Addr {
		e.mu.Unlock()
		return true, false
	}
	delete(e.halves, key)
	e.mu.Unlock()
	close(first.met)
	cutFirst := context.AfterFunc(ctx, func() { first.stream.Reset() }) // or its peer, who takes no answer, would keep the seat
	defer cutFirst()
	var lanes [2]network.Stream
	lanes[first.hello.Lane], lanes[h.Lane] = first.stream, s
	select { // before the answer, so that who was accepted is not refused
	case e.seats <- struct{}{}:
	case <-ctx.Done():
		first.stream.Reset()
		return true, false
	}
	if _, err := lanes[0].Write(e.hello(s, 0, h.ID)); err == nil && cut() && cutFirst() {
		if c, err := e.connect(lanes, h.Addr, cert); err == nil {
			e.backlog <- c // has room: we have a seat
			return true, true
		}
	}
	<-e.seats
	first.stream.Reset()
	return true, false
}

// await waits until the other lane of h comes and takes care of both.
func (e *Endpoint) await(ctx context.Context, key halfKey, h *half, cut func() bool) bool {
	select {
	case <-h.met:
	case <-ctx.Done():
		e.mu.Lock()
		alone := e.halves[key] == h
		if alone {
			delete(e.halves, key)
		}
		e.mu.Unlock()
		if alone {
			return false
		}
	}
	cut()
	return true
}

// hello is what this endpoint says in s.
func (e *Endpoint) hello(s network.Stream, lane int, id [16]byte) []byte {
	shown := e.proofOf(e.host.ID(), s.Conn().RemotePeer())
	return streams.Hello{Lane: lane, Proof: shown, ID: id, Addr: e.self(), Cert: e.cert}.Append(nil)
}

// proofOf is the proof of one peer to another, which have shown each other their keys, that it knows the secret.
func (e *Endpoint) proofOf(from, to peer.ID) proof.Proof {
	return proof.Of(e.opt.Secret, Name, []byte(from), []byte(to))
}

// self is what this endpoint calls itself, also while it has no address yet.
func (e *Endpoint) self() transport.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.addr == "" {
		return transport.Addr(Name + ":/p2p/" + e.host.ID().String())
	}
	return e.addr
}
