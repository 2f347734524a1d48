package libp2p

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzAddr: what parses prints a text that parses to the same.
func FuzzAddr(f *testing.F) {
	const id = "12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp"
	f.Add("libp2p:/ip4/127.0.0.1/tcp/4711/p2p/" + id)
	f.Add("libp2p:/ip4/127.0.0.1/udp/4711/quic-v1/p2p/" + id + ",/ip6/::1/tcp/1/p2p/" + id + "/p2p-circuit/p2p/" + id)
	f.Add("libp2p:/p2p/" + id)
	f.Add("libp2p:,")
	f.Fuzz(func(t *testing.T, text string) {
		info, err := parseAddr(text)
		if err != nil || len(info.Addrs) == 0 {
			return
		}
		again, err := parseAddr(string(format(info)))
		require.NoError(t, err)
		require.Equal(t, info.ID, again.ID)
		require.Equal(t, len(info.Addrs), len(again.Addrs))
		for i := range info.Addrs {
			require.True(t, info.Addrs[i].Equal(again.Addrs[i]))
		}
	})
}
