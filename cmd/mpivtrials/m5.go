//go:build linux

package main

import "context"

// m5 takes the SAN between two hosts away under messages of 64 MB, and gives it back: what failover does, in
// few rounds.
func m5(ctx context.Context, d *desk) error {
	d.rounds = d.times(3)
	if d.short {
		d.rounds = 1
	}
	return failover(ctx, d)
}
