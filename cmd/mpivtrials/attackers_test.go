//go:build linux

package main

import (
	"io"
	"net"
	"os/exec"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestACopyThatBrokeIsNoUpset(t *testing.T) {
	for _, c := range []struct {
		name  string
		upset func(out, in net.Conn)
		want  error
	}{
		{"all of it came", func(net.Conn, net.Conn) {}, nil},
		{"its sender broke off", func(out, _ net.Conn) { out.Close() }, io.ErrUnexpectedEOF},
		{"its receiver broke off", func(_, in net.Conn) { in.Close() }, io.ErrUnexpectedEOF},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, in := net.Pipe()
			c.upset(out, in)
			carried := carry(t.Context(), out, in, 1<<20)
			carried.wg.Wait()
			require.ErrorIs(t, carried.end(), c.want)
		})
	}
	t.Run("it is ended while it lasts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			out, in := net.Pipe()
			require.NoError(t, carry(t.Context(), out, in, 1<<40).end())
		})
	})
}

func TestAFloodThatEndedByItselfIsSaid(t *testing.T) {
	done := make(chan struct{})
	close(done)
	_, tie := io.Pipe()
	f := &flooding{cmd: &exec.Cmd{}, tie: tie, done: done}
	require.ErrorContains(t, f.end(), "before its time")
}
