// Package transporttest is the contract of package transport as a test suite.
// Every network passes it:
//
//	func TestContract(t *testing.T) {
//		transporttest.Run(t, func(t *testing.T) transport.Endpoint { … })
//	}
package transporttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
)

// patience bounds every wait of the suite; no test waits so long when it passes.
const patience = 20 * time.Second

// An Exception is something that a network cannot promise.
type Exception string

// Allocates is for networks whose library allocates for each message.
const Allocates Exception = "sending and receiving allocate nothing"

// Run tests the network whose endpoints listen makes. Endpoints of one test can
// dial each other; Run closes them.
func Run(t *testing.T, listen func(t *testing.T) transport.Endpoint, except ...Exception) {
	tests := []struct {
		name string
		run  func(t *testing.T, s *setup)
	}{
		{"a message arrives with its header and body", testOne},
		{"an address has a network and a place", testAddr},
		{"messages of all sizes arrive in order, both ways at once", testOrder},
		{"bulk and other messages keep their order in their lanes", testLanes},
		{"a receiver takes less than was sent", testDrop},
		{"a full path says so, and goes on where it was", testFull},
		{"the last message before a Flush goes on as it began", testLast},
		{"a lasting body is the sender's again when it is not lent", testLasting},
		{"a full bulk lane does not stop the other", testBulkFull},
		{"a body that is too long is refused", testTooLong},
		{"an armed end is woken by a message", testArm},
		{"an end armed too late is woken at once", testArmLate},
		{"who wants no more is woken for what is left", testSated},
		{"a full end is woken when there is room", testArmFull},
		{"an end that was armed before it was full is woken when there is room", testArmBeforeFull},
		{"who is armed, and then refused, is woken when there is room", testArmBeforeRefused},
		{"an end armed after room came is woken at once", testArmRoom},
		{"closing one end breaks the other and wakes it", testClose},
		{"a closed endpoint accepts nobody and its goroutines are gone", testEndpointClose},
		{"nobody listens where one is dialed", testDialNobody},
		{"waiting to accept ends with the context", testAcceptContext},
		{"a body is pulled out of the peer's memory", testPull},
		{string(Allocates), testAllocs},
	}
	for _, tt := range tests {
		if slices.Contains(except, Exception(tt.name)) {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s := &setup{listen: listen}
			t.Cleanup(func() { s.close(t) }) // also of what skips or fails
			tt.run(t, s)
			s.close(t)
			for end := time.Now().Add(time.Second); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
				require.True(t, time.Now().Before(end), "goroutines are left over after Close")
			}
		})
	}
}

type setup struct {
	listen    func(t *testing.T) transport.Endpoint
	endpoints []transport.Endpoint
}

func (s *setup) endpoint(t *testing.T) transport.Endpoint {
	e := s.listen(t)
	s.endpoints = append(s.endpoints, e)
	return e
}

func (s *setup) close(t *testing.T) {
	for _, e := range s.endpoints {
		require.NoError(t, e.Close())
		require.NoError(t, e.Close(), "the second Close")
	}
}

// pair is two connected ends.
func (s *setup) pair(t *testing.T) (a, b transport.Conn) {
	x, y := s.endpoint(t), s.endpoint(t)
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = y.Accept(ctx)
		accepted <- err
	}()
	a, err := x.Dial(ctx, y.Addr())
	require.NoError(t, err)
	require.NoError(t, <-accepted)
	return a, b
}

// inbox is a Receiver that keeps everything.
type inbox struct {
	limit  int // of a body; 0: none
	got    []received
	pulled map[uint64]error
}

type received struct{ header, body []byte }

func (in *inbox) Place(header []byte, n int) []byte {
	if in.limit > 0 {
		n = min(n, in.limit)
	}
	return make([]byte, n)
}

func (in *inbox) Receive(header, body []byte) bool { return transport.Receive(in, header, body) }
func (in *inbox) Arrived(header, body []byte) {
	in.got = append(in.got, received{bytes.Clone(header), body})
}

func (in *inbox) Pulled(id uint64, err error) {
	if in.pulled == nil {
		in.pulled = make(map[uint64]error)
	}
	in.pulled[id] = err
}

// number makes a header that carries i, and a body of n bytes that depends on it.
func number(i uint64, n int) (header, body []byte) {
	header = make([]byte, transport.HeaderLen)
	binary.LittleEndian.PutUint64(header, i)
	header[transport.HeaderLen-1] = byte(i)
	body = make([]byte, n)
	fill(body, i)
	return header, body
}

func fill(body []byte, i uint64) {
	for k := range body {
		body[k] = byte(i*31 + uint64(k)*7 + uint64(k)>>8)
	}
}

func check(r received) (uint64, error) {
	i := binary.LittleEndian.Uint64(r.header)
	want := make([]byte, len(r.body))
	fill(want, i)
	if !bytes.Equal(r.body, want) {
		return i, fmt.Errorf("message %d: the body of %d bytes is not what was sent", i, len(want))
	}
	if r.header[transport.HeaderLen-1] != byte(i) {
		return i, fmt.Errorf("message %d: the end of the header is not what was sent", i)
	}
	return i, nil
}

// until polls both ends until ok says so.
func until(t *testing.T, what string, ok func() bool, polls ...func() error) {
	t.Helper()
	end := time.Now().Add(patience)
	for !ok() {
		for _, poll := range polls {
			require.NoError(t, poll(), what)
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
		runtime.Gosched()
	}
}

func poller(c transport.Conn, in transport.Receiver) func() error {
	return func() error { _, err := c.Poll(in); return err }
}
