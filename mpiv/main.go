package mpiv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/mpiv/mpiv/internal/process"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// Main runs the ranks of this process and exits. It is what a program's main
// calls, and the same program is started as every process of a job by mpivrun.
// Without mpivrun it is a world of one rank.
//
// GOMAXPROCS, unless the environment has set it, or the program another before, becomes the process's part of its
// host's cores, and at least one more than it has ranks.
//
// The exit status is 0 when run has returned nil on all ranks, that of an
// *ExitError, and 1 after any other error or panic, which ends the whole job.
//
// Shared memory, TCP and QUIC are in every program. One that is to run over other
// networks hands them in, such as libp2p.Network(). All processes must hand in the same.
func Main(run func(ctx context.Context, world *Comm) error, networks ...transport.Network) {
	os.Exit(mainOf(run, networks))
}

func mainOf(run func(ctx context.Context, world *Comm) error, networks []transport.Network) int {
	if !process.Launched() {
		if err := Run(context.Background(), 1, Options{}, run); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
			return exitCode(err)
		}
		return 0
	}
	p, err := process.Join(describeCheck, networks...)
	if errors.Is(err, process.ErrStopped) {
		return 1 // the agent says why
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: join the job: %v\n", filepath.Base(os.Args[0]), err)
		return 1
	}
	ctx, stop := context.WithCancelCause(context.Background())
	defer stop(nil)
	disarm := context.AfterFunc(ctx, func() {
		// The job has failed. Ranks that do not notice have this long.
		time.AfterFunc(time.Second, func() { os.Exit(1) })
	})
	// A process that has finished may take longer to exit, as it does with the race detector.
	defer disarm()
	go func() { // ends with the process
		<-p.Stopped()
		if err := p.Err(); err != nil {
			stop(err)
		}
	}()
	err = runRanks(ctx, p.Lives(), Options{Check: p.Check()}, run, func(r topology.Rank, err error, told bool) {
		p.Ended(r, err, exitCode(err), told)
	})
	if left := p.Leave(); err == nil {
		err = left
	}
	return exitCode(err)
}

// An ExitError is an error with the exit status that the job shall have.
type ExitError struct {
	Code int   // 1 … 255; any other is 1
	Err  error // why; nil: there is no more to say
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit with status %d", e.status())
	}
	return fmt.Sprintf("exit with status %d: %v", e.status(), e.Err)
}

func (e *ExitError) Unwrap() error { return e.Err }

func (e *ExitError) status() int {
	if e.Code < 1 || e.Code > 255 {
		return 1
	}
	return e.Code
}

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	if ee, ok := errors.AsType[*ExitError](err); ok {
		return ee.status()
	}
	return 1
}
