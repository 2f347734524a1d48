// Compress is zstd spread over ranks: rank 0 reads a file, a directory or
// standard input in blocks, the ranks in between compress them, and the last
// writes them, in order, to a .zst file that any zstd opens.
//
//	bin/compress big.log                            # one process on all cores
//	mpivrun -n 4 bin/compress big.log               # reader, two compressors, writer
//	mpivrun -n 4 bin/compress src/                  # zstd -dc src.tar.zst | tar x
//	mpivrun -n 4 bin/compress --iterations 100 --compressibility 60 --csv times.csv
//	mpivrun -n 4 bin/compress --compare             # what do the messages cost?
//
// On one host they cost least with mpivrun --ranks-per-process 4.
//
// It shows a farm of workers with bounded queues: a block goes to the first rank
// that asks for one, so a slow rank holds up no other, and nothing grows without
// end. Read ranks.go for that. With mpivrun --spares its ranks outlive their
// processes: survive.go. The three roles (reader.go, compressor.go,
// writer.go) do not know whether messages or the channels of local.go connect
// them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/mpiv/mpiv/mpiv"
)

func main() { mpiv.Main(run) }

// run is one rank of the program. Every rank has the same arguments.
func run(ctx context.Context, world *mpiv.Comm) error {
	// An interrupt ends all calls that wait, so that no half-written file stays.
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Ignore(syscall.SIGPIPE) // a closed pipe is an error to report, like any other

	opt, err := parseOptions(os.Args[1:])
	switch {
	case err != nil && world.Rank() != 0:
		return nil // rank 0 says it
	case errors.Is(err, flag.ErrHelp):
		_, err = fmt.Print(usage)
		return err
	case err != nil:
		return &mpiv.ExitError{Code: 2, Err: fmt.Errorf("%w (compress --help says what there is)", err)}
	case opt.compare:
		return compare(ctx, world, opt)
	}
	opt.state = world.State()
	sum, err := compress(ctx, world, opt)
	if errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	if err != nil || sum == nil {
		return err
	}
	return sum.print(opt)
}

// compress takes part in the whole job as one rank of world. The summary is nil
// on all ranks but the one that writes.
func compress(ctx context.Context, world *mpiv.Comm, opt options) (*summary, error) {
	if world.Size() == 1 || opt.baseline > 0 {
		if world.Rank() != 0 {
			return nil, nil
		}
		return compressHere(ctx, opt)
	}
	l := layoutFor(world.Size())
	if l.compresses(l.reader) {
		opt.state = nil // a rank of two roles has no moment at which both are between two messages
	}
	var sum *summary
	var roles []role
	if world.Rank() == l.reader {
		roles = append(roles, func(ctx context.Context) error { return read(ctx, opt, newRankReader(world, l, opt)) })
	}
	if l.compresses(world.Rank()) {
		roles = append(roles, func(ctx context.Context) error {
			return compressBlocks(ctx, opt, world.Rank(), newRankCompressor(world, l, opt))
		})
	}
	if world.Rank() == l.writer {
		roles = append(roles, func(ctx context.Context) (err error) {
			sum, err = write(ctx, opt, newRankWriter(world, l, opt))
			return err
		})
	}
	err := together(ctx, roles...)
	return sum, err
}

// compressHere does the whole job in this process, without messages.
func compressHere(ctx context.Context, opt options) (*summary, error) {
	var sum *summary
	if opt.baseline == 0 {
		opt.baseline = runtime.GOMAXPROCS(0)
	}
	l := newLocal(opt)
	roles := []role{
		func(ctx context.Context) error { return read(ctx, opt, &localReader{local: l}) },
		func(ctx context.Context) (err error) { sum, err = write(ctx, opt, &localWriter{l}); return err },
	}
	for i := range l.compressors {
		roles = append(roles, func(ctx context.Context) error {
			return compressBlocks(ctx, opt, i, &localCompressor{local: l})
		})
	}
	err := together(ctx, roles...)
	return sum, err
}
