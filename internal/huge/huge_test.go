// Package huge sends messages that are longer than 32 bits can count.
//
// It takes some 9 GB of memory and some seconds for each way, so it runs only
// where it is asked for:
//
//	make huge
package huge

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v3/mem"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/mpiv"
)

var huge = flag.Bool("huge", false, "send more than 4 GiB in one message; takes 9 GB of memory")

// elements of 8 bytes in the message, which is 1 MiB and 8 bytes longer than 4 GiB.
const elements = 1<<29 + 1<<17 + 1

const tag = 5

func TestMain(m *testing.M) {
	if process.Launched() {
		mpiv.Main(exchange)
	}
	os.Exit(m.Run())
}

func TestMessagesBeyond4GiB(t *testing.T) {
	if !*huge {
		t.Skip("takes 9 GB of memory: run it with make huge")
	}
	memory, err := mem.VirtualMemory()
	require.NoError(t, err)
	if memory.Available < 10<<30 {
		t.Skipf("takes 10 GiB of free memory, and there are %.1f", float64(memory.Available)/(1<<30))
	}
	for _, way := range []struct {
		name, transport string
		ranksPerProcess int
	}{{"shm", "shm", 1}, {"tcp", "tcp", 1}, {"one process", "shm", 2}} {
		t.Run(way.name, func(t *testing.T) {
			self, err := os.Executable()
			require.NoError(t, err)
			dir, err := os.MkdirTemp("", "mpiv-huge") // nobody else may enter it
			require.NoError(t, err)
			defer os.RemoveAll(dir)
			var out, errs bytes.Buffer
			a, err := agent.Start(agent.Job{
				Programs: []agent.Program{{Ranks: 2, Path: self}},
				Name:     "huge", Host: "here", Runtime: dir, Timeout: 5 * time.Minute,
				Stdout: &out, Stderr: &errs,
				RanksPerProcess: way.ranksPerProcess,
				Options:         control.Options{Transports: []string{way.transport}},
			})
			require.NoError(t, err)
			require.Zero(t, a.Wait(), "it said %s", &errs)
			require.Contains(t, out.String(), "received")
			t.Logf("%s", &out)
		})
	}
}

// element is what the message holds at i: no part of it is like another.
func element(i int) uint64 { return uint64(i)*0x9e3779b97f4a7c15 + 1 }

// exchange has rank 0 send the message to rank 1, which looks at all of it.
func exchange(ctx context.Context, world *mpiv.Comm) error {
	data := make([]uint64, elements+1)
	if world.Rank() == 0 {
		for i := range data[:elements] {
			data[i] = element(i)
		}
		return mpiv.Send(ctx, world, data[:elements], 1, tag)
	}
	announced, err := mpiv.Probe(ctx, world, 0, tag)
	if err != nil {
		return err
	}
	began := time.Now()
	got, err := mpiv.Recv(ctx, world, data, 0, tag)
	if err != nil {
		return err
	}
	took := time.Since(began)
	want := mpiv.Status{Source: 0, Tag: tag, Count: elements, Bytes: 8 * elements}
	if got != want || announced.Bytes != want.Bytes {
		return fmt.Errorf("Recv = %+v after Probe = %+v, want %+v", got, announced, want)
	}
	for i, v := range data[:elements] {
		if v != element(i) {
			return fmt.Errorf("element %d, at byte %d, is %x, want %x", i, 8*i, v, element(i))
		}
	}
	if data[elements] != 0 {
		return fmt.Errorf("what lies beyond the message was changed to %x", data[elements])
	}
	fmt.Printf("received %d bytes in %v\n", got.Bytes, took.Round(time.Millisecond))
	return nil
}
