package agent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
)

// A process of the job. Fields without a lock belong to the agent's loop once
// it runs.
type process struct {
	index int
	ranks []int
	prog  *Program
	path  string // the file executed

	stdout, stderr *stream    // what it writes; nil if it writes past the agent
	files          []*os.File // what it gets as 0, 1 and 2, closed here once it is started
	pumps          sync.WaitGroup
	readers        []*os.File // what the pumps read

	mu     sync.Mutex // guards what follows
	proc   *os.Process
	reaped bool

	link      *link // its connection, once it has said Hello
	hello     *control.Hello
	linkEnded bool
	started   bool // it runs, or has run
	exited    bool
	drained   bool // and its output has been passed on
	judged    bool // how it ended has been looked at
	status    syscall.WaitStatus
	failed    bool // it has said Failed
	finished  map[int]control.RankReport
}

// label names the process by its ranks: "4", "4-7".
func (p *process) label() string {
	if len(p.ranks) == 1 {
		return strconv.Itoa(p.ranks[0])
	}
	return fmt.Sprintf("%d-%d", p.ranks[0], p.ranks[len(p.ranks)-1])
}

// who names the process for people: "rank 4", "ranks 4-7".
func (p *process) who() string {
	if len(p.ranks) == 1 {
		return "rank " + p.label()
	}
	return "ranks " + p.label()
}

// kill sends sig to the process and to what it has started in its group. It
// does nothing before the process runs and after it has ended.
func (p *process) kill(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc != nil && !p.reaped {
		syscall.Kill(-p.proc.Pid, sig)
	}
}

// is true if pid is the process, which has not been reaped.
func (p *process) is(pid int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proc != nil && !p.reaped && p.proc.Pid == pid
}

// pid is the process's number; 0 before it is known.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proc == nil {
		return 0
	}
	return p.proc.Pid
}

// wait returns when the process has ended.
func (p *process) wait() syscall.WaitStatus {
	// The process is seen to end first and reaped under the lock, so that kill
	// never signals a number that belongs to somebody else by now.
	for {
		err := unix.Waitid(unix.P_PID, p.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reaped = true
	state, err := p.proc.Wait()
	if err != nil {
		panic(fmt.Sprintf("wait for process %d: %v", p.proc.Pid, err)) // nobody else may reap our children
	}
	return state.Sys().(syscall.WaitStatus)
}

// layout cuts the ranks of each program into processes.
func layout(j Job) []*process {
	var all []*process
	rank := 0
	for i := range j.Programs {
		prog := &j.Programs[i]
		for end := rank + prog.Ranks; rank < end; {
			p := &process{index: len(all), prog: prog, finished: map[int]control.RankReport{}}
			for ; rank < end && len(p.ranks) < j.RanksPerProcess; rank++ {
				p.ranks = append(p.ranks, rank)
			}
			all = append(all, p)
		}
	}
	return all
}

// connect makes the process's standard input and output.
func (a *Agent) connect(p *process, raw bool, screens [2]*screen) error {
	in := a.null
	if a.job.Stdin != nil && contains(p.ranks, a.job.StdinRank) {
		in = a.job.Stdin
		switch terminal := isTerminal(in); {
		case terminal && !inForeground(in):
			in = a.null // reading would stop us
		case terminal:
			// The process is not in the terminal's foreground group, which is what
			// lets the agent decide who gets an interrupt. So it is given a pipe.
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			p.files = append(p.files, r)
			a.typed, in = w, r
		}
	}
	outs := [2]*os.File{}
	for i, w := range []any{a.job.Stdout, a.job.Stderr} {
		name := [2]string{"stdout", "stderr"}[i]
		s := &stream{screen: screens[i], stamped: a.job.Timestamp, prompt: in != a.null}
		if a.job.Tag {
			s.tag = "[" + p.label() + "]<" + name + ">: "
		}
		switch {
		case raw:
			outs[i] = w.(*os.File)
			continue
		case a.job.OutputDir != "":
			f, err := os.OpenFile(filepath.Join(a.job.OutputDir, "rank."+p.label()+"."+name), os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o666)
			if err != nil {
				return err
			}
			a.outputs = append(a.outputs, f)
			s.w, s.screen, s.prompt = f, new(screen), false
		default:
			s.w = [2]interface{ Write([]byte) (int, error) }{a.job.Stdout, a.job.Stderr}[i]
		}
		r, w, err := os.Pipe()
		if err != nil {
			return err
		}
		// A larger pipe lets a program that prints much run on while we write. It
		// is a wish: the system may have reached its bound.
		unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 1<<20)
		p.files, p.readers = append(p.files, w), append(p.readers, r)
		outs[i] = w
		if i == 0 {
			p.stdout = s
		} else {
			s.last = new(tail)
			p.stderr = s
		}
	}
	p.files = append([]*os.File{in, outs[0], outs[1]}, p.files...)
	return nil
}

func contains(ranks []int, r int) bool {
	return r >= ranks[0] && r <= ranks[len(ranks)-1]
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// A starter starts processes, in threads that live until the last of them has
// ended: when the thread that forked a process dies, so does the process, by
// the signal it has asked for. That is what ends it when the agent is killed.
type starter struct {
	work chan func()
	wg   sync.WaitGroup
}

func newStarter(threads int) *starter {
	s := &starter{work: make(chan func())}
	for range threads {
		s.wg.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread may be bound to some cores, so it ends with us
			for f := range s.work {
				f()
			}
		})
	}
	return s
}

func (s *starter) close() {
	close(s.work)
	s.wg.Wait()
}

// fork starts p, in a starter's thread.
func (a *Agent) fork(p *process, cores unix.CPUSet) error {
	if a.job.Bind {
		// What the thread may run on is inherited.
		if err := unix.SchedSetaffinity(0, &cores); err != nil {
			return fmt.Errorf("bind to cores: %w", err)
		}
	}
	env := mergeEnv(os.Environ(), p.prog.Env, []string{
		control.EnvSocket + "=" + filepath.Join(a.dir.path, processName),
		control.EnvProcess + "=" + strconv.Itoa(p.index),
	})
	attr := &os.ProcAttr{
		Dir:   p.prog.Dir,
		Env:   env,
		Files: p.files[:3],
		Sys:   &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL},
	}
	a.forking.RLock()
	defer a.forking.RUnlock()
	proc, err := os.StartProcess(p.path, append([]string{p.prog.Path}, p.prog.Args...), attr)
	if err != nil {
		return startError(p.prog, err)
	}
	p.mu.Lock()
	p.proc = proc
	p.mu.Unlock()
	return nil
}

// mergeEnv is all of envs; of two values for one name the later counts.
func mergeEnv(envs ...[]string) []string {
	var merged []string
	at := map[string]int{}
	for _, kv := range slices.Concat(envs...) {
		name, _, _ := strings.Cut(kv, "=")
		if i, twice := at[name]; twice {
			merged[i] = kv
			continue
		}
		at[name] = len(merged)
		merged = append(merged, kv)
	}
	return merged
}

// startError is what a user can do about err.
func startError(prog *Program, err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return &ExitError{CodeNotExecutable, fmt.Errorf("program %q is not a binary for this machine, nor a script with #! and an interpreter in its first line", prog.Path)}
	case errors.Is(err, syscall.ENOENT) && prog.Dir != "" && !isDir(prog.Dir):
		return &ExitError{CodeNotFound, fmt.Errorf("working directory %s does not exist", prog.Dir)}
	case errors.Is(err, syscall.ENOENT):
		return &ExitError{CodeNotFound, fmt.Errorf("program %q: the interpreter or loader that it names does not exist", prog.Path)}
	case errors.Is(err, syscall.EACCES):
		return &ExitError{CodeNotExecutable, fmt.Errorf("program %q cannot be executed by this user (permission denied)", prog.Path)}
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("start %q: no more processes are allowed (see ulimit -u); --ranks-per-process needs fewer", prog.Path)
	}
	return fmt.Errorf("start %q: %w", prog.Path, err)
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// coreSets gives each process as many cores as it has ranks, all hardware
// threads of each, and begins again at the first when all are given away.
func coreSets(ps []*process) ([]unix.CPUSet, error) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		return nil, fmt.Errorf("find the cores to bind to: %w", err)
	}
	var cores [][]int
	for cpu := range len(allowed) * 64 {
		if !allowed.IsSet(cpu) {
			continue
		}
		siblings := siblingsOf(cpu)
		if siblings[0] < cpu && allowed.IsSet(siblings[0]) {
			continue // counted with its sibling
		}
		cores = append(cores, siblings)
	}
	sets := make([]unix.CPUSet, len(ps))
	next := 0
	for i, p := range ps {
		for range p.ranks {
			for _, cpu := range cores[next%len(cores)] {
				if allowed.IsSet(cpu) {
					sets[i].Set(cpu)
				}
			}
			next++
		}
	}
	return sets, nil
}

// siblingsOf is the hardware threads of cpu's core, ascending.
func siblingsOf(cpu int) []int {
	text, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu))
	if err != nil {
		return []int{cpu}
	}
	var all []int
	for part := range strings.SplitSeq(strings.TrimSpace(string(text)), ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := strconv.Atoi(lo)
		last, err2 := strconv.Atoi(hi)
		if err1 != nil || err2 != nil {
			return []int{cpu}
		}
		for c := first; c <= last; c++ {
			all = append(all, c)
		}
	}
	return all
}
