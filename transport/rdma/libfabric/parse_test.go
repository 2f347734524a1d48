package libfabric

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/transport/internal/proof"
	"github.com/mpiv/mpiv/transport/rdma"
)

func FuzzFrame(f *testing.F) {
	b := make([]byte, headLen+3)
	frame{cookie: 1, pair: 2, number: 3, freed: [rdma.Lanes]uint32{4, 5}, lane: rdma.Bulk, length: 3}.put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseFrame(b)
		if err != nil {
			return
		}
		again := bytes.Clone(b)
		got.put(again)
		require.Equal(t, b, again)
	})
}

func FuzzHello(f *testing.F) {
	h := hello{
		proof: proof.Proof{1}, nonce: [16]byte{6}, pair: 2, cookie: 3, grants: 4, grantsKey: 5,
		addr: "ofi:127.0.0.1:1", provider: "shm", names: [rdma.Lanes]string{"a", "b"},
	}
	f.Add(h.append(nil))
	f.Add(hello{refusal: "no"}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := bytes.NewReader(b)
		got, err := readHello(r, true, func([]byte) proof.Proof { return h.proof })
		if err != nil {
			return
		}
		require.Equal(t, b[:len(b)-r.Len()], got.append(nil))
		require.True(t, got.proof == h.proof || got.refusal != "", "a stranger who does not refuse")
		_, err = readHello(bytes.NewReader(b), false, func([]byte) proof.Proof { return h.proof })
		require.Equal(t, got.proof == h.proof, err == nil)
	})
}
