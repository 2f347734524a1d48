// Package agent leads a job: it has crews run its processes, on this host and others, tells
// them what they are, passes on their output, judges how each one ends, and answers
// who asks about the job.
package agent

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/mpiv/mpiv/chaos"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
	"github.com/mpiv/mpiv/internal/rundir"
	"github.com/mpiv/mpiv/sensors"
)

// A Job is what to run. The zero value of each field but Programs works.
type Job struct {
	Programs        []Program
	RanksPerProcess int    // ranks that are goroutines of one process. Zero means 1.
	Name            string // for people. Empty means the first program and the agent's process number.
	Host            string // the name of this host. Empty means os.Hostname.
	Hosts           []Host // where to run. None means here.
	ByNode          bool   // processes are dealt out to the hosts in turn, not one host filled after the other
	Launch          Launch // how agents are started on other hosts
	Dir             string // working directory of programs on other hosts that have none of their own. Empty means this one's.
	Options         control.Options
	Spares          int // processes without a rank, to which ranks can go

	// Contracts is what is done about what links between hosts deliver: "learn", "enforce" or "off".
	// Empty means enforce where ranks can move between hosts.
	Contracts     string
	ContractsFile string              // not empty: contracts are read from there, and written at the end
	Thresholds    []sensors.Threshold // of contracts that are set by hand, by the names of Hosts

	Stdin     *os.File // for the process of StdinRank; nil, and all others, read nothing
	StdinRank int
	Stdout    io.Writer // nil means os.Stdout
	Stderr    io.Writer // of the processes and for what the agent has to say. Nil means os.Stderr.
	Tag       bool      // each line begins with who wrote it
	Timestamp bool      // each line begins with when it was passed on
	Metrics   string    // not empty: every agent serves metrics at this "host:port"
	Targets   string    // not empty: a file that says to Prometheus where
	Ganglia   string    // not empty: readings of hosts and links go to the gmond at this "host:port"
	Events    string    // not empty: the job's events go to this file, see package events
	Trace     string    // not empty: what the ranks do goes to this file, see package trace
	OutputDir string    // not empty: output goes to files there, two for each process

	Chaos        chaos.Schedule // faults that are done to the job
	ChaosHistory string         // not empty: what was done when goes to this file, see chaos.Record
	Breaker      Breaker        // does the faults of hosts. Nil means that there can be none.

	// Silence is for how long nothing may be heard of a host before it is lost. Zero
	// means 900 ms at levels "crashes" and "report", where the job goes on, and else 15 s,
	// as it ends.
	Silence time.Duration
	// Grace is how long the agent of another host that gets SIGTERM waits for its ranks to
	// be elsewhere. Zero means 10 s; negative: it ends at once.
	Grace time.Duration

	Timeout  time.Duration // then the job ends with exit.Timeout. Zero means never.
	Bind     bool          // each process to as many cores as it has ranks
	Deadlock string        // "end" the job when one is proven, "say" so, or "off". Empty means "end".
	Quiet    bool          // say nothing but why a job failed
	Verbose  bool          // say what happens to each process

	// Runtime is the directory where running jobs are found. Empty means rundir.Root().
	Runtime string
	// Reaper says that this operating-system process does nothing but run the
	// job: whatever its processes leave behind is ended with the job.
	Reaper bool
	// Guard ends what the job's processes have started, should this process be killed. Nil means
	// nobody does. It is closed when the job has ended.
	Guard *crew.Guard `json:"-"`

	// A process that has not said Hello this long after another is named. Zero
	// means 10 s.
	helloLate time.Duration
}

// MarshalJSON and UnmarshalJSON keep names of files that are no text.
func (j Job) MarshalJSON() ([]byte, error) {
	type job Job // without these methods
	return json.Marshal(job(j.words(control.Spell)))
}

func (j *Job) UnmarshalJSON(b []byte) error {
	type job Job
	err := json.Unmarshal(b, (*job)(j))
	*j = j.words(control.Word)
	return err
}

// words is j with f of all names of files, and of commands.
func (j Job) words(f func(string) string) Job {
	for _, name := range []*string{&j.Dir, &j.ContractsFile, &j.Targets, &j.Events, &j.Trace, &j.OutputDir, &j.ChaosHistory, &j.Runtime} {
		*name = f(*name)
	}
	j.Launch.Command, j.Launch.Mpivrun = control.Each(j.Launch.Command, f), f(j.Launch.Mpivrun)
	return j
}

// A Program is one executable and its ranks, which follow those of the Program
// before it.
type Program struct {
	Ranks int
	Path  string   // looked for in PATH unless it contains a slash
	Args  []string // without the program's own name
	Env   []string // "VAR=value", on top of the agent's environment
	Dir   string   // working directory. Empty means the agent's.
}

// MarshalJSON and UnmarshalJSON keep words that are no text.
func (p Program) MarshalJSON() ([]byte, error) {
	type program Program // without these methods
	return json.Marshal(program(p.words(control.Spell)))
}

func (p *Program) UnmarshalJSON(b []byte) error {
	type program Program
	err := json.Unmarshal(b, (*program)(p))
	*p = p.words(control.Word)
	return err
}

// words is p with f of all its words.
func (p Program) words(f func(string) string) Program {
	p.Path, p.Dir, p.Args, p.Env = f(p.Path), f(p.Dir), control.Each(p.Args, f), control.Each(p.Env, f)
	return p
}

// program is what a crew has to know of p.
func (p *Program) program() crew.Program {
	return crew.Program{Path: p.Path, Args: p.Args, Env: p.Env, Dir: p.Dir}
}

// A Host is one that processes may run on.
type Host struct {
	Name     string // what it is called, and how it is reached to start an agent there
	Slots    int    // processes that it takes before the next. Zero means 1.
	MaxSlots int    // processes that it takes at all. Zero means any number.
	Here     bool   // it is this one
	Networks []control.Network
	// Distrusted: it gets no other host's keys, so it starts no agents.
	Distrusted bool
}

func (j Job) withDefaults() Job {
	j.RanksPerProcess = max(j.RanksPerProcess, 1)
	if j.Host == "" {
		j.Host, _ = os.Hostname()
	}
	if j.Stdout == nil {
		j.Stdout = os.Stdout
	}
	if j.Stderr == nil {
		j.Stderr = os.Stderr
	}
	if j.Deadlock == "" {
		j.Deadlock = "end"
	}
	if j.Runtime == "" {
		j.Runtime = rundir.Root()
	}
	if j.Name == "" && len(j.Programs) > 0 {
		j.Name = fmt.Sprintf("%s-%d", filepath.Base(j.Programs[0].Path), os.Getpid())
	}
	j.Name = rundir.CleanName(j.Name)
	if j.Dir == "" {
		j.Dir, _ = os.Getwd()
	}
	if len(j.Hosts) == 0 {
		j.Hosts = []Host{{Name: j.Host, Here: true}}
	}
	if j.Grace == 0 {
		j.Grace = 10 * time.Second
	}
	if j.Silence == 0 {
		j.Silence = control.AlivePatient
		if j.Options.Survive == "crashes" || j.Options.Survive == "report" {
			j.Silence = control.CrashPatient
		}
	}
	if j.helloLate == 0 {
		j.helloLate = 10 * time.Second
	}
	return j
}
