package mem_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport"
	"github.com/mpiv/mpiv/transport/mem"
	"github.com/mpiv/mpiv/transport/transporttest"
)

func TestContract(t *testing.T) {
	t.Run("copies", func(t *testing.T) { testContract(t, mem.Options{}) })
	t.Run("lends", func(t *testing.T) { testContract(t, mem.Options{Lends: true}) })
}

func testContract(t *testing.T, o mem.Options) {
	network := mem.NewNetwork(o)
	var names atomic.Int64
	transporttest.Run(t, func(t *testing.T) transport.Endpoint {
		e, err := network.Listen(strconv.FormatInt(names.Add(1), 10))
		require.NoError(t, err)
		return e
	})
}

func TestCutBreaksBothEnds(t *testing.T) {
	b, a := mem.NewNetwork(mem.Options{}).Pipe("mem:a", "mem:b")
	require.NoError(t, a.Send(transport.Message{Header: make([]byte, transport.HeaderLen)}))
	a.Cut()
	for _, c := range []*mem.Conn{a, b} {
		_, err := c.Poll(nil)
		require.ErrorIs(t, err, transport.ErrBroken)
	}
}

// A gate is a Receiver that can be held up before it takes a body.
type gate struct {
	entered, leave chan struct{}
	got            []byte
}

func (g *gate) Place(_ []byte, n int) []byte {
	close(g.entered)
	<-g.leave
	return make([]byte, n)
}
func (g *gate) Pulled(uint64, error)             {}
func (g *gate) Receive(header, body []byte) bool { return transport.Receive(g, header, body) }
func (g *gate) Arrived(_, body []byte)           { g.got = body }

func TestALentBodyIsTheSendersAfterClose(t *testing.T) {
	b, a := mem.NewNetwork(mem.Options{Lends: true}).Pipe("mem:a", "mem:b")
	body := []byte("as it was sent")
	require.NoError(t, a.SendLasting(transport.Message{Header: make([]byte, transport.HeaderLen), Body: body}))
	in := &gate{entered: make(chan struct{}), leave: make(chan struct{})}
	polled := make(chan struct{})
	go func() {
		defer close(polled)
		b.Poll(in)
	}()
	<-in.entered
	require.NoError(t, a.Close())
	require.False(t, a.Lent())
	copy(body, "what is written there later")
	close(in.leave)
	<-polled
	require.Equal(t, "as it was sent", string(in.got))
}
