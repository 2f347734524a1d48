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
		ofHosts := false
		switch item := item.(type) {
		case chaos.Fault:
			ofHosts = !item.OfRank()
		case chaos.Random:
			ofHosts = item.OfHosts()
		}
		if ofHosts {
			l, err := inlab.Find()
			if err != nil {
				return nil, fmt.Errorf("--chaos: %v: %w", item, err)
			}
			return l, nil
		}
	}
	return nil, nil
}
