package sensors

import "time"

// A neighbour is traffic of others than this job at one direction of a host: what a link
// that falls meanwhile has most likely lost its bytes to.
type neighbour struct {
	usual float64 // bytes a second, over neighbourMemory. What was there before the first reading is new: the job may have begun beside it
	now   float64
	last  float64
}

const neighbourMemory = 30 * time.Second

// observe takes what there is now, passed after what there was before.
func (n *neighbour) observe(rate float64, passed time.Duration) {
	n.last, n.now = n.now, rate
	n.usual += min(float64(passed)/float64(neighbourMemory), 1) * (rate - n.usual)
}

// more is what there is beyond what is usual, and was there a reading before.
func (n *neighbour) more() float64 { return max(0, min(n.now, n.last)-n.usual) }

// A hostWatch is what is known of a host.
type hostWatch struct {
	HostState
	in, out neighbour
}

func (h *hostWatch) observe(s HostState) {
	passed := s.At.Sub(h.At)
	if h.At.IsZero() || passed < 0 {
		passed = 0
	}
	h.HostState = s
	h.in.observe(s.ForeignIn, passed)
	h.out.observe(s.ForeignOut, passed)
}
