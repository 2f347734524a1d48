package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"syscall"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
)

// stream prints the events of a job until it ends, a line of JSON each.
func stream(ctx context.Context, w io.Writer, args []string) error {
	name, _, err := view("events", args) // they are JSON anyway
	if err != nil {
		return err
	}
	j, err := choose(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(w)
	err = agent.Watch(ctx, j.Dir, func(e events.Event) error {
		out.Write(events.Append(nil, e))
		return out.Flush()
	})
	if errors.Is(err, syscall.EPIPE) {
		return nil // who read it has had enough
	}
	return err
}
