//go:build linux

package main

import "context"

const roleCuts = "rank-cuts"

func cuts(context.Context, *desk) error { return nil }
func cutsRank([]string) error           { return nil }
