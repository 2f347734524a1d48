//go:build linux

package main

import "context"

const (
	roleStrangers = "rank-strangers"
	roleAttack    = "attack"
	roleSink      = "sink"
)

func strangers(context.Context, *desk) error { return nil }
func strangersRank([]string) error           { return nil }
func attack([]string) error                  { return nil }
func sink([]string) error                    { return nil }
func attackNames() []string                  { return []string{"garbage"} }
