//go:build linux

// Mpivtrials tries what mpiv promises, in a lab of several hosts on this machine:
// that messages survive cut networks, that strangers disturb no job, that a shaped
// link is used to the full; and, on this machine itself, that ranks outlive their
// processes.
//
//	mpivtrials [options] failover|cuts|strangers|shaped|survive|all
//
// Each trial prints a line per claim (what was measured, the bar, whether it was
// kept) and leaves NAME.csv and NAME.svg in -out. The exit code is 0 when all bars
// were kept, 1 when one was missed or a trial could not be done.
//
// It needs mpivrun beside it, what chaos/lab needs, and, for shaped, mpivbench and
// iperf3. See docs/experiments/trials.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A trial is one experiment. run reports what it measured with desk.claim; its
// error says why it could not be done.
type trial struct {
	name, about string
	run         func(ctx context.Context, d *desk) error
}

var trials = []trial{
	{"failover", "the network under a 64 MB message goes, beside a stream of small ones", failover},
	{"cuts", "random cuts of random networks under a load that is compared byte by byte", cuts},
	{"strangers", "floods of those who do not belong to the job", strangers},
	{"shaped", "how much of a 100 Mbit/s link each transport uses", shaped},
	{"survive", "random kills, moves and stops of the processes of a job, whose output must not change", survive},
}

// roles are what this program is when the trials start it again, by its first
// argument.
var roles = map[string]func(args []string) error{
	roleFailover:  failoverRank,
	roleCuts:      cutsRank,
	roleStrangers: strangersRank,
	roleAttack:    attack,
	roleSink:      sink,
}

// options is the command line.
type options struct {
	trials []trial
	out    string        // directory
	bin    string        // directory of mpivrun and mpivbench
	rounds int           // of failover and shaped
	long   time.Duration // cuts
	seed   uint64
	only   []string // attacks
	cores  float64  // of who attacks
	among  bool     // they are on a host of the job

	kills     int    // survive: of processes that have a rank
	transport string // survive: over which its jobs talk
	program   string // survive: what they run
}

func main() {
	if len(os.Args) > 1 {
		if role := roles[os.Args[1]]; role != nil {
			if err := role(os.Args[2:]); err != nil {
				fmt.Fprintf(os.Stderr, "mpivtrials: %s: %v\n", os.Args[1], err)
				os.Exit(1)
			}
			return
		}
	}
	if err := lab.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "mpivtrials:", err)
		os.Exit(1)
	}
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mpivtrials:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	kept, err := o.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mpivtrials:", err)
	}
	if err != nil || !kept {
		os.Exit(1)
	}
}

func parseOptions(args []string) (o options, err error) {
	set := flag.NewFlagSet("mpivtrials", flag.ContinueOnError)
	set.Usage = func() {
		fmt.Fprintln(set.Output(), "usage: mpivtrials [options] TRIAL…, or all")
		for _, t := range trials {
			fmt.Fprintf(set.Output(), "  %-10s %s\n", t.name, t.about)
		}
		set.PrintDefaults()
	}
	set.StringVar(&o.out, "out", "out/trials", "`directory` for CSV files and plots")
	set.StringVar(&o.bin, "bin", "", "`directory` of mpivrun, mpivbench and the examples (default: where mpivtrials is)")
	set.IntVar(&o.rounds, "rounds", 6, "rounds of failover and of shaped")
	set.DurationVar(&o.long, "for", 30*time.Second, "how long cuts goes on")
	set.Uint64Var(&o.seed, "seed", 1, "of what cuts and survive do")
	set.Float64Var(&o.cores, "attacker", 1, "`cores` that the strangers may use")
	set.BoolVar(&o.among, "among", false, "have the strangers on a host of the job, which nothing is held against")
	set.IntVar(&o.kills, "kills", 20, "how many processes with a rank survive kills")
	set.StringVar(&o.transport, "transport", "shm", "over which the jobs of survive talk: shm, tcp or quic")
	set.StringVar(&o.program, "program", "heat2d", "what survive runs: "+strings.Join(slices.Sorted(maps.Keys(survivors)), ", "))
	attacks := set.String("attacks", strings.Join(attackNames(), ","), "what the strangers do")
	if err := set.Parse(args); err != nil {
		return o, err
	}
	o.only = strings.Split(*attacks, ",")
	for _, a := range o.only {
		if !slices.Contains(attackNames(), a) {
			return o, fmt.Errorf("no attack is called %q; there are %s", a, strings.Join(attackNames(), ", "))
		}
	}
	if o.cores <= 0 {
		return o, errors.New("-attacker must be above zero")
	}
	if o.rounds < 1 || o.long <= 0 {
		return o, errors.New("-rounds and -for must be above zero")
	}
	if o.kills < 1 {
		return o, errors.New("-kills must be above zero")
	}
	if !slices.Contains([]string{"shm", "tcp", "quic"}, o.transport) {
		return o, fmt.Errorf("survive knows no transport %q; there are shm, tcp and quic", o.transport)
	}
	if survivors[o.program] == nil {
		return o, fmt.Errorf("survive knows no program %q; there is %s", o.program, strings.Join(slices.Sorted(maps.Keys(survivors)), ", "))
	}
	if o.bin == "" {
		self, err := os.Executable()
		if err != nil {
			return o, err
		}
		o.bin = filepath.Dir(self)
	}
	if set.NArg() == 0 {
		return o, errors.New("which trial? mpivtrials -h lists them")
	}
	for _, name := range set.Args() {
		if name == "all" {
			o.trials = trials
			break
		}
		i := slices.IndexFunc(trials, func(t trial) bool { return t.name == name })
		if i < 0 {
			return o, fmt.Errorf("no trial is called %q (options come before the trial; mpivtrials -h lists both)", name)
		}
		o.trials = append(o.trials, trials[i])
	}
	return o, nil
}

// run does the trials one after the other, and tells whether all bars were kept.
func (o options) run(ctx context.Context) (kept bool, err error) {
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	self, err := os.Executable()
	if err != nil {
		return false, err
	}
	kept = true
	var errs []error
	for _, t := range o.trials {
		d := &desk{options: o, trial: t.name, self: self, kept: true}
		if err := t.run(ctx, d); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
		}
		kept = kept && d.kept
		if ctx.Err() != nil {
			break
		}
	}
	return kept, errors.Join(errs...)
}

// A desk is what a trial works with.
type desk struct {
	options
	trial string
	self  string // this program
	kept  bool   // all bars so far
}

func (d *desk) claim(c claim) {
	fmt.Printf("%s: %s\n", d.trial, c)
	d.kept = d.kept && c.kept()
}

// note prints what has no bar.
func (d *desk) note(format string, args ...any) {
	fmt.Printf("%s: %s\n", d.trial, fmt.Sprintf(format, args...))
}

// file is the path of one of the trial's results.
func (d *desk) file(suffix string) string { return filepath.Join(d.out, d.trial+suffix) }
