package fabric_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// A doorkeeper is an endpoint that writes down whom it is to expect.
type doorkeeper struct {
	transport.Endpoint
	mu       sync.Mutex
	expected []transport.Addr
}

func (d *doorkeeper) Expect(peers []transport.Addr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expected = append(d.expected, peers...)
}

func TestEndpointsAreToldWhomToExpect(t *testing.T) {
	nets := newMems(topology.LAN)
	doors := map[int]*doorkeeper{}
	newWorld(t, 2, func(p int) site {
		return nets.site(t, p, func(e transport.Endpoint) transport.Endpoint {
			doors[p] = &doorkeeper{Endpoint: e}
			return doors[p]
		})
	})
	for p, d := range doors {
		d.mu.Lock()
		require.Equal(t, []transport.Addr{"mem:lan0", "mem:lan1"}, d.expected, p)
		d.mu.Unlock()
	}
}
