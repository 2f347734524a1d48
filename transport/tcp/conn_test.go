//go:build linux

package tcp

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// box is a Receiver that counts, and calls arrived if that is set.
type box struct {
	placed, got int
	arrived     func()
}

func (b *box) Place(_ []byte, n int) []byte     { b.placed++; return make([]byte, n) }
func (b *box) Receive(header, body []byte) bool { return transport.Receive(b, header, body) }
func (b *box) Arrived(_, _ []byte) {
	b.got++
	if b.arrived != nil {
		b.arrived()
	}
}
func (b *box) Pulled(uint64, error) {}

// impostor is a connection to e whose other end is two plain sockets.
func impostor(t *testing.T, e *Endpoint) (c transport.Conn, lanes [2]net.Conn) {
	lanes, p := begun(t, e)
	require.NoError(t, answered(newStream(lanes[0], nil, true), p))
	c, err := e.Accept(t.Context())
	require.NoError(t, err)
	return c, lanes
}

func connected(t *testing.T) (near, far transport.Conn) {
	x, y := listenHere(t, Options{}), listenHere(t, Options{})
	near, err := x.Dial(t.Context(), y.Addr())
	require.NoError(t, err)
	far, err = y.Accept(t.Context())
	require.NoError(t, err)
	return near, far
}

func pollUntilError(t *testing.T, c transport.Conn, in transport.Receiver) (err error) {
	eventually(t, "an error from Poll", func() bool {
		_, err = c.Poll(in)
		return err != nil
	})
	return err
}

func frameOf(n uint64, body []byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, n)
	b = append(b, make([]byte, transport.HeaderLen)...)
	return append(b, body...)
}

func TestALyingLengthBreaksTheConnection(t *testing.T) {
	for lane := range 2 {
		for _, n := range []uint64{maxBody + 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<64 - 1} {
			c, lanes := impostor(t, listenHere(t, Options{}))
			_, err := lanes[lane].Write(append(frameOf(3, []byte("abc")), frameOf(n, nil)...))
			require.NoError(t, err)
			in := new(box)
			require.ErrorIs(t, pollUntilError(t, c, in), transport.ErrBroken)
			require.Equal(t, 1, in.placed, "a place was asked for a length of %d", n)
			require.Equal(t, 1, in.got)
			woken := make(chan struct{})
			c.Arm(func() { close(woken) })
			<-woken
			lanes[lane].SetDeadline(time.Now().Add(10 * time.Second))
			_, err = lanes[lane].Read(make([]byte, 1))
			require.Error(t, err)
			require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the liar is still connected")
		}
	}
}

func TestABreakWithinALargeMessage(t *testing.T) {
	for lane := range 2 {
		c, lanes := impostor(t, listenHere(t, Options{}))
		_, err := lanes[lane].Write(frameOf(100_000, make([]byte, 70_000)))
		require.NoError(t, err)
		require.NoError(t, lanes[lane].Close())
		in := new(box)
		require.ErrorIs(t, pollUntilError(t, c, in), transport.ErrBroken)
		require.Equal(t, 1, in.placed)
		require.Zero(t, in.got, "a message of which a part is missing has arrived")
		_, err = c.Poll(in)
		require.ErrorIs(t, err, transport.ErrBroken)
	}
}

func TestWhatArrivedBeforeTheBreakIsReceived(t *testing.T) {
	near, far := connected(t)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 100)}
	for range 10 {
		require.NoError(t, near.Send(m))
	}
	require.NoError(t, near.Flush())
	require.NoError(t, near.Close())
	var err error
	eventually(t, "an error from Send", func() bool {
		if err = far.Send(m); err == nil {
			err = far.Flush()
		}
		return err != nil
	})
	require.ErrorIs(t, err, transport.ErrBroken)
	in := new(box)
	require.ErrorIs(t, pollUntilError(t, far, in), transport.ErrBroken)
	require.Equal(t, 10, in.got)
}

// Room that came between ErrFull and Arm is not missed.
func descriptors(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(d)
}

func expectEnd(t *testing.T, err error) {
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, transport.ErrBroken) {
		t.Errorf("a connection that was closed says: %v", err)
	}
}

func TestCloseWhileOthersSendAndPoll(t *testing.T) {
	before := descriptors(t)
	func() {
		x, err := Listen(t.Context(), Options{})
		require.NoError(t, err)
		defer x.Close()
		rng := rand.New(rand.NewPCG(1, 2))
		for range 50 {
			near, err := x.Dial(t.Context(), x.Addr())
			require.NoError(t, err)
			far, err := x.Accept(t.Context())
			require.NoError(t, err)
			var users sync.WaitGroup
			for _, c := range []transport.Conn{near, far} {
				users.Go(func() {
					for in := new(box); ; {
						if _, err := c.Poll(in); err != nil {
							expectEnd(t, err)
							return
						}
						c.Arm(func() {})
					}
				})
				users.Go(func() {
					m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 10_000)}
					for {
						err := c.Send(m)
						if err == nil {
							err = c.Flush()
						}
						if err != nil && err != transport.ErrFull {
							expectEnd(t, err)
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(rng.IntN(2000)) * time.Microsecond)
			near.Close()
			users.Wait()
			far.Close()
		}
	}()
	require.LessOrEqual(t, descriptors(t), before, "descriptors are left open")
}

func TestCloseOfTheEndpointAndOfItsConnectionsWhileOthersArm(t *testing.T) {
	far := listenHere(t, Options{})
	for range 10 {
		near := listenHere(t, Options{})
		var conns []transport.Conn
		for range 8 {
			c, err := near.Dial(t.Context(), far.Addr())
			require.NoError(t, err)
			_, err = far.Accept(t.Context())
			require.NoError(t, err)
			conns = append(conns, c)
		}
		var arming, closing sync.WaitGroup
		stop := make(chan struct{})
		for _, c := range conns {
			arming.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						c.Arm(func() {})
					}
				}
			})
			closing.Go(func() {
				<-near.closed // the endpoint is about to close c
				c.Close()
			})
		}
		require.NoError(t, near.Close())
		closing.Wait()
		close(stop)
		arming.Wait()
	}
}

func TestAReceiverMayClose(t *testing.T) {
	near, far := connected(t)
	before := descriptors(t)
	m := transport.Message{Header: make([]byte, transport.HeaderLen)}
	for range 3 {
		require.NoError(t, near.Send(m))
	}
	require.NoError(t, near.Flush())
	in := new(box)
	in.arrived = func() {
		require.NoError(t, far.Close())
		require.Equal(t, before, descriptors(t), "the sockets were closed under Poll's feet")
	}
	require.ErrorIs(t, pollUntilError(t, far, in), net.ErrClosed)
	require.Equal(t, 1, in.got, "messages arrive after Close")
	require.Equal(t, before-2, descriptors(t), "the sockets stay open")
}

// What was lent to a connection that sends no more is its owner's again, though nobody has polled yet.
func TestABrokenConnectionHasNothingLent(t *testing.T) {
	near, far := connected(t)
	c := near.(*Conn)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 10_000)}
	eventually(t, "a path that is full", func() bool { return c.SendLasting(m) == transport.ErrFull })
	require.True(t, c.Lent())
	far.Close()
	eventually(t, "a break", func() bool { return errors.Is(c.Flush(), transport.ErrBroken) })
	require.False(t, c.Lent())
}

// A handshake that ends when the endpoint has closed makes no connection, and leaves nothing behind.
func TestNothingBeginsOnAClosedEndpoint(t *testing.T) {
	e := listenHere(t, Options{})
	require.NoError(t, e.Close())
	require.False(t, e.enter(&guest{}), "Close would wait for it")
	far, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer far.Close()
	before := descriptors(t)
	var lanes [2]*stream
	for i := range lanes {
		s, err := net.Dial("tcp", far.Addr().String())
		require.NoError(t, err)
		lanes[i] = newStream(s, nil, true)
	}
	_, err = e.connect(lanes, "tcp:h:1")
	require.ErrorIs(t, err, net.ErrClosed)
	require.LessOrEqual(t, descriptors(t), before)
}

// What a Flush could not write leaves with later Polls, in either lane.
func TestWhatIsLeftBehindLeavesWithPoll(t *testing.T) {
	for _, bulk := range []bool{false, true} {
		near, far := connected(t)
		m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 1000), Bulk: bulk}
		n := 0
		eventually(t, "a path that is full", func() bool {
			for range 1000 {
				if near.Send(m) == transport.ErrFull {
					return true
				}
				n++
			}
			return false
		})
		in := new(box)
		eventually(t, "what had been taken", func() bool {
			_, err := near.Poll(new(box))
			require.NoError(t, err)
			_, err = far.Poll(in)
			require.NoError(t, err)
			return in.got == n
		})
	}
}

// Who sleeps since before the path was full is woken when it has room, whichever left something behind.
func TestWhatIsLeftBehindAfterArmWakes(t *testing.T) {
	for _, bulk := range []bool{false, true} {
		m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 1000), Bulk: bulk}
		for name, fills := range map[string]func(c *Conn) bool{
			"Send": func(c *Conn) bool {
				m := m
				m.Body = make([]byte, maxBody) // of which nothing is held back
				return c.Send(m) == transport.ErrFull
			},
			"Flush": func(c *Conn) bool {
				require.NoError(t, c.Send(m))
				require.NoError(t, c.Flush())
				return c.lanes[laneOf(bulk)].waiting()
			},
		} {
			near, far := connected(t)
			woken := make(chan struct{})
			near.Arm(func() { close(woken) })
			eventually(t, "a path that is full", func() bool {
				for range 1000 {
					if fills(near.(*Conn)) {
						return true
					}
				}
				return false
			})
			in := new(box)
			eventually(t, "a wake after "+name, func() bool {
				_, err := far.Poll(in)
				require.NoError(t, err)
				select {
				case <-woken:
					return true
				default:
					return false
				}
			})
		}
	}
}

func TestSendMayNotChangeTheMessageThatWasRefused(t *testing.T) {
	near, _ := connected(t)
	m := transport.Message{Header: make([]byte, transport.HeaderLen), Body: make([]byte, 100_000)}
	for near.Send(m) == nil {
	}
	m.Body = m.Body[1:]
	require.Panics(t, func() { near.Send(m) })
}

// A Poll that moves something takes back an Arm: what comes later would wake for nothing.
func TestWhoPollsIsNotWoken(t *testing.T) {
	near, far := connected(t)
	c, in := far.(*Conn), new(box)
	for i := range 100 {
		far.Arm(func() {})
		require.NoError(t, near.Send(transport.Message{Header: make([]byte, transport.HeaderLen), Bulk: i%2 == 1}))
		require.NoError(t, near.Flush())
		eventually(t, "the message", func() bool {
			_, err := far.Poll(in)
			require.NoError(t, err)
			return in.got > i
		})
		require.False(t, c.armed.Load())
	}
}
