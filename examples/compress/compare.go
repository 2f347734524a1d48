package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// compareRanks is how many ranks compare starts when it runs alone.
const compareRanks = 4

// A comparison is the rate of compression with messages, and without: as many
// goroutines in one process as ranks compress.
type comparison struct {
	Ranks       int       `json:"ranks"`
	InProcess   bool      `json:"in_process"` // the ranks share one process
	Compressors int       `json:"compressors"`
	RawBytes    int64     `json:"raw_bytes"` // in each run
	Messages    []float64 `json:"messages_bytes_per_second"`
	Channels    []float64 `json:"channels_bytes_per_second"`
	Ratio       float64   `json:"ratio"` // median of messages to median of channels
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

// measure takes the rates. They are known to rank 0 only.
func measure(ctx context.Context, world *mpiv.Comm, opt options) (comparison, error) {
	opt.quiet = true
	opt.output = ""
	here := opt
	here.baseline = layoutFor(world.Size()).compressors()
	c := comparison{Ranks: world.Size(), Compressors: here.baseline}
	for round := range opt.rounds + 1 {
		order := []*[]float64{&c.Messages, &c.Channels}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, rates := range order {
			how := opt
			if rates == &c.Channels {
				how = here
			}
			raw, took, err := timeOne(ctx, world, how)
			if err != nil {
				return c, err
			}
			if c.RawBytes = raw; round > 0 { // the first is to warm up
				*rates = append(*rates, float64(raw)/took.Seconds())
			}
		}
	}
	c.Ratio = median(c.Messages) / median(c.Channels)
	return c, nil
}

// timeOne does the job once, from an input that is open already.
func timeOne(ctx context.Context, world *mpiv.Comm, opt options) (raw int64, took time.Duration, err error) {
	src := &countingSource{}
	if world.Rank() == 0 {
		if src.source, err = openSource(opt); err != nil {
			return 0, 0, err
		}
		opt.source = func() (*source, error) { return &source{src, src.total, src.close}, nil }
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if _, err := compress(ctx, world, opt); err != nil {
		return 0, 0, err
	}
	if err := mpiv.Barrier(ctx, world); err != nil {
		return 0, 0, err
	}
	return src.read, time.Since(began), nil
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
	line := func(how string, rates []float64) {
		fmt.Printf("  %-44s %s/s  (%s to %s)\n", how, bytesText(int64(median(rates))),
			bytesText(int64(slices.Min(rates))), bytesText(int64(slices.Max(rates))))
	}
	fmt.Printf("%s, %s, %d rounds in turn:\n", opt.inputName(), bytesText(c.RawBytes), len(c.Messages))
	line(fmt.Sprintf("messages, %d ranks in %s, %d compress", c.Ranks, where, c.Compressors), c.Messages)
	line(fmt.Sprintf("channels, 1 process, %d compress", c.Compressors), c.Channels)
	_, err := fmt.Printf("with messages it runs at %.1f %% of the rate without\n", 100*c.Ratio)
	return err
}
