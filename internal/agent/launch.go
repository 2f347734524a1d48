package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/orphans"
)

// A Launch says how agents are started on other hosts. The zero value is by ssh.
type Launch struct {
	// Command is the words of a command that runs another on a host: it is
	// followed by the host's name and "mpivrun agent". Empty means ssh.
	Command []string
	// Mpivrun is the path of mpivrun on the other hosts. Empty means: as here.
	Mpivrun string
	// Slurm has srun start all agents at once, within its allocation.
	Slurm bool
	// Patience is how long all agents together may take. Zero means 60 s.
	Patience time.Duration
}

// Without a terminal, without forwarding, and without a question that nobody
// would see. A host that drops packets is given up early enough to be tried from
// another.
var ssh = []string{"ssh", "-x", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"}

func (l Launch) words() []string {
	if len(l.Command) == 0 {
		return ssh
	}
	return l.Command
}

// program is what the command is called in sentences.
func (l Launch) program() string {
	if l.Slurm {
		return "srun"
	}
	return l.words()[0]
}

// shell is true if the command passes through a shell on the other host.
func (l Launch) shell() bool {
	name := filepath.Base(l.words()[0])
	return name == "ssh" || name == "rsh"
}

func (l Launch) patience() time.Duration {
	if l.Patience == 0 {
		return 60 * time.Second
	}
	return l.Patience
}

// explain says in a sentence why no agent runs on a host, "host b", or on several.
func (l Launch) explain(host string, f control.LaunchFailed) string {
	text := printable(f.Text)
	// Around what matters there are greetings and warnings.
	if _, said, marked := strings.Cut(text, agentMark); marked {
		said, _, _ = strings.Cut(said, "\n")
		return fmt.Sprintf("%s: %s", host, said)
	}
	text = strings.TrimSpace(text)
	last := strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
	if l.Slurm {
		last = srunSays(text)
		if f.Exit == 0 { // now and then srun says what its tasks did, and ends as if they had not
			f.Exit = taskCode(text)
		}
	}
	if text = last; text == "" {
		text = "it said nothing"
	}
	by := l.program()
	switch {
	case f.Exit < 0:
		return fmt.Sprintf("%s: %s cannot be run here to start an agent: %s (--launch-agent names another command)", host, by, text)
	case f.Exit == exit.NotFound || f.Exit == exit.NotExecutable,
		l.Slurm && (f.Exit == int(syscall.ENOENT) || f.Exit == int(syscall.EACCES)): // as slurmstepd exits when it cannot execute it
		return fmt.Sprintf("%s: mpivrun was not found there (%s): install the same as here, or say where it is with --mpivrun PATH", host, text)
	case f.Exit == 255 && filepath.Base(by) == "ssh":
		name := strings.TrimPrefix(host, "host ")
		return fmt.Sprintf("%s cannot be reached by ssh: %s (\"%s %s true\" must work without a question)", host, text, l.typed(), name)
	case l.Slurm:
		return fmt.Sprintf("%s: no agent was started there, srun ended with code %d: %s (--launch-agent ssh does without Slurm)", host, f.Exit, text)
	}
	return fmt.Sprintf("%s: no agent was started there, %s ended with code %d: %s", host, by, f.Exit, text)
}

// taskCode is the exit code of a task that srun tells of in text; 0 if it tells
// of none.
func taskCode(text string) (code int) {
	if _, after, told := strings.Cut(text, "Exited with exit code "); told {
		fmt.Sscanf(after, "%d", &code)
	}
	return code
}

// srunSays is the line of what srun wrote that tells what is wrong; others tell
// what follows from it.
func srunSays(text string) string {
	for _, mark := range []string{"slurmstepd: error: ", "error: ", ""} {
		for line := range strings.Lines(text) {
			if _, why, is := strings.Cut(line, mark); is {
				return strings.TrimSpace(why)
			}
		}
	}
	return ""
}

// printable is what another host said without what a terminal would obey.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

// typed is the command as a user would type it.
func (l Launch) typed() string {
	if len(l.Command) == 0 {
		return "ssh"
	}
	return strings.Join(l.Command, " ")
}

// An agent that says itself why it cannot go on has this exit code, and begins
// its sentence so.
const (
	codeAgent = 75
	agentMark = "mpivrun agent: "
)

// fanout is how many agents each agent starts.
const fanout = 6

// tree arranges boots: who starts the first of each returned one starts the rest
// through it.
func tree(boots []control.Boot) []control.Boot {
	var roots []control.Boot
	for groups := min(fanout, len(boots)); groups > 0; groups-- {
		n := (len(boots) + groups - 1) / groups
		root := boots[0]
		root.Children = boots[1:n]
		roots = append(roots, root)
		boots = boots[n:]
	}
	return roots
}

// A launcher runs the commands that start agents elsewhere. The zero value is
// ready.
type launcher struct {
	wg sync.WaitGroup

	mu      sync.Mutex              // guards what follows
	running map[*exec.Cmd]io.Closer // with what they read
	closed  bool
}

// start starts the agent of b. failed is told when the command ends.
func (l *launcher) start(b control.Boot, failed func(control.LaunchFailed)) {
	words := append(append([]string(nil), b.Launch...), b.Host)
	command := b.Command
	if b.Quote {
		command = []string{"exec " + quote(command)}
	}
	l.run(append(words, command...), []control.Boot{b}, failed)
}

// srun starts the agents of boots, one on each node.
func (l *launcher) srun(boots []control.Boot, failed func(control.LaunchFailed)) {
	if len(boots) == 0 {
		return
	}
	nodes := make([]string, len(boots))
	for i, b := range boots {
		nodes[i] = b.Host
	}
	words := []string{"srun", "--nodes", fmt.Sprint(len(nodes)), "--ntasks", fmt.Sprint(len(nodes)), "--ntasks-per-node=1",
		"--nodelist", strings.Join(nodes, ","), "--no-kill", "--kill-on-bad-exit=0", "--overlap", "--mpi=none",
		"--cpu-bind=none", "--input=all", "--unbuffered"}
	l.run(append(words, boots[0].Command...), boots, failed)
}

// quote makes one line of words that a shell takes apart again.
func quote(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}

// run runs a command that starts the agents of boots, and hands it boots.
func (l *launcher) run(words []string, boots []control.Boot, failed func(control.LaunchFailed)) {
	line, err := json.Marshal(boots)
	if err != nil {
		panic(fmt.Sprintf("agent: %v", err)) // there is nothing in it that could
	}
	said := new(tail)
	l.wg.Go(func() {
		// The command gets a signal when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		code, err := l.wait(words, append(line, '\n'), said, boots[0].Outlive)
		text := said.String()
		if err != nil {
			text = err.Error()
		}
		for _, b := range boots {
			failed(control.LaunchFailed{Agent: b.Agent, Exit: code, Text: text})
		}
	})
}

// wait runs the command and returns its exit code; -1 with an error where it did
// not run. Unless it is to outlive this agent it is killed with it.
func (l *launcher) wait(words []string, input []byte, said *tail, outlive bool) (code int, err error) {
	cmd := exec.Command(words[0], words[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if !outlive {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return -1, err
	}
	from, into, err := os.Pipe()
	if err != nil {
		in.Close()
		return -1, err
	}
	cmd.Stdout, cmd.Stderr = into, into
	output := &stream{screen: new(screen), w: io.Discard, last: said}
	pumped := make(chan struct{})
	go func() {
		output.Pump(from)
		close(pumped)
	}()
	defer func() {
		into.Close()
		output.Leave(from)
		select {
		case <-pumped:
		case <-time.After(grace): // what it has started has its output, and goes on writing
			from.Close()
			<-pumped
		}
	}()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return -1, errors.New("the job has ended")
	}
	if err := orphans.Start(cmd); err != nil {
		l.mu.Unlock()
		return -1, err
	}
	if l.running == nil {
		l.running = map[*exec.Cmd]io.Closer{}
	}
	l.running[cmd] = in
	l.mu.Unlock()
	into.Close()
	written := make(chan struct{})
	go func() { // ends with the command: then nobody reads
		in.Write(input) // it stays open: its end is the end of the launch
		close(written)
	}()
	err = orphans.Wait(cmd)
	<-written
	l.mu.Lock()
	delete(l.running, cmd)
	l.mu.Unlock()
	if ee := (*exec.ExitError)(nil); errors.As(err, &ee) {
		if st, ok := ee.Sys().(syscall.WaitStatus); ok && st.Signaled() {
			return exitCode(st), nil
		}
		return ee.ExitCode(), nil
	}
	if err != nil {
		return -1, err
	}
	return 0, nil
}

// close ends what the commands read, and the commands that have not ended a
// moment later. It waits for them.
func (l *launcher) close() {
	l.mu.Lock()
	l.closed = true
	for _, in := range l.running {
		in.Close()
	}
	l.mu.Unlock()
	over := make(chan struct{})
	go func() { l.wg.Wait(); close(over) }()
	select {
	case <-over:
		return
	case <-time.After(grace):
	}
	l.mu.Lock()
	for cmd := range l.running {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	l.mu.Unlock()
	<-over
}

// leave has the commands go on: what they have started outlives this agent. It returns them.
func (l *launcher) leave() (pids []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for cmd := range l.running {
		pids = append(pids, cmd.Process.Pid)
	}
	return pids
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
