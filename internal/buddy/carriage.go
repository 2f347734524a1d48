package buddy

import (
	"net"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/socket"
	"github.com/mpiv/mpiv/sensors/path"
	"github.com/mpiv/mpiv/transport/tcp"
)

// A haul is the connection over which copies go to another agent.
type haul struct {
	conn  net.Conn
	agent int
	addr  string // of its host

	// Guarded by the Keeper's lock.
	meter  tcp.Meter
	course path.Course
	looked time.Time
}

// watch looks at the path of h until the function that it returns is called, which waits.
func (k *Keeper) watch(h *haul) (end func()) {
	stop, ended := make(chan struct{}), make(chan struct{})
	k.mu.Lock()
	h.looked = time.Now()
	k.mu.Unlock()
	k.look(h)
	go func() {
		defer close(ended)
		tick := alarm.NewTicker(path.Look)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				k.look(h)
			case <-stop:
				k.look(h)
				return
			}
		}
	}()
	return func() { close(stop); <-ended }
}

func (k *Keeper) look(h *haul) {
	k.mu.Lock()
	defer k.mu.Unlock()
	socket.Do(h.conn, func(fd int) {
		now := time.Now()
		if info, ok := h.meter.Read(fd, now); ok {
			h.course.See(info, now, now.Sub(h.looked))
			h.looked = now
		}
	})
}

// Carried is what was seen of the path over which copies of snapshots go to the buddy since it was
// last called, which is over ago; nil: nothing went. It is for one caller: what was told once is
// not told again.
func (k *Keeper) Carried(over time.Duration) *control.Carried {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.out == nil {
		return nil
	}
	r, any := k.out.course.Read(over)
	if !any {
		return nil
	}
	return &control.Carried{Reading: r, Agent: k.out.agent, Addr: k.out.addr}
}

// A Carriage is what each connection of a [Keeper] had carried when it was last looked at. It is made
// empty, and for one goroutine.
type Carriage map[net.Conn][2]uint64

// Since is how many bytes came to k and went from it since the last time; of connections that are
// new, ever.
func (c Carriage) Since(k *Keeper) (in, out uint64) { return c.since(k.lines()) }

// lines is the connections over which copies of snapshots come and go now.
func (k *Keeper) lines() (all []net.Conn) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for c := range k.guests {
		all = append(all, c)
	}
	for h := range k.hauls {
		all = append(all, h.conn)
	}
	return all
}

// since is how many bytes came and went over the connections since the last time. The kernel knows: what a
// program has written may wait for long. Those that have ended meanwhile count no more.
func (c Carriage) since(lines []net.Conn) (in, out uint64) {
	gone := make(map[net.Conn]bool, len(c))
	for l := range c {
		gone[l] = true
	}
	for _, l := range lines {
		delete(gone, l)
		now, ok := carriedBy(l)
		if !ok {
			continue
		}
		before := c[l]
		in, out = in+now[0]-before[0], out+now[1]-before[1]
		c[l] = now
	}
	for l := range gone {
		delete(c, l)
	}
	return in, out
}

// carriedBy is how many bytes have come over a TCP connection, and how many that were sent have
// arrived; false: the kernel does not tell.
func carriedBy(c net.Conn) (bytes [2]uint64, ok bool) {
	info := socket.Info(c)
	if info == nil {
		return bytes, false
	}
	return [2]uint64{info.Bytes_received, info.Bytes_acked}, true
}
