// Command mpivbench is bench/peers/osu.c over mpiv: the OSU micro-benchmarks by
// name and meaning. The comment at the head of osu.c is the contract of both:
// tests, options, output and what each figure means. cmd/mpivpeers runs them
// side by side.
//
//	mpivrun -n 2 --transport shm mpivbench latency -s 8,65536
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/mpiv/mpiv/mpiv"
)

// codeUsage is the exit code for a command line that makes no sense, and for a
// test that cannot run with so many ranks.
const codeUsage = 2

func main() {
	start := time.Now()
	o, err := parseOptions(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "mpivbench: %v\n%s", err, usage())
		os.Exit(codeUsage)
	}
	mpiv.Main(func(_ context.Context, world *mpiv.Comm) error {
		return o.bench(context.Background(), world, time.Since(start), os.Stdout)
	})
}
