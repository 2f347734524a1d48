package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/mpiv"
)

// A journey is how far the test move is. It goes where rank 0 goes.
type journey struct {
	Size          int // index of what is measured
	Moves         int // at that size
	Asked, Stood  int64
	Whole, Stands []int64 // ns, of each move but the first few
	Wrote         int     // pages, during this move
	Sum           uint64  // of all bytes of the state
}

// settle is the time between two moves of a state of so many bytes: the process that was left
// frees it meanwhile and, with --spare-memory, finds memory for the next.
func settle(size int) time.Duration {
	return 20*time.Millisecond + 3*time.Duration(size>>20)*time.Millisecond
}

// move has rank 0 go back and forth between its process and a spare one. Its state
// is two slices, half of a size each. The other ranks wait for it. The time of a move
// is from its being asked for until the rank has its state in the other process; it
// stands still from its last safe point on; until then it writes to some of its pages.
func (o *options) move(ctx context.Context, world *mpiv.Comm, w io.Writer) error {
	var j journey
	var halves [2][]byte
	state := world.State()
	for name, ptr := range map[string]any{"journey": &j, "halves": &halves} {
		state.Protect(name, ptr)
	}
	if err := state.Restore(ctx); err != nil {
		return err
	}
	if world.Rank() != 0 {
		return mpiv.Barrier(ctx, world)
	}
	if state.First() {
		if o.agent == "" {
			return &mpiv.ExitError{Code: codeUsage, Err: errors.New("this test runs under mpivrun --spares 1")}
		}
		if err := o.test.printHead(w); err != nil {
			return err
		}
		j.fill(&halves, o.sizes[0])
	} else if err := o.arrived(&j, &halves, w); err != nil {
		return err
	}
	if j.Size == len(o.sizes) {
		return mpiv.Barrier(ctx, world)
	}
	return o.ask(ctx, state, &j, &halves)
}

// arrived notes the move that has ended, and what of the halves has come.
func (o *options) arrived(j *journey, halves *[2][]byte, w io.Writer) error {
	now := time.Now().UnixNano()
	size, sum := o.sizes[j.Size], uint64(0)
	for _, half := range halves {
		for _, b := range half {
			sum += uint64(b)
		}
	}
	if len(halves[0])+len(halves[1]) != size/2*2 || sum != j.Sum {
		return fmt.Errorf("of %d bytes of state others came", size)
	}
	j.Wrote = 0
	if j.Moves++; j.Moves > o.warmup {
		j.Whole, j.Stands = append(j.Whole, now-j.Asked), append(j.Stands, now-j.Stood)
	}
	if j.Moves < o.warmup+o.iters {
		return nil
	}
	if err := o.test.printLine(w, size, []float64{median(j.Whole), median(j.Stands)}); err != nil {
		return err
	}
	*j = journey{Size: j.Size + 1}
	if j.Size < len(o.sizes) {
		j.fill(halves, o.sizes[j.Size])
	}
	return nil
}

func (j *journey) fill(halves *[2][]byte, size int) {
	for i := range halves {
		halves[i] = make([]byte, size/2)
		for k := range halves[i] {
			halves[i][k] = 1
		}
	}
	j.Sum = uint64(size / 2 * 2)
}

// write writes to another page, if it may: all over the state, and somewhere in each.
func (j *journey) write(halves *[2][]byte, percent int) {
	const page, stride = 4096, 7919
	half := halves[j.Wrote%2]
	pages := len(half) / page
	if j.Wrote >= 2*pages*percent/100 {
		return
	}
	at := j.Wrote/2*stride%pages*page + j.Wrote%page
	half[at] += 3
	j.Sum += uint64(half[at]) - uint64(half[at]-3)
	j.Wrote++
}

// median is in µs.
func median(ns []int64) float64 {
	slices.Sort(ns)
	return float64(ns[len(ns)/2]) / 1e3
}

// ask has the agent move rank 0 and goes from safe point to safe point until it
// does.
func (o *options) ask(ctx context.Context, state *mpiv.State, j *journey, halves *[2][]byte) error {
	agent, err := net.Dial("unix", filepath.Join(o.agent, "ask.sock"))
	if err != nil {
		return err
	}
	defer agent.Close()
	refused := make(chan error, 1)
	var answer sync.WaitGroup
	defer answer.Wait()
	time.Sleep(settle(o.sizes[j.Size]))
	answer.Go(func() {
		var said struct{ Error string }
		if err := json.NewDecoder(agent).Decode(&said); err != nil || said.Error != "" {
			refused <- errors.Join(err, errors.New(said.Error))
		}
	})
	j.Asked = time.Now().UnixNano()
	if _, err := fmt.Fprintln(agent, `{"Op":"move"}`); err != nil {
		agent.Close()
		return err
	}
	for {
		select {
		case err := <-refused:
			return fmt.Errorf("move rank 0: %w", err)
		default:
		}
		j.write(halves, o.dirty)
		j.Stood = time.Now().UnixNano()
		if err := state.SafePoint(ctx); err != nil {
			return err
		}
	}
}

// agentDir is where the agent of this process's job is found; "" without one. It is
// asked before the process joins.
func agentDir() string {
	socket := os.Getenv(control.EnvSocket)
	if socket == "" {
		return ""
	}
	return filepath.Dir(socket)
}
