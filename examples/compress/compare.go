package main

import (
	"context"
	"encoding/json"
	"fmt"
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
	InProcess   bool  `json:"in_process"` // the ranks share one process
	Compressors int   `json:"compressors"`
	RawBytes    int64 `json:"raw_bytes"` // in each run
	Messages    costs `json:"messages"`
	Channels    costs `json:"channels"`

	// Medians of messages to medians of channels. On a machine that is busy with
	// other things the second tells more.
	RateRatio float64 `json:"rate_ratio"`
	CPURatio  float64 `json:"cpu_ratio"`
}

// costs has an element for each run.
type costs struct {
	BytesPerSecond []float64 `json:"bytes_per_second"`
	CPUSeconds     []float64 `json:"cpu_seconds"` // of all processes
}

// compare runs the job with and without messages in turn, and prints how the
// rates compare.
func compare(ctx context.Context, world *mpiv.Comm, opt options) error {
	alone := world.Size() == 1
	rank := func(ctx context.Context, world *mpiv.Comm) error {
		c, err := measure(ctx, world, opt)
		if err != nil || world.Rank() != 0 {
			return err
		}
		c.InProcess = alone
		return c.print(opt)
	}
	if alone {
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
			raw, wall, cpu, err := runOnce(ctx, world, how)
			if err != nil {
				return c, err
			}
			if c.RawBytes = raw; round > 0 { // the first is to warm up
				to.BytesPerSecond = append(to.BytesPerSecond, float64(raw)/wall)
				to.CPUSeconds = append(to.CPUSeconds, cpu)
			}
		}
	}
	c.RateRatio = median(c.Messages.BytesPerSecond) / median(c.Channels.BytesPerSecond)
	c.CPURatio = median(c.Messages.CPUSeconds) / median(c.Channels.CPUSeconds)
	return c, nil
}

// runOnce does the job, from an input that is open already. Its results are the
// bytes of input and the seconds it took, on rank 0.
func runOnce(ctx context.Context, world *mpiv.Comm, opt options) (raw int64, wall, cpu float64, err error) {
	src := &countingSource{}
	if world.Rank() == 0 {
		if src.source, err = openSource(opt); err != nil {
			return 0, 0, 0, err
		}
		opt.source = func() (*source, error) { return &source{src, src.total, src.close}, nil }
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, 0, err
	}
	began, used := time.Now(), cpuSeconds()
	if _, err := compress(ctx, world, opt); err != nil {
		return 0, 0, 0, err
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, 0, err
	}
	wall = time.Since(began).Seconds()
	cpu, err = sumOverProcesses(ctx, world, cpuSeconds()-used)
	return src.read, wall, cpu, err
}

// thisProcess tells processes apart.
var thisProcess = rand.Uint64()

const tagCPU = tagVerdict + 1

// sumOverProcesses is, on rank 0, the sum of what each process has, however many
// ranks it holds.
func sumOverProcesses(ctx context.Context, world *mpiv.Comm, seconds float64) (float64, error) {
	type share struct {
		Process uint64
		Seconds float64
	}
	own := []share{{thisProcess, seconds}}
	if world.Rank() != 0 {
		return 0, mpiv.Send(ctx, world, own, 0, tagCPU)
	}
	shares := map[uint64]float64{thisProcess: seconds}
	for range world.Size() - 1 {
		if _, err := mpiv.Recv(ctx, world, own, mpiv.AnySource, tagCPU); err != nil {
			return 0, err
		}
		shares[own[0].Process] = own[0].Seconds
	}
	sum := 0.
	for _, s := range shares {
		sum += s
	}
	return sum, nil
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

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

// print prints c, on rank 0.
func (c *comparison) print(opt options) error {
	if opt.json {
		return json.NewEncoder(os.Stdout).Encode(c)
	}
	where := "processes of their own"
	if c.InProcess {
		where = "one process"
	}
	line := func(how string, of costs) {
		rates := of.BytesPerSecond
		fmt.Printf("  %-46s %9s/s (%s to %s), %.0f CPU ms per 100 MB\n", how, bytesText(int64(median(rates))),
			bytesText(int64(slices.Min(rates))), bytesText(int64(slices.Max(rates))), median(of.CPUSeconds)/float64(c.RawBytes)*1e11)
	}
	fmt.Printf("%s, %s in each of %d rounds:\n", opt.inputName(), bytesText(c.RawBytes), len(c.Messages.CPUSeconds))
	line(fmt.Sprintf("messages: %d ranks in %s, %d compress", c.Ranks, where, c.Compressors), c.Messages)
	line(fmt.Sprintf("channels: one process, %d compress", c.Compressors), c.Channels)
	_, err := fmt.Printf("with messages: %+.1f %% throughput, %+.1f %% CPU time\n", 100*c.RateRatio-100, 100*c.CPURatio-100)
	return err
}
