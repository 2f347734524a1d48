package mpiv

import "context"

// Barrier returns when all ranks of c have called it.
//
// By dissemination: Hensgen, Finkel and Manber, "Two Algorithms for Barrier
// Synchronization" (IJPP 1988). Ranks that share cores report to one of them,
// which lets all go.
func Barrier(ctx context.Context, c *Comm) error {
	s := c.begin(ctx, opBarrier, -1)
	return s.done(s.barrier())
}

// Ibarrier starts a Barrier.
func Ibarrier(ctx context.Context, c *Comm) Request {
	return c.begin(ctx, opBarrier, -1).later((*series).barrier)
}

func (s *series) barrier() error {
	if err := s.enter(); err != nil {
		return err
	}
	if s.central(0) {
		if err := s.reportTo(0, nil, func(int) []byte { return nil }); err != nil {
			return err
		}
		return s.bcastDirect(nil, 0)
	}
	for d := 1; d < s.c.size; d <<= 1 {
		to, from := (s.c.rank+d)%s.c.size, (s.c.rank-d+s.c.size)%s.c.size
		if err := s.sendrecv(nil, to, nil, from); err != nil {
			return err
		}
	}
	return nil
}
