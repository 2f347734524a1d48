package main

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/spelling"
	"github.com/mpiv/mpiv/sensors"
)

// A run is the run form of the command line: mpivrun [options] program [args].
// It is what was written, with nothing looked up yet.
type run struct {
	Programs []program

	RanksPerProcess int
	Tag, Timestamp  bool
	Output          string
	Events          string
	Trace           string
	Metrics         string
	Targets         string
	Ganglia         string
	Timeout         time.Duration
	Oversubscribe   bool
	Hosts           []host
	Hostfile        string
	PerNode         int
	MapBy           string
	LaunchAgent     []string
	LaunchTimeout   time.Duration
	Mpivrun         string
	Insecure        bool
	Bind            string
	Survive         string
	Spares          int
	SpareMemory     int
	Outlive         bool
	Snapshot        time.Duration
	Contracts       string
	ContractsFile   string
	Thresholds      []sensors.Threshold
	Silence         time.Duration
	Grace           time.Duration
	Transports      []string
	LogBytes        int
	LogDisk         int
	Check           bool
	Chaos           chaos.Schedule
	ChaosHistory    string
	Deadlock        string
	Stdin           string // "none" or a rank; empty means 0
	Quiet, Verbose  bool
}

// A program is one part of the command line between colons.
type program struct {
	Ranks int // 0 means: not said
	Dir   string
	Env   []string // "VAR" or "VAR=value", as given with -x
	Words []string // the program and its arguments
}

// An option is one that the run form knows.
type option struct {
	names []string // the first is what messages call it
	value string   // what it takes, for help; empty: nothing
	local bool     // belongs to one program; otherwise to the job
	help  string
	set   func(r *run, p *program, value string) error
}

// options is every option of the run form, in the order of help.
var options = []option{
	{names: []string{"n", "np", "c"}, value: "N", local: true, help: "number of ranks (default: slots where they are given, else the number of cores)",
		set: func(_ *run, p *program, v string) (err error) {
			p.Ranks, err = number(v, 1, maxRanks)
			return err
		}},
	{names: []string{"ranks-per-process"}, value: "K", help: "ranks that share a process, as goroutines (default 1)",
		set: func(r *run, _ *program, v string) (err error) {
			r.RanksPerProcess, err = number(v, 1, maxRanks)
			return err
		}},
	{names: []string{"wdir", "wd"}, value: "DIR", local: true, help: "working directory of the program",
		set: func(_ *run, p *program, v string) error { return text(&p.Dir, v) }},
	{names: []string{"x"}, value: "VAR[=VALUE]", local: true, help: "set a variable of the program's environment, or name one to hand on",
		set: func(_ *run, p *program, v string) error {
			if name, _, _ := strings.Cut(v, "="); name == "" {
				return errors.New("the variable has no name")
			}
			if strings.ContainsRune(v, 0) {
				return errors.New("a variable cannot contain a zero byte")
			}
			p.Env = append(p.Env, v)
			return nil
		}},
	{names: []string{"host", "H"}, value: "HOST[:N],…", help: "where to run, with slots for processes",
		set: func(r *run, _ *program, v string) error {
			hosts, err := parseHosts(v)
			r.Hosts = append(r.Hosts, hosts...)
			return err
		}},
	{names: []string{"hostfile", "machinefile"}, value: "FILE", help: "the same, a line each: HOST slots=N, and labels (see docs/mpivrun.md)",
		set: func(r *run, _ *program, v string) error { return text(&r.Hostfile, v) }},
	{names: []string{"oversubscribe"}, help: "allow more processes than slots",
		set: func(r *run, _ *program, _ string) error { r.Oversubscribe = true; return nil }},
	{names: []string{"ppn", "npernode", "N"}, value: "N", help: "slots of every host",
		set: func(r *run, _ *program, v string) (err error) {
			r.PerNode, err = number(v, 1, maxSlots)
			return err
		}},
	{names: []string{"map-by"}, value: "slot|node", help: "fill one host after the other, or deal out to all in turn (default slot)",
		set: func(r *run, _ *program, v string) error { return oneOf(&r.MapBy, v, "slot", "node") }},
	{names: []string{"launch-agent"}, value: "COMMAND", help: "runs a command on a host, given the host and the command (default ssh, or srun within Slurm)",
		set: func(r *run, _ *program, v string) error {
			if r.LaunchAgent = strings.Fields(v); len(r.LaunchAgent) == 0 {
				return errors.New("the command is empty")
			}
			return nil
		}},
	{names: []string{"launch-timeout"}, value: "SECONDS", help: "how long all hosts together may take to start (default 60)",
		set: func(r *run, _ *program, v string) (err error) {
			r.LaunchTimeout, err = seconds(v)
			return err
		}},
	{names: []string{"mpivrun"}, value: "PATH", help: "where mpivrun is on the other hosts (default: where it is here)",
		set: func(r *run, _ *program, v string) error { return text(&r.Mpivrun, v) }},
	{names: []string{"insecure"}, help: "processes of different hosts neither encrypt nor ask who the other is",
		set: func(r *run, _ *program, _ string) error { r.Insecure = true; return nil }},
	{names: []string{"bind-to"}, value: "none|core", help: "core: as many cores for each process as it has ranks (default none)",
		set: func(r *run, _ *program, v string) error { return oneOf(&r.Bind, v, "none", "core") }},
	{names: []string{"tag-output"}, help: "begin each line with [rank]<stdout|stderr>:",
		set: func(r *run, _ *program, _ string) error { r.Tag = true; return nil }},
	{names: []string{"timestamp-output"}, help: "begin each line with the time",
		set: func(r *run, _ *program, _ string) error { r.Timestamp = true; return nil }},
	{names: []string{"output"}, value: "DIR", help: "write output to DIR/rank.R.stdout and .stderr instead",
		set: func(r *run, _ *program, v string) error { return text(&r.Output, v) }},
	{names: []string{"stdin"}, value: "RANK|none", help: "who reads the standard input (default 0)",
		set: func(r *run, _ *program, v string) error {
			if v != "none" {
				n, err := number(v, 0, maxRanks-1)
				if err != nil {
					return errors.New(`want the number of a rank, or "none"`)
				}
				v = strconv.Itoa(n)
			}
			r.Stdin = v
			return nil
		}},
	{names: []string{"timeout"}, value: "SECONDS", help: "end the job then, with exit code 110",
		set: func(r *run, _ *program, v string) (err error) {
			r.Timeout, err = seconds(v)
			return err
		}},
	{names: []string{"survive"}, value: "none|moves|crashes|report", help: "what ranks outlive: nothing, being moved, or the death of their process; or that is reported to the others (default moves, with --spares crashes)",
		set: func(r *run, _ *program, v string) error {
			return oneOf(&r.Survive, v, "none", "moves", "crashes", "report")
		}},
	{names: []string{"spares"}, value: "N", help: "processes without a rank, to which ranks can go (default 0)",
		set: func(r *run, _ *program, v string) (err error) {
			r.Spares, err = number(v, 0, maxRanks)
			return err
		}},
	{names: []string{"spare-memory"}, value: "SIZE", help: "what each process without a rank holds ready for the state of one that comes, such as 512MiB (default none)",
		set: func(r *run, _ *program, v string) (err error) {
			r.SpareMemory, err = size(v)
			return err
		}},
	{names: []string{"outlive"}, help: "the job goes on without this mpivrun, and without the agent that leads it: mpivrun attach shows it (needs --survive crashes, and agents on two hosts; to go on without the one that leads, on three that are trusted)",
		set: func(r *run, _ *program, _ string) error { r.Outlive = true; return nil }},
	{names: []string{"snapshot"}, value: "SECONDS", help: "how often each rank's state is saved, with --survive crashes (default 2)",
		set: func(r *run, _ *program, v string) (err error) {
			r.Snapshot, err = seconds(v)
			return err
		}},
	{names: []string{"contracts"}, value: "learn|enforce|off", help: "what links between hosts deliver is learned, and ranks move away from those that deliver less (default enforce where ranks can move between hosts)",
		set: func(r *run, _ *program, v string) error { return oneOf(&r.Contracts, v, "learn", "enforce", "off") }},
	{names: []string{"contracts-file"}, value: "FILE", help: "read contracts from FILE if it is there, and write them at the end",
		set: func(r *run, _ *program, v string) error { return text(&r.ContractsFile, v) }},
	{names: []string{"contract"}, value: "FROM>TO:RATE,…", help: "what a link between two hosts has to deliver, whatever was learned, such as 'X>Y:8MB/s'; * is any host",
		set: func(r *run, _ *program, v string) error {
			all, err := sensors.ParseThresholds(v)
			if err == nil && len(all) == 0 {
				err = errors.New("the value is empty")
			}
			if !strings.Contains(v, ">") {
				err = errors.New("want FROM>TO:RATE, such as 'X>Y:8MB/s', in quotes: a shell takes > for its own")
			}
			r.Thresholds = append(r.Thresholds, all...)
			return err
		}},
	{names: []string{"silence"}, value: "SECONDS", help: "for how long nothing may be heard of a host before it is lost (default 15; with --survive crashes or report 0.9)",
		set: func(r *run, _ *program, v string) (err error) {
			r.Silence, err = seconds(v)
			return err
		}},
	{names: []string{"grace"}, value: "SECONDS", help: "for ranks to leave a host whose agent gets SIGTERM (default 10)",
		set: func(r *run, _ *program, v string) (err error) {
			r.Grace, err = seconds(v)
			return err
		}},
	{names: []string{"transport"}, value: "NAME,…", help: "networks to use, best first: shm, tcp, quic, and libp2p or ofi if the program has it (default: all but ofi; within a host shm and tcp)",
		set: func(r *run, _ *program, v string) error {
			r.Transports = nil
			for name := range strings.SplitSeq(v, ",") {
				var known string
				if err := oneOf(&known, name, "shm", "tcp", "quic", "libp2p", "ofi"); err != nil {
					return err
				}
				if slices.Contains(r.Transports, name) {
					return fmt.Errorf("%s is named twice", name)
				}
				r.Transports = append(r.Transports, name)
			}
			return nil
		}},
	{names: []string{"log-bytes"}, value: "SIZE", help: "bound of the log for each pair of processes, such as 8MiB (default 16MiB)",
		set: func(r *run, _ *program, v string) (err error) {
			r.LogBytes, err = size(v)
			return err
		}},
	{names: []string{"log-disk"}, value: "SIZE", help: "with spares: how much of a longer log each process may put on disk, such as 512MiB (default 4GiB)",
		set: func(r *run, _ *program, v string) (err error) {
			r.LogDisk, err = size(v)
			return err
		}},
	{names: []string{"check"}, help: "costly checks: buffers changed while a request is pending, requests pending at a SafePoint, messages never received",
		set: func(r *run, _ *program, _ string) error { r.Check = true; return nil }},
	{names: []string{"chaos"}, value: "FAULTS", help: "break things to order, such as 'kill 2@5s; stop 3@8s for 4s' (see docs/mpivrun.md)",
		set: func(r *run, _ *program, v string) (err error) {
			r.Chaos, err = chaos.Parse(v)
			return err
		}},
	{names: []string{"chaos-history"}, value: "FILE", help: "write which faults were done when, and to whom, to FILE, a line of JSON each",
		set: func(r *run, _ *program, v string) error { return text(&r.ChaosHistory, v) }},
	{names: []string{"deadlock"}, value: "end|say|off", help: "what to do when ranks are proven to wait for each other (default end)",
		set: func(r *run, _ *program, v string) error { return oneOf(&r.Deadlock, v, "end", "say", "off") }},
	{names: []string{"events"}, value: "FILE", help: "write what happens in the job to FILE, a line of JSON each",
		set: func(r *run, _ *program, v string) error { return text(&r.Events, v) }},
	{names: []string{"trace"}, value: "FILE", help: "record what every rank does, and write it to FILE, for ui.perfetto.dev or chrome://tracing",
		set: func(r *run, _ *program, v string) error { return text(&r.Trace, v) }},
	{names: []string{"metrics"}, value: "ADDR", help: "every agent serves metrics for Prometheus there, such as :9400; port 0 picks one",
		set: func(r *run, _ *program, v string) error {
			_, port, err := net.SplitHostPort(v)
			if err == nil {
				_, err = number(port, 0, 65535)
			}
			if err != nil {
				return errors.New("want [HOST]:PORT, such as :9400 or 127.0.0.1:0")
			}
			r.Metrics = v
			return nil
		}},
	{names: []string{"metrics-targets"}, value: "FILE", help: "write where the metrics are to FILE, for Prometheus' file_sd_configs",
		set: func(r *run, _ *program, v string) error { return text(&r.Targets, v) }},
	{names: []string{"ganglia"}, value: "HOST:PORT", help: "report readings of hosts and links to the gmond that takes them there, every five seconds, such as 127.0.0.1:8649",
		set: func(r *run, _ *program, v string) error {
			host, port, err := net.SplitHostPort(v)
			if err == nil {
				_, err = number(port, 1, 65535)
			}
			if err != nil || host == "" {
				return errors.New("want HOST:PORT of a gmond's UDP channel, such as 127.0.0.1:8649")
			}
			r.Ganglia = v
			return nil
		}},
	{names: []string{"quiet", "q"}, help: "say nothing but why a job failed",
		set: func(r *run, _ *program, _ string) error { r.Quiet = true; return nil }},
	{names: []string{"verbose", "v"}, help: "say what happens to each process, and when",
		set: func(r *run, _ *program, _ string) error { r.Verbose = true; return nil }},
}

// later is what people may expect of an option that is not there.
var later = map[string]string{
	"rank-by": "ranks are numbered as --map-by places them",
	"mca":     "MCA parameters are Open MPI's", "genv": "use -x VAR=VALUE", "env": "use -x VAR=VALUE", "genvall": "programs get the whole environment anyway",
	"allow-run-as-root": "it is not needed", "use-hwthread-cpus": "it is not needed", "output-filename": "use --output DIR",
	"merge-stderr-to-stdout": "write 2>&1 in a shell", "nooversubscribe": "it is the default where slots are given",
	"l": "use --tag-output", "prepend-rank": "use --tag-output",
}

const maxRanks = 1 << 20

// parseRun parses the run form. The first word that is not an option is the
// program; a word that is a lone colon begins another program of the same job.
func parseRun(args []string) (*run, error) {
	r := &run{}
	for first := true; first || len(args) > 0; first = false {
		var p program
		rest, err := r.parseOptions(&p, args, first)
		if err != nil {
			return nil, err
		}
		end := slices.Index(rest, ":")
		if end < 0 {
			end = len(rest)
		}
		p.Words = slices.Clone(rest[:end])
		if len(p.Words) == 0 {
			return nil, errors.New("no program is given; say mpivrun [options] program [args], or mpivrun --help")
		}
		r.Programs = append(r.Programs, p)
		if end == len(rest) {
			return r, nil
		}
		if args = rest[end+1:]; len(args) == 0 {
			return nil, errors.New("no program follows the last colon")
		}
	}
	return r, nil
}

// parseOptions takes the options of p, and of the job while p is its first
// program, from the front of args, and returns the rest.
func (r *run) parseOptions(p *program, args []string, first bool) ([]string, error) {
	for len(args) > 0 {
		word := args[0]
		if word == "--" {
			return args[1:], nil
		}
		if len(word) < 2 || word[0] != '-' {
			return args, nil
		}
		args = args[1:]
		name, value, joined := strings.Cut(strings.TrimPrefix(word[1:], "-"), "=")
		o := find(name)
		if o == nil {
			return nil, unknown(word, name)
		}
		if !o.local && !first {
			return nil, fmt.Errorf("%s is for the whole job; give it before the first program", word)
		}
		switch {
		case o.value == "" && joined:
			return nil, fmt.Errorf("%s: %s takes no value", word, dashed(o.names[0]))
		case o.value != "" && !joined:
			if len(args) == 0 {
				return nil, fmt.Errorf("%s needs a value: %s", word, o.value)
			}
			value, args = args[0], args[1:]
		}
		if err := o.set(r, p, value); err != nil {
			return nil, fmt.Errorf("%s %s: %w", dashed(o.names[0]), printable(value), err)
		}
	}
	return args, nil
}

func find(name string) *option {
	for i := range options {
		if slices.Contains(options[i].names, name) {
			return &options[i]
		}
	}
	return nil
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// unknown is the error for an option that is not there, with what may have been
// meant.
func unknown(word, name string) error {
	if why, ok := later[name]; ok {
		return fmt.Errorf("there is no option %s: %s", word, why)
	}
	if digits := strings.TrimLeft(name, "ncp"); len(name) < 12 && digits != name && digits != "" && strings.Trim(digits, "0123456789") == "" {
		return fmt.Errorf("there is no option %s; did you mean -n %s?", word, digits)
	}
	names := []string{"help", "version"}
	for _, o := range options {
		names = append(names, o.names...)
	}
	if nearest := spelling.Nearest(name, names...); nearest != "" {
		return fmt.Errorf("there is no option %s; did you mean %s?", word, dashed(nearest))
	}
	return fmt.Errorf("there is no option %s; mpivrun help lists them", word)
}

func number(v string, low, high int) (int, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("want a number from %d to %d", low, high)
	}
	return n, nil
}

// seconds is "90", "1.5" or "2m30s".
func seconds(v string) (time.Duration, error) {
	const longest = 1000 * 24 * time.Hour
	d, err := time.ParseDuration(v)
	if err != nil {
		var s float64
		s, err = strconv.ParseFloat(v, 64)
		if err == nil && s < longest.Seconds() {
			d = time.Duration(s * float64(time.Second))
		}
	}
	if err != nil || d <= 0 || d > longest {
		return 0, errors.New("want seconds, such as 90 or 1.5, or 2m30s")
	}
	return d, nil
}

var units = []struct {
	name  string
	bytes float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}, {"B", 1}, {"", 1}}

// size is a number of bytes, with or without a unit.
func size(v string) (int, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(v, u.name)
		if !ok || strings.Trim(digits, "0123456789.") != "" {
			continue
		}
		n, err := strconv.ParseFloat(digits, 64)
		if n *= u.bytes; err == nil && n >= 1 && n <= 1<<40 {
			return int(n), nil
		}
	}
	return 0, errors.New("want a size from 1 byte to 1 TiB, such as 8MiB")
}

func text(to *string, v string) error {
	if v == "" {
		return errors.New("the value is empty")
	}
	*to = v
	return nil
}

func oneOf(to *string, v string, all ...string) error {
	if !slices.Contains(all, v) {
		return fmt.Errorf("want one of %s", strings.Join(all, ", "))
	}
	*to = v
	return nil
}
