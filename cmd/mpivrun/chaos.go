package main

import (
	"fmt"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/chaos/inlab"
	"github.com/mpiv/mpiv/internal/agent"
)

// breakerFor is what does the faults of hosts in s; nil if there are none.
func breakerFor(s chaos.Schedule) (agent.Breaker, error) {
	for _, item := range s {
		if f, ok := item.(chaos.Fault); ok && !f.OfRank() {
			l, err := inlab.Find()
			if err != nil {
				return nil, fmt.Errorf("--chaos: %v: %w", f, err)
			}
			return l, nil
		}
	}
	return nil, nil
}
