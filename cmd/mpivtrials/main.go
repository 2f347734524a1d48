//go:build linux

// Mpivtrials tries what mpiv promises, in a lab of several hosts on this machine:
// that messages survive cut networks, that strangers disturb no job, that a shaped
// link is used to the full; and, on this machine itself, that ranks outlive their
// processes.
//
//	mpivtrials [options] failover|cuts|strangers|shaped|survive|all
//	mpivtrials [options] M1|…|M11|experiments
//
// Each trial prints a line per claim (what was measured, the bar, whether it was
// kept) and leaves NAME.csv and NAME.svg in -out, and all claims in claims.md. The exit code is 0 when all bars
// were kept, 1 when one was missed or a trial could not be done.
//
// It needs mpivrun beside it, what chaos/lab needs, and, for shaped, mpivbench and
// iperf3. See docs/experiments/trials.md and migration.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
	"github.com/mpiv/mpiv/internal/spelling"
)

// A trial is one experiment. run reports what it measured with desk.claim; its
// error says why it could not be done.
type trial struct {
	name, about string
	run         func(ctx context.Context, d *desk) error
	experiment  bool // of docs/experiments/migration.md
}

var trials = []trial{
	{name: "failover", about: "the network under a 64 MB message goes, beside a stream of small ones", run: failover},
	{name: "cuts", about: "random cuts of random networks under a load that is compared byte by byte", run: cuts},
	{name: "strangers", about: "floods of those who do not belong to the job", run: strangers},
	{name: "shaped", about: "how much of a 100 Mbit/s link each transport uses", run: shaped},
	{name: "survive", about: "random kills, moves and stops of the processes of a job, whose output must not change", run: survive},
	{"m1", "a large file is copied to a host: undisturbed, without migration, with it, and by an oracle", m1, true},
	{"m2", "a host is flooded: undisturbed, without and with migration", m2, true},
	{"m3", "over Ethernet and SAN a flooded host's task goes to where the last one is: messages over time", m3, true},
	{"m4", "what sensors and readiness cost when nothing happens", m4, true},
	{"m5", "the SAN goes in the middle of a message, and comes back", m5, true},
	{"m6", "the leader is lost while a rank moves, and mpivrun with it", m6, true},
	{"m7", "a process or a host falls silent, and comes back", m7, true},
	{"m8", "random kills of ranks and of whole hosts, whose output must not change", m8, true},
	{"m9", "a program that changes its pace, and nothing else: no rank may move", m9, true},
	{"m10", "three of four hosts become slow, one after the other or all at once", m10, true},
	{"m11", "how long live moves take, by the size of the state", m11, true},
}

// roles are what this program is when the trials start it again, by its first
// argument.
var roles = map[string]func(args []string) error{
	roleFailover:  failoverRank,
	roleCuts:      cutsRank,
	roleStrangers: strangersRank,
	roleAttack:    attack,
	roleSink:      sink,
	rolePhases:    phasesRank,
	roleSteps:     stepsRank,
	rolePipeline:  pipelineRank,
}

// options is the command line.
type options struct {
	trials []trial
	out    string        // directory
	bin    string        // directory of mpivrun and mpivbench
	rounds int           // 0: what each trial has by itself
	long   time.Duration // 0: what each trial has by itself
	seed   uint64
	only   []string // attacks
	cores  float64  // of who attacks
	among  bool     // they are on a host of the job

	short   bool     // of experiments
	untimed bool     // claims that hang on the machine's speed are told, not judged
	copies  []string // m1: from, to
	piece   int      // m3: bytes of a message
	percent []int    // m1 and m2: how compressible the data is
	with    string   // m2 and m3: who floods, and who is flooded

	queue      int    // bytes that wait at each end of a cable, of experiments; 0: as the lab has
	congestion string // control, of TCP on the hosts of experiments; empty: this machine's

	kills     int    // survive: of processes that have a rank
	transport string // over which jobs talk; empty: what is usual there
	lab       bool   // survive: over hosts of a lab
	outlive   bool   // survive: and the leader can be lost, too
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
	unable := lab.Enter()
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mpivtrials:", err)
		os.Exit(2)
	}
	if unable != nil {
		fmt.Fprintln(os.Stderr, "mpivtrials:", unable)
		os.Exit(1)
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
	set.SetOutput(io.Discard) // the error is returned, too
	set.Usage = func() {
		fmt.Fprintln(set.Output(), "usage: mpivtrials [options] TRIAL…, or all, or experiments")
		for _, t := range trials {
			fmt.Fprintf(set.Output(), "  %-10s %s\n", t.name, t.about)
		}
		set.PrintDefaults()
	}
	set.StringVar(&o.out, "out", "out/trials", "`directory` for CSV files and plots")
	set.StringVar(&o.bin, "bin", "", "`directory` of mpivrun, mpivbench and the examples (default: where mpivtrials is)")
	set.IntVar(&o.rounds, "rounds", 0, "`how often` what has rounds is done (default: 6 of failover and shaped, fewer of experiments)")
	set.BoolVar(&o.short, "short", false, "a short form of experiments")
	set.BoolVar(&o.untimed, "untimed", false, "judge no figure that hangs on how fast this machine is, and leave out what only such figures need")
	set.DurationVar(&o.long, "for", 0, "`how long` what lasts goes on (default: 30s of cuts)")
	set.Uint64Var(&o.seed, "seed", 1, "of what cuts and survive do")
	set.Float64Var(&o.cores, "attacker", 1, "`cores` that the strangers may use")
	set.BoolVar(&o.among, "among", false, "have the strangers on a host of the job, which nothing is held against")
	set.IntVar(&o.kills, "kills", 20, "how many processes with a rank survive kills")
	set.StringVar(&o.transport, "transport", "", "over which the jobs of survive and of experiments talk: shm, tcp or quic (default: shm; between hosts tcp)")
	set.BoolVar(&o.lab, "lab", false, "survive: over hosts of a lab, which are lost and cut off, too")
	set.BoolVar(&o.outlive, "outlive", false, "survive: in a lab, with jobs that outlive the agent that leads them")
	set.StringVar(&o.program, "program", "heat2d", "what survive runs: "+strings.Join(slices.Sorted(maps.Keys(survivors)), ", "))
	set.IntVar(&o.piece, "piece", 512<<10, "`bytes` of a message of m3")
	copies := set.String("copy", "from,to", "m1: copies `from` the host, to it, or both")
	percent := set.String("compressibility", "0,60", "`percent` that compression saves of the data of m1 and m2")
	set.IntVar(&o.queue, "queue", 0, "`bytes` that wait at each end of a cable in the lab of experiments (default: 1500000, a thousand full frames)")
	set.StringVar(&o.congestion, "congestion", "", "congestion `control` of TCP on the hosts of experiments, such as reno (default: this machine's)")
	set.StringVar(&o.with, "with", "mpivlab", "m2 and m3: what floods: mpivlab itself, or apache, whose ab asks it")
	attacks := set.String("attacks", strings.Join(attackNames(), ","), "what the strangers do")
	if err := set.Parse(args); errors.Is(err, flag.ErrHelp) {
		set.SetOutput(os.Stdout)
		set.Usage()
		return o, err
	} else if err != nil {
		return o, fmt.Errorf("%w; mpivtrials -h shows the options", err)
	}
	o.only = strings.Split(*attacks, ",")
	for _, a := range o.only {
		if !slices.Contains(attackNames(), a) {
			return o, fmt.Errorf("no attack is called %q; there are %s", a, strings.Join(attackNames(), ", "))
		}
	}
	if !(o.cores > 0) || math.IsInf(o.cores, 0) { // it may be no number
		return o, errors.New("-attacker must be a number above zero")
	}
	given := map[string]bool{}
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if given["rounds"] && o.rounds < 1 || given["for"] && o.long <= 0 {
		return o, errors.New("-rounds and -for must be above zero")
	}
	if o.queue < 0 {
		return o, fmt.Errorf("-queue %d: want a number of bytes, or 0 for that of the lab", o.queue)
	}
	if o.piece < 1 || o.piece > 1<<26 {
		return o, fmt.Errorf("-piece %d: want 1 to %d bytes", o.piece, 1<<26)
	}
	o.copies = strings.Split(*copies, ",")
	for _, c := range o.copies {
		if c != "from" && c != "to" {
			return o, fmt.Errorf("-copy %s: there are from, to, and from,to", *copies)
		}
	}
	for _, text := range strings.Split(*percent, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 100 {
			return o, fmt.Errorf("-compressibility %s: %q is no number from 0 to 100", *percent, text)
		}
		o.percent = append(o.percent, n)
	}
	if o.with != "mpivlab" && o.with != "apache" {
		return o, fmt.Errorf("-with %s: there are mpivlab and apache", o.with)
	}
	if o.kills < 1 {
		return o, errors.New("-kills must be above zero")
	}
	if o.outlive && !o.lab {
		return o, errors.New("-outlive is for survive over several hosts: it needs -lab")
	}
	if o.lab && o.transport == "shm" {
		return o, errors.New("-transport shm: hosts of a lab talk over tcp or quic")
	}
	if !slices.Contains([]string{"", "shm", "tcp", "quic"}, o.transport) {
		return o, fmt.Errorf("-transport %s: there are shm, tcp and quic", o.transport)
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
	for _, given := range set.Args() {
		name := strings.ToLower(given) // M2 is m2
		if name == "all" || name == "experiments" {
			for _, t := range trials {
				if t.experiment == (name == "experiments") {
					o.trials = append(o.trials, t)
				}
			}
			continue
		}
		i := slices.IndexFunc(trials, func(t trial) bool { return t.name == name })
		if i < 0 {
			if nearest := spelling.Nearest(name, trialNames()...); nearest != "" {
				return o, fmt.Errorf("no trial is called %q; did you mean %s?", given, nearest)
			}
			return o, fmt.Errorf("no trial is called %q (options come before the trial; mpivtrials -h lists both)", given)
		}
		o.trials = append(o.trials, trials[i])
	}
	return o, nil
}

// trialNames is what trials are called that have names rather than numbers.
func trialNames() []string {
	names := []string{"all", "experiments"}
	for _, t := range trials {
		if !t.experiment {
			names = append(names, t.name)
		}
	}
	return names
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
	defer func() { err = errors.Join(err, o.gather()) }()
	for _, t := range o.trials {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, context.Cause(ctx)))
			continue
		}
		d := &desk{options: o, trial: t.name, about: t.about, self: self, kept: true}
		if err := t.run(ctx, d); o.untimed && errors.Is(err, lab.ErrUnavailable) {
			d.note("skipped: %v", err)
		} else if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", t.name, err))
			d.note("not done: %v", err)
		}
		if err := d.writeClaims(); err != nil {
			errs = append(errs, err)
		}
		kept = kept && d.kept
	}
	return kept, errors.Join(errs...)
}

// A desk is what a trial works with.
type desk struct {
	options
	trial string
	about string // it
	part  string // of the trial, in the names of its results
	self  string // this program
	kept  bool   // all bars so far

	claims []claim  // so far
	notes  []string // that have no bar
}

// times is how often something is done: as was asked for, or by itself.
func (d *desk) times(byItself int) int {
	if d.rounds > 0 {
		return d.rounds
	}
	return byItself
}

// lasts is how long something goes on: as was asked for, or by itself.
func (d *desk) lasts(byItself time.Duration) time.Duration {
	if d.long > 0 {
		return d.long
	}
	return byItself
}

func (d *desk) claim(c claim) {
	c.unjudged = d.untimed && c.pace && !math.IsNaN(c.measured) && !math.IsInf(c.measured, 0) // it must have come about
	fmt.Printf("%s: %s\n", d.trial, c)
	d.kept = d.kept && c.verdict() != verdictMissed
	d.claims = append(d.claims, c)
}

// note prints what has no bar.
func (d *desk) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	fmt.Printf("%s: %s\n", d.trial, text)
	d.notes = append(d.notes, text)
}

// file is the path of one of the trial's results.
func (d *desk) file(suffix string) string { return filepath.Join(d.out, d.trial+d.part+suffix) }
