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
	network := mem.NewNetwork(mem.Options{})
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
