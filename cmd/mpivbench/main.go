// Command mpivbench is bench/peers/osu.c over mpiv: the OSU micro-benchmarks by
// name and meaning. The comment at the head of osu.c is the contract of both:
// tests, options, output and what each figure means. cmd/mpivpeers runs them
// side by side.
//
//	mpivrun -n 2 --transport shm mpivbench latency -s 8,65536
//
// It has two tests more. One is move: how long a live move of a rank takes, and for how long
// the rank stands still, by the bytes of its state:
//
//	mpivrun -n 1 --spares 1 --survive moves mpivbench move -s 0,1048576
//
// The other is save: for how long a rank stands still for a snapshot, and by how much
// snapshots make its run longer; here of a state of which it writes to 10 % of the pages:
//
//	mpivrun -n 1 --spares 1 --survive crashes mpivbench save -s 67108864 -d 10
//
// It has two options more. With -k ITERS there is a safe point every ITERS iterations, so
// that at --survive crashes what it costs to survive has the snapshots in it; latency_mt,
// which waits in several goroutines, and init, move and save do not take it. -p PROFILE writes
// a CPU profile of each process to PROFILE.PID. From such profiles `make profile` makes
// default.pgo, with which the compiler puts the way of a short message together as it would
// be written by hand. A program of your own gains as much: go build -pgo.
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
	if len(os.Args) == 2 && (os.Args[1] == "-h" || os.Args[1] == "--help") {
		fmt.Print(usage())
		return
	}
	o, err := parseOptions(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "mpivbench: %v\n%s", err, usage())
		os.Exit(codeUsage)
	}
	o.agent = agentDir()
	mpiv.Main(func(ctx context.Context, world *mpiv.Comm) error {
		stop, err := o.startProfile()
		if err != nil {
			return err
		}
		defer stop()
		return o.bench(ctx, world, time.Since(start), os.Stdout)
	}, networks()...)
}
