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
