package patient

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/socket"
)

// Of an end of which nothing comes it is known after the silence, or later if there is an
// excuse; what comes before that ends it.
func TestSilence(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		excused time.Duration // until when there is an excuse; 0: there is never
		seen    time.Duration // when it answers over another connection; 0: never
		other   time.Duration // when something of its host comes to a process on another; 0: never
		hangs   bool          // its kernel answers at once
		crawls  time.Duration // until when the kernel says that something may come; 0: it does not
		speaks  time.Duration // when something comes; 0: never
		most    time.Duration // when the read ends
	}{
		"nothing comes":                 {most: silence},
		"something comes":               {speaks: 900 * time.Millisecond, most: 900 * time.Millisecond},
		"too late":                      {speaks: 1100 * time.Millisecond, most: silence},
		"excused":                       {excused: 2500 * time.Millisecond, most: 2500 * time.Millisecond},
		"excused, something comes":      {excused: 5 * time.Second, speaks: 3 * time.Second, most: 3 * time.Second},
		"seen by another way":           {seen: 600 * time.Millisecond, most: 600*time.Millisecond + silence},
		"seen by others":                {other: 650 * time.Millisecond, most: 650*time.Millisecond + silence - silence/Waits},
		"it hangs on a host that works": {other: 650 * time.Millisecond, hangs: true, most: silence},
		"segments come":                 {crawls: 1550 * time.Millisecond, most: 1550 * time.Millisecond},
		"nobody is excused for ever":    {excused: time.Hour, most: control.AlivePatient},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				authority, err := identity.NewAuthority("job")
				require.NoError(t, err)
				own, err := authority.Issue(identity.Agent, 0)
				require.NoError(t, err)
				id, err := own.Open()
				require.NoError(t, err)
				near, far := net.Pipe()
				speaker, p := tls.Server(far, id.TLS()), &Conn{Conn: tls.Client(near, id.TLS())}
				go speaker.Handshake()
				require.NoError(t, p.Handshake())

				begun := time.Now()
				if c.excused > 0 {
					p.Excuse = func() bool { return time.Since(begun) < c.excused }
				}
				missed := 0
				p.Missed = func() { missed++ }
				p.Elsewhere = new(Moment)
				defer p.Wait(silence)()
				if c.crawls > 0 {
					p.crawl.until.Set(begun.Add(c.crawls))
				}
				if c.other > 0 {
					time.AfterFunc(c.other, func() { p.Elsewhere.Set(time.Now()) })
				}
				if c.hangs {
					p.crawl.prompt.Store(Waits)
				}
				if c.seen > 0 {
					time.AfterFunc(c.seen, func() { p.Answered.Set(time.Now()) })
				}
				if c.speaks > 0 {
					time.AfterFunc(c.speaks, func() { speaker.Write([]byte{7}) })
				}
				n, err := p.Read(make([]byte, 1))
				took := time.Since(begun)
				near.Close()
				require.InDelta(t, c.most, took, float64(silence/Waits))
				if c.speaks > 0 && c.speaks <= c.most {
					require.NoError(t, err)
					require.Equal(t, 1, n)
					return
				}
				var quiet Silent
				require.ErrorAs(t, err, &quiet)
				require.InDelta(t, took, time.Duration(quiet), float64(silence/Waits))
				require.EqualValues(t, took/(silence/Waits), missed)
				time.Sleep(time.Minute) // for who speaks too late
			})
		})
	}
}

// A connection over which nothing is read goes on while segments come that are not next, and where round trips
// show a queue for as long as something may stand in it.
func TestCrawl(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		rtt, vary time.Duration
		segments  []uint32 // that have come by each wait
		most      int      // waits for which it goes on
	}{
		"nothing comes":                {rtt: time.Millisecond, segments: []uint32{5}, most: 8},
		"something comes at last":      {rtt: time.Millisecond, segments: []uint32{5, 5, 5, 5, 5, 5, 5, 6}, most: 16},
		"a little all the time":        {rtt: time.Millisecond, segments: []uint32{5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 9, 10, 11, 12, 13, 14, 15, 16}, most: 27},
		"an agent that is starved":     {rtt: 200 * time.Millisecond, vary: 100 * time.Millisecond, segments: []uint32{5}, most: 8},
		"nothing comes out of a queue": {rtt: 500 * time.Millisecond, vary: 100 * time.Millisecond, segments: []uint32{5}, most: 17},
	} {
		for _, next := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, next %v", name, next), func(t *testing.T) {
				var x crawl
				heard := time.Now()
				for wait := 1; ; wait++ {
					require.Less(t, wait, 100, "it ends")
					now := heard.Add(time.Duration(wait) * silence / Waits)
					info := unix.TCPInfo{Rtt: uint32(c.rtt.Microseconds()), Rttvar: uint32(c.vary.Microseconds())}
					info.Data_segs_in = uint32(wait) // what is here already comes again, as over a cut in the other direction
					if segments := c.segments[min(wait, len(c.segments))-1]; next {
						info.Bytes_received = uint64(segments) * 1000 // of a record that is not whole
					} else {
						info.Rcv_ooopack = segments
					}
					x.see(&info, heard, now, silence)
					if !x.goesOn(now) {
						require.Equal(t, c.most, wait-1)
						break
					}
				}
			})
		}
	}
}

// Who takes in what it is sent, at once and for a whole silence, and says nothing, hangs: a link that is full
// holds up what is acknowledged, too.
func TestHangs(t *testing.T) {
	const silence = time.Second
	for name, c := range map[string]struct {
		rtt   time.Duration
		acked []uint32 // how long ago, in ms, by each wait
		want  bool
	}{
		"it takes in all":         {time.Millisecond, []uint32{90, 10, 110, 60, 200, 90, 90, 300, 90, 90}, true},
		"for less than a silence": {time.Millisecond, []uint32{90, 10, 110, 60, 200, 90, 90, 300, 90}, false},
		"but for a moment":        {time.Millisecond, []uint32{90, 90, 90, 90, 90, 334, 90, 90, 90, 90, 90}, false},
		"which the queue did":     {400 * time.Millisecond, []uint32{90, 90, 90, 90, 90, 90, 90, 90, 90, 90}, false},
		"it is cut off":           {time.Millisecond, []uint32{100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100}, false},
		"since it was cut off":    {time.Millisecond, []uint32{400, 500, 20, 20, 20, 20, 20, 20, 20, 20, 20, 20}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var x crawl
			heard := time.Now()
			look := func(wait int, ms uint32) {
				x.see(&unix.TCPInfo{Rtt: uint32(c.rtt.Microseconds()), Last_ack_recv: ms}, heard, heard.Add(time.Duration(wait)*silence/Waits), silence)
			}
			for wait, ms := range c.acked {
				look(wait+1, ms)
			}
			require.Equal(t, c.want, x.hangs(Waits))
			heard = heard.Add(2 * silence) // something comes
			look(1, 10)
			require.False(t, x.hangs(Waits))
		})
	}
}

// A sign of life is also what another connection, another host or the kernel has seen, but not for ever.
func TestSign(t *testing.T) {
	for name, c := range map[string]struct {
		sign func(c *Conn, now time.Time)
		want bool
	}{
		"nothing":                      {func(c *Conn, now time.Time) {}, false},
		"something came":               {func(c *Conn, now time.Time) { c.At.Set(now) }, true},
		"it answered":                  {func(c *Conn, now time.Time) { c.Answered.Set(now) }, true},
		"others heard of it":           {func(c *Conn, now time.Time) { c.Elsewhere.Set(now) }, true},
		"others heard, but it hangs":   {func(c *Conn, now time.Time) { c.Elsewhere.Set(now); c.crawl.prompt.Store(Waits / 3) }, false},
		"a segment came":               {func(c *Conn, now time.Time) { c.crawl.seen.Set(now) }, true},
		"something may be in a queue":  {func(c *Conn, now time.Time) { c.crawl.until.Set(now.Add(1)); c.crawl.queued.Store(true) }, true},
		"there is no queue":            {func(c *Conn, now time.Time) { c.crawl.until.Set(now.Add(1)) }, false},
		"the queue would be empty now": {func(c *Conn, now time.Time) { c.crawl.until.Set(now); c.crawl.queued.Store(true) }, false},
		"it answered, and says nothing": {func(c *Conn, now time.Time) {
			c.At.Set(now.Add(-control.AlivePatient))
			c.Answered.Set(now)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				now := time.Now()
				x := &Conn{Elsewhere: new(Moment)}
				before := now.Add(-2 * time.Second)
				for _, m := range []*Moment{&x.At, &x.Answered, x.Elsewhere, &x.crawl.seen} {
					m.Set(before)
				}
				c.sign(x, now)
				require.Equal(t, c.want, x.Sign(now.Add(-time.Second)))
				x.Elsewhere = nil // nobody tells
				require.Equal(t, c.want && name != "others heard of it", x.Sign(now.Add(-time.Second)))
			})
		})
	}
	require.True(t, new(Moment).Time().IsZero())
}

// The kernel must not give a connection up before its reader does.
func TestTheKernelWaitsAsLong(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	p := &Conn{Conn: tls.Client(c, new(tls.Config))}
	defer p.Wait(time.Second)()
	socket.Do(c, func(fd int) {
		ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Duration(ms)*time.Millisecond, control.AlivePatient)
	})
}

// Who hangs on a host that works is known long before patience ends: its kernel takes in what it is sent, though others
// hear of its host.
func TestWhoHangsIsKnown(t *testing.T) {
	const silence = time.Second
	authority, err := identity.NewAuthority("job")
	require.NoError(t, err)
	credentials, err := authority.Issue(identity.Agent, 0)
	require.NoError(t, err)
	id, err := credentials.Open()
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	near, err := net.Dial("tcp", ln.Addr().String())
	require.NoError(t, err)
	defer near.Close()
	far, err := ln.Accept()
	require.NoError(t, err)
	defer far.Close()
	hangs, p := tls.Server(far, id.TLS()), &Conn{Conn: tls.Client(near, id.TLS()), Elsewhere: new(Moment)}
	shaken := make(chan error)
	go func() { shaken <- hangs.Handshake() }()
	require.NoError(t, p.Handshake())
	require.NoError(t, <-shaken)

	defer p.Wait(silence)()
	over := make(chan struct{})
	var says sync.WaitGroup
	says.Go(func() {
		for tick := time.NewTicker(silence / Waits); ; {
			select {
			case now := <-tick.C:
				p.Elsewhere.Set(now)
				p.Write([]byte{7})
			case <-over:
				tick.Stop()
				return
			}
		}
	})
	_, err = p.Read(make([]byte, 1))
	close(over)
	says.Wait()
	var quiet Silent
	require.ErrorAs(t, err, &quiet)
	require.Less(t, time.Duration(quiet), control.AlivePatient)
}
