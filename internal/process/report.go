package process

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// Label is the profiler label that a rank's goroutines carry, and those they
// start, with the rank as its value. It is how a report tells a rank whose
// goroutines all wait from one that computes.
const Label = "mpiv-rank"

// Report says what each rank of this process is doing.
func (p *Process) Report() control.Report {
	goroutines := countGoroutines()
	r := control.Report{Process: p.index}
	for _, rank := range p.engine.Local() {
		r.Ranks = append(r.Ranks, p.reportRank(rank, goroutines))
	}
	return r
}

func (p *Process) reportRank(rank topology.Rank, goroutines map[int]int) control.RankReport {
	box := p.engine.Box(rank)
	waits := box.Waits()
	sent, got := box.Counts()
	r := control.RankReport{Rank: int(rank), State: "running", Sent: counts(sent), Received: counts(got)}
	p.mu.Lock()
	ended := p.ends[rank]
	p.mu.Unlock()
	switch {
	case ended:
		r.State = "finished"
	case len(waits) > 0 && len(waits) >= goroutines[int(rank)]:
		r.State = "waiting"
	}
	for _, w := range waits {
		switch {
		case len(w.Needs) > 0:
			r.Waits = append(r.Waits, p.wait(w))
		case !w.Task && r.State == "waiting":
			r.State = "running" // it goes on without anybody's help
		}
	}
	return r
}

func (p *Process) wait(w engine.WaitInfo) control.Wait {
	c := control.Wait{ID: w.ID, Op: w.Op, Where: where(w.PCs), Since: w.Since.UnixNano(), Any: w.Any}
	if !w.Until.IsZero() {
		c.Until = w.Until.UnixNano()
	}
	for _, n := range w.Needs {
		need := control.Need{Peer: int(n.Peer), What: "message", Comm: n.Comm, Context: n.Context, Tag: int(n.Tag)}
		if n.Receive {
			need.What = "receive"
		}
		if n.Peer == engine.AnySource {
			for r := range p.engine.Size() {
				need.Peers = append(need.Peers, r)
			}
		}
		if n.Check != 0 {
			need.Collective = fmt.Sprintf("%s number %d", p.describe(n.Check), n.Tag)
		}
		for _, t := range n.Unexpected {
			need.Unexpected = append(need.Unexpected, int(t))
		}
		c.Needs = append(c.Needs, need)
	}
	return c
}

func counts(cs []engine.Count) []control.Count {
	all := make([]control.Count, len(cs))
	for i, c := range cs {
		all[i] = control.Count{Peer: int(c.Peer), N: c.N}
	}
	return all
}

// where is the line of the program in a stack that begins in the library.
func where(pcs []uintptr) string {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		ours := strings.HasPrefix(f.Function, "github.com/mpiv/mpiv/mpiv.") || strings.HasPrefix(f.Function, "github.com/mpiv/mpiv/internal/") ||
			strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "sync.")
		if !ours && f.File != "" {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return ""
		}
	}
}

var labelled = regexp.MustCompile(`^# labels: .*"` + Label + `":"(\d+)"`)

// countGoroutines is how many goroutines each rank has, by their Label.
func countGoroutines() map[int]int {
	var profile bytes.Buffer
	pprof.Lookup("goroutine").WriteTo(&profile, 1)
	count := make(map[int]int)
	n := 0
	for line := range strings.Lines(profile.String()) {
		if m := labelled.FindStringSubmatch(line); m != nil {
			rank, _ := strconv.Atoi(m[1])
			count[rank] += n
			continue
		}
		if f := strings.Fields(line); len(f) > 1 && f[1] == "@" {
			n, _ = strconv.Atoi(f[0])
		}
	}
	return count
}

// reportWhenStuck tells the agent when ranks of this process have slept for a
// while in the same calls: perhaps they wait in vain.
func (p *Process) reportWhenStuck() {
	const pace, patience, again = 100 * time.Millisecond, 250 * time.Millisecond, time.Second
	tick := time.NewTicker(pace)
	defer tick.Stop()
	var told []uint64
	var toldAt time.Time
	for {
		select {
		case <-tick.C:
		case <-p.stopped:
			return
		}
		var stuck []uint64
		for _, r := range p.engine.Local() {
			for _, w := range p.engine.Box(r).Waits() {
				if time.Since(w.Since) > patience {
					stuck = append(stuck, w.ID)
				}
			}
		}
		if len(stuck) == 0 || slices.Equal(stuck, told) && time.Since(toldAt) < again {
			continue
		}
		told, toldAt = stuck, time.Now()
		r := p.Report()
		p.agent.Send(control.Message{Report: &r})
	}
}
