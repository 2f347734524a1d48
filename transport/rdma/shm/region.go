//go:build linux

package shm

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/mpiv/mpiv/transport/rdma"
)

// A regionTable is the memory that this side has registered for its peer. The
// generation of each entry is also in the segment, so that the peer can tell,
// after it has read, that the region was there all the while.
type regionTable struct {
	shared *[regions]atomic.Uint64

	mu   sync.Mutex // guards what follows
	gen  uint64
	free []int
	live [regions]region
}

type region struct {
	gen uint64 // 0: none
	buf []byte // keeps it reachable
}

func (r *regionTable) init(shared *[regions]atomic.Uint64) {
	r.shared = shared
	for i := range regions {
		r.free = append(r.free, regions-1-i)
	}
}

func (r *regionTable) register(buf []byte) (rdma.Key, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(buf) == 0 || len(r.free) == 0 {
		return rdma.Key{}, false
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.gen++
	r.live[i] = region{r.gen, buf}
	r.shared[i].Store(r.gen)
	return rdma.Key{
		Addr:   uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))),
		Len:    uint64(len(buf)),
		Remote: [2]uint64{uint64(i), r.gen},
	}, true
}

func (r *regionTable) deregister(k rdma.Key) {
	i, gen := k.Remote[0], k.Remote[1]
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= regions || gen == 0 || r.live[i].gen != gen {
		return
	}
	r.shared[i].Store(0)
	r.live[i] = region{}
	r.free = append(r.free, int(i))
}

// lookup is the first n bytes of the region that k names, if it is registered.
func (r *regionTable) lookup(k rdma.Key, n uint64) ([]byte, bool) {
	i, gen := k.Remote[0], k.Remote[1]
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= regions || gen == 0 || r.live[i].gen != gen {
		return nil, false
	}
	buf := r.live[i].buf
	if k.Addr != uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) || n > uint64(len(buf)) {
		return nil, false
	}
	return buf[:n], true
}
