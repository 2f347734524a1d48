// Mpivpeers measures mpiv beside Open MPI and MPICH on this machine.
//
// It compiles bench/peers/osu.c for each peer, then runs the same tests with
// all contenders in turns (mpiv, Open MPI, MPICH, mpiv, …), so that what
// disturbs one is likely to disturb the others too. It leaves, in -out,
//
//	peers.csv   every figure of every run
//	peers.md    tables of medians and ratios, and how each bar came out
//	peers-*.svg a plot of each table
//
// and prints the bars. A bar that is missed is a result, not an error: the exit
// code is 0. It is 1 when the work could not be done, and when a run failed.
//
// docs/experiments/peers.md tells how to read the result and how the peers are
// configured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options is the command line.
type options struct {
	choices
	rounds     int
	mpiv       string
	against    []string
	congestion string
	out        string
	source     string
	timeout    time.Duration
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == streamWord {
		if err := runStream(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "mpivpeers:", err)
			os.Exit(1)
		}
		return
	}
	o, err := parseOptions(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mpivpeers:", err)
		os.Exit(2)
	}
	if o.congestion != "" && !inside() {
		code, err := rerunInside()
		if err != nil {
			fmt.Fprintln(os.Stderr, "mpivpeers:", err)
			code = 1
		}
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = o.run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mpivpeers:", err)
		os.Exit(1)
	}
}

func parseOptions(args []string) (options, error) {
	o := options{choices: choices{cores: runtime.NumCPU()}}
	f := flag.NewFlagSet("mpivpeers", flag.ContinueOnError)
	names := f.String("tests", "", "tests to run, with commas between them; empty: all of "+strings.Join(testNames(), ","))
	sizes := f.String("sizes", "", "message sizes, as in 8,1K,4M; empty: each test's own")
	ranks := f.String("ranks", "", "numbers of ranks for collectives, mbw_mr and init, as in 2,4; empty: 2,4,8,16, for mbw_mr 2, for init 4")
	transports := f.String("transports", "", "shm, tcp or both, or lan, between two hosts of a lab; empty: shm and tcp between two ranks, shm for collectives and init")
	f.BoolVar(&o.quick, "quick", false, "a smoke test: few sizes, ranks, iterations, and 2 rounds")
	f.IntVar(&o.rounds, "rounds", 0, "rounds to take medians over; 0: 5, with -quick 2")
	f.StringVar(&o.mpiv, "mpiv", "bin/mpivrun -n {n} {placement} --transport {transport} bin/mpivbench {test} {flags}",
		"how to launch our side; empty: leave it out")
	against := f.String("against", "openmpi,mpich", "peers to compare with")
	f.StringVar(&o.congestion, "congestion", "", "run all in a network namespace with this TCP congestion control, such as reno; empty: in the host's network with the host's")
	f.StringVar(&o.out, "out", filepath.Join("out", "bench"), "directory for the programs and the results")
	f.StringVar(&o.source, "source", filepath.Join("bench", "peers", "osu.c"), "the peers' test program")
	f.DurationVar(&o.timeout, "timeout", 3*time.Minute, "longest time of one run")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	if f.NArg() > 0 {
		return o, fmt.Errorf("%q is not an option", f.Arg(0))
	}
	var err error
	if o.sizes, err = parseSizes(*sizes); err != nil {
		return o, fmt.Errorf("-sizes: %w", err)
	}
	if o.ranks, err = parseRanks(*ranks); err != nil {
		return o, fmt.Errorf("-ranks: %w", err)
	}
	o.tests, o.transports, o.against = splitList(*names), splitList(*transports), splitList(*against)
	for _, t := range o.transports {
		if t != "shm" && t != "tcp" && t != lan {
			return o, fmt.Errorf("-transports: %q is neither shm nor tcp nor lan", t)
		}
		if t == lan && len(o.transports) > 1 {
			return o, errors.New("-transports: lan is for two hosts, and goes alone")
		}
	}
	for _, peer := range o.against {
		if peerNeeds[peer] == nil {
			return o, fmt.Errorf("-against: %q is neither openmpi nor mpich", peer)
		}
	}
	if o.mpiv = strings.TrimSpace(o.mpiv); o.mpiv == "" && len(o.against) == 0 {
		return o, errors.New("nobody to run: -mpiv and -against are empty")
	}
	if o.rounds == 0 {
		o.rounds = 5
		if o.quick {
			o.rounds = 2
		}
	}
	if o.rounds < 0 {
		return o, fmt.Errorf("-rounds: %d is below 1", o.rounds)
	}
	_, err = o.settings()
	return o, err
}

// run does all that the command is for. When ctx ends it writes what it has.
func (o options) run(ctx context.Context, out io.Writer) error {
	settings, err := o.settings()
	if err != nil {
		return err
	}
	if o.congestion != "" {
		if err := prepareInside(o.congestion); err != nil {
			return err
		}
	}
	congestion, err := congestionControl()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o777); err != nil {
		return err
	}
	contenders, err := o.contenders()
	if err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(o.out, "peers.csv"))
	if err != nil {
		return err
	}
	defer file.Close()
	runner := runner{timeout: o.timeout, alone: o.congestion != "", distance: measureDistance}
	loadBefore := load()
	records, err := race(ctx, runner, contenders, settings, o.rounds, newCSV(file, congestion), os.Stderr)
	if err != nil {
		return err
	}
	h := heading{
		command: commandLine(os.Args[1:]), machine: machine(), load: loadBefore, versions: versions(o.against),
		congestion: congestion, rounds: o.rounds, names: map[string]string{}, ours: "mpiv",
	}
	for _, c := range contenders {
		h.names[c.id] = c.name
	}
	tellApart(records)
	if err := o.publish(h, records, out); err != nil {
		return err
	}
	failed := 0
	for _, r := range records {
		if r.err != nil {
			failed++
		}
	}
	switch {
	case ctx.Err() != nil:
		return errors.New("interrupted; what had been measured is in " + o.out)
	case failed > 0:
		return fmt.Errorf("%d of %d runs failed; see %s", failed, len(records), filepath.Join(o.out, "peers.md"))
	}
	return nil
}

// contenders returns who runs, in order; the peers are compiled first.
func (o options) contenders() ([]contender, error) {
	if err := missing(o.against, exec.LookPath); err != nil {
		return nil, err
	}
	if slices.Equal(o.transports, []string{lan}) {
		return o.contendersLAN()
	}
	var all []contender
	if o.mpiv != "" {
		if program := strings.Fields(o.mpiv)[0]; !runnable(program) {
			return nil, fmt.Errorf("%s is not there to run: build it with make, or leave mpiv out with -mpiv ''", program)
		}
		all = append(all, mpiv(o.mpiv, o.cores))
	}
	makers := map[string]func(string, int) contender{"openmpi": openMPI, "mpich": mpich}
	for _, peer := range o.against {
		program, err := build(peer, o.source, o.out)
		if err != nil {
			return nil, err
		}
		all = append(all, makers[peer](program, o.cores))
	}
	return all, nil
}

func runnable(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// race runs every setting, rounds times, with all contenders in turns. A run
// that fails is recorded and the race goes on; it ends early with ctx.
func race(ctx context.Context, r runner, contenders []contender, settings []setting, rounds int, csv *csvWriter, progress io.Writer) ([]record, error) {
	var records []record
	for _, s := range settings {
		fmt.Fprintf(progress, "%s:", s)
		for round := 1; round <= rounds; round++ {
			for _, c := range contenders {
				if len(c.only) > 0 && !slices.Contains(c.only, s.name) {
					continue
				}
				o := r.run(ctx, c, s)
				if ctx.Err() != nil {
					fmt.Fprintln(progress)
					return records, nil // this run was cut off: it says nothing
				}
				fmt.Fprintf(progress, " %s %.1fs", c.id, o.wall.Seconds())
				if o.err != nil {
					fmt.Fprintf(progress, "\n%v\n", o.err)
				}
				record := record{s, round, c.id, o}
				records = append(records, record)
				if err := csv.add(record); err != nil {
					return nil, err
				}
			}
		}
		fmt.Fprintln(progress)
	}
	return records, nil
}

// publish draws the plots, writes the page and prints the bars.
func (o options) publish(h heading, records []record, out io.Writer) error {
	enough, left := toCompare(records, o.rounds)
	h.left = left
	tables := tabulate(enough, contestants(records), h.ours)
	plots := map[string]string{}
	for _, t := range tables {
		drawn, err := writePlot(o.out, t, h.names)
		if err != nil {
			return err
		}
		if drawn {
			plots[t.plotName()] = t.plotName()
		}
	}
	page, err := os.Create(filepath.Join(o.out, "peers.md"))
	if err != nil {
		return err
	}
	err = writeReport(page, h, tables, records, plots)
	if err := errors.Join(err, page.Close()); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", page.Name())
	if h.names[h.ours] != "" {
		for _, v := range verdicts(tables, h.ours) {
			fmt.Fprintln(out, v)
		}
	}
	return nil
}

// commandLine writes the command so that a shell would read it back.
func commandLine(args []string) string {
	line := "mpivpeers"
	for _, arg := range args {
		if arg == "" || strings.ContainsAny(arg, " {}") {
			arg = "'" + arg + "'"
		}
		line += " " + arg
	}
	return line
}

// machine says where the figures were made.
func machine() string {
	model := "processor of unknown model"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d × %s, Linux %s", runtime.NumCPU(), model, strings.TrimSpace(string(kernel)))
}

// load is the load average of the last minute. Well above 0 before a race means
// that somebody else needs the cores too.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

// versions asks the peers what they are: the first line of each that says so.
func versions(peers []string) []string {
	ask := map[string][]string{"openmpi": {"mpirun.openmpi", "--version"}, "mpich": {"mpichversion"}}
	var all []string
	for _, peer := range peers {
		out, err := exec.Command(ask[peer][0], ask[peer][1:]...).Output()
		if err != nil || len(out) == 0 {
			all = append(all, peer+": version unknown")
			continue
		}
		lines := slices.Collect(strings.Lines(string(out)))
		line := strings.Join(strings.Fields(lines[0]), " ")
		if peer == "mpich" && len(lines) > 2 {
			line += ", " + strings.Join(strings.Fields(lines[2]), " ") // the device: ch4:ucx or ch4:ofi
		}
		all = append(all, line)
	}
	return all
}
