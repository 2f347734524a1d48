package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/mpiv"
)

// compareRanks is how many ranks compare starts when it runs alone.
const compareRanks = 4

// A comparison is what compression takes with messages, and without: as many
// goroutines in one process as ranks compress.
type comparison struct {
	Ranks       int   `json:"ranks"`
	Processes   int   `json:"processes"` // that hold them
	Compressors int   `json:"compressors"`
	RawBytes    int64 `json:"raw_bytes"` // in each run
	Messages    costs `json:"messages"`
	Channels    costs `json:"channels"`

	// Quartiles of messages to channels. Runs are compared that came one after the
	// other, because other things on a machine come and go.
	RateRatio [3]float64 `json:"rate_ratio"`
	CPURatio  [3]float64 `json:"cpu_ratio"`
}

// costs has an element for each run.
type costs struct {
	BytesPerSecond []float64 `json:"bytes_per_second"`
	CPUSeconds     []float64 `json:"cpu_seconds"` // of all processes
}

// compare runs the job with and without messages in turn, and prints how the
// rates compare.
func compare(ctx context.Context, world *mpiv.Comm, opt options) error {
	rank := func(ctx context.Context, world *mpiv.Comm) error {
		c, err := measure(ctx, world, opt)
		if err != nil || world.Rank() != 0 {
			return err
		}
		return c.print(opt)
	}
	if world.Size() == 1 {
		return mpiv.Run(ctx, compareRanks, mpiv.Options{}, rank)
	}
	return rank(ctx, world)
}

// measure takes the costs. They are known to rank 0 only.
func measure(ctx context.Context, world *mpiv.Comm, opt options) (comparison, error) {
	opt.quiet = true
	opt.output = ""
	here := opt
	here.baseline = layoutFor(world.Size()).compressors()
	c := comparison{Ranks: world.Size(), Compressors: here.baseline}
	for round := range opt.rounds + 1 {
		order := []*costs{&c.Messages, &c.Channels}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, to := range order {
			how := opt
			if to == &c.Channels {
				how = here
			}
			raw, wall, use, err := runOnce(ctx, world, how)
			if err != nil {
				return c, err
			}
			if raw == 0 && world.Rank() == 0 {
				return c, errors.New("--compare needs an input that is not empty")
			}
			if c.RawBytes, c.Processes = raw, use.processes; round > 0 { // the first is to warm up
				to.BytesPerSecond = append(to.BytesPerSecond, float64(raw)/wall)
				to.CPUSeconds = append(to.CPUSeconds, use.seconds)
			}
		}
	}
	c.RateRatio = quartiles(ratios(c.Messages.BytesPerSecond, c.Channels.BytesPerSecond))
	c.CPURatio = quartiles(ratios(c.Messages.CPUSeconds, c.Channels.CPUSeconds))
	return c, nil
}

// runOnce does the job, from an input that is open already. Its results are the
// bytes of input and the seconds it took, on rank 0.
func runOnce(ctx context.Context, world *mpiv.Comm, opt options) (raw int64, wall float64, use cpuUse, err error) {
	src := &countingSource{}
	if world.Rank() == 0 {
		if src.source, err = openSource(opt); err != nil {
			return 0, 0, cpuUse{}, err
		}
		opt.source = func() (*source, error) { return &source{src, src.total, src.close}, nil }
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, cpuUse{}, err
	}
	began, used := time.Now(), cpuSeconds()
	if _, err := compress(ctx, world, opt); err != nil {
		return 0, 0, cpuUse{}, err
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, cpuUse{}, err
	}
	wall = time.Since(began).Seconds()
	use, err = sumOverProcesses(ctx, world, cpuSeconds()-used)
	return src.read, wall, use, err
}

// thisProcess tells processes apart.
var thisProcess = rand.Uint64()

// A cpuUse is the CPU time of some processes.
type cpuUse struct {
	processes int
	seconds   float64
}

// sumOverProcesses adds up, on rank 0, what each process has used, however many
// ranks it holds.
func sumOverProcesses(ctx context.Context, world *mpiv.Comm, seconds float64) (cpuUse, error) {
	type share struct {
		Process uint64
		Seconds float64
	}
	all := make([]share, world.Size())
	if err := mpiv.Gather(ctx, world, []share{{thisProcess, seconds}}, all, 0); err != nil || world.Rank() != 0 {
		return cpuUse{}, err
	}
	byProcess := map[uint64]float64{}
	for _, s := range all {
		byProcess[s.Process] = s.Seconds
	}
	u := cpuUse{processes: len(byProcess)}
	for _, s := range byProcess {
		u.seconds += s
	}
	return u, nil
}

// cpuSeconds is what this process has used.
func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

type countingSource struct {
	*source
	read int64
}

func (s *countingSource) Read(p []byte) (int, error) {
	n, err := s.source.Read(p)
	s.read += int64(n)
	return n, err
}

func ratios(a, b []float64) []float64 {
	r := make([]float64, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

// quartiles are the lower, the median and the upper of v.
func quartiles(v []float64) (q [3]float64) {
	s := slices.Sorted(slices.Values(v))
	for i := range q {
		at := float64(len(s)-1) * float64(i+1) / 4
		low, part := math.Modf(at)
		q[i] = s[int(low)] + part*(s[min(int(low)+1, len(s)-1)]-s[int(low)])
	}
	return q
}

// print prints c, on rank 0.
func (c *comparison) print(opt options) error {
	if opt.json {
		return json.NewEncoder(os.Stdout).Encode(c)
	}
	line := func(how string, of costs) {
		rate, cpu := quartiles(of.BytesPerSecond), quartiles(of.CPUSeconds)
		fmt.Printf("  %-54s %9s/s (%s to %s), %.0f CPU ms per 100 MB\n", how, bytesText(int64(rate[1])),
			bytesText(int64(rate[0])), bytesText(int64(rate[2])), cpu[1]/float64(c.RawBytes)*1e11)
	}
	percent := func(q [3]float64) string {
		return fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", 100*q[1]-100, 100*q[0]-100, 100*q[2]-100)
	}
	fmt.Printf("%s, %s in each of %d rounds, medians and quartiles:\n", opt.inputName(), bytesText(c.RawBytes), len(c.Messages.CPUSeconds))
	line(fmt.Sprintf("messages: %d ranks of which %d compress, processes: %d", c.Ranks, c.Compressors, c.Processes), c.Messages)
	line(fmt.Sprintf("channels: %d goroutines compress, processes: 1", c.Compressors), c.Channels)
	_, err := fmt.Printf("with messages: throughput %s, CPU time %s\n", percent(c.RateRatio), percent(c.CPURatio))
	return err
}
