//go:build linux

package shm

import (
	"sync/atomic"
	"unsafe"

	"github.com/mpiv/mpiv/internal/hugepages"
	"github.com/mpiv/mpiv/internal/lock"
	"github.com/mpiv/mpiv/internal/release"
	"github.com/mpiv/mpiv/transport/rdma"
)

// largeBody is the length from which it matters in which pages a body lies.
const largeBody = 32 << 10

// A grant is a region in the segment. The peer looks at it after it has read: if
// it is the same, the region was there all the while. Before it writes it counts
// itself in, and then looks: either deregister sees it and waits, or it sees
// that the region is gone.
type grant struct {
	gen     uint64        // that is registered here; 0: none
	writers atomic.Uint64 // the peer's writes in progress
}

const writable = 1 << 63 // bit of a generation

// A regionTable is the memory that this side has registered for its peer.
type regionTable struct {
	grants *[maxRegions]grant

	mu   lock.Mutex // guards what follows
	gen  uint64
	free []int
	live [maxRegions]region
}

type region struct {
	gen uint64 // 0: none
	buf []byte // keeps it reachable
}

func (r *regionTable) init(grants *[maxRegions]grant) {
	r.grants = grants
	for i := range maxRegions {
		r.free = append(r.free, maxRegions-1-i)
	}
}

func (r *regionTable) register(buf []byte, a rdma.Access) (rdma.Key, bool) {
	if len(buf) >= largeBody {
		hugepages.Used(buf)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(buf) == 0 || len(r.free) == 0 {
		return rdma.Key{}, false
	}
	i := r.free[len(r.free)-1]
	r.free = r.free[:len(r.free)-1]
	r.gen++
	gen := r.gen
	if a == rdma.RemoteWrite {
		gen |= writable
	}
	r.live[i] = region{gen, buf}
	release.Store64(&r.grants[i].gen, gen)
	return rdma.Key{
		Addr:   uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))),
		Len:    uint64(len(buf)),
		Remote: [2]uint64{uint64(i), gen},
	}, true
}

// deregister ends a region. If the peer may be writing to it, the grant counts
// those writes; otherwise it is nil.
func (r *regionTable) deregister(k rdma.Key) *grant {
	i, gen := k.Remote[0], k.Remote[1]
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= maxRegions || gen == 0 || r.live[i].gen != gen {
		return nil
	}
	r.live[i] = region{}
	r.free = append(r.free, int(i))
	if gen&writable == 0 {
		release.Store64(&r.grants[i].gen, 0)
		return nil
	}
	atomic.StoreUint64(&r.grants[i].gen, 0) // before the look at writers
	return &r.grants[i]
}

// any tells whether the peer can reach any region now.
func (r *regionTable) any() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.free) < maxRegions
}

// lookup is the first n bytes of the region that k names, if it is registered
// for reading.
func (r *regionTable) lookup(k rdma.Key, n uint64) ([]byte, bool) {
	i, gen := k.Remote[0], k.Remote[1]
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= maxRegions || gen == 0 || gen&writable != 0 || r.live[i].gen != gen {
		return nil, false
	}
	buf := r.live[i].buf
	if k.Addr != uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))) || n > uint64(len(buf)) {
		return nil, false
	}
	return buf[:n], true
}
