// Package crew runs the processes of a job that are on one host.
package crew

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/buddy"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/orphans"
)

// socketName is where the job's processes find the crew, in its directory.
const socketName = "p.sock"

// A Crew is the processes of a job on this host. It starts them, has their
// connections, and sees them end; what all that means is for its Owner, which is
// the job's first agent here, or behind a connection.
//
// One goroutine at a time calls Add, Identify, Start and Close; any may call the others.
type Crew struct {
	owner    Owner
	dir      string
	job      Job // set by Start
	control  *net.UnixListener
	starter  *starter // nil before Start
	null     *os.File
	forking  sync.RWMutex // held for reading while a process is started
	scrapes  scrapes
	stopping chan struct{} // closed by Close
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	children []*child   // by index, ascending; replaced as a whole
	conns    map[*net.UnixConn]bool
	closing  bool
	covered  map[int]uint32 // by rank: the newest life of which a snapshot is
}

// A Job is what all processes of a crew have in common.
type Job struct {
	Token    []byte
	Networks []control.Network
	Options  control.Options
	Bind     bool   // each process to as many cores as it has ranks
	Guard    *Guard // of the processes; closed by the caller, after the crew
}

// A Process is one to be started. What its slices have is not changed, here or by who gave it to Add.
type Process struct {
	Index       int   // in the job
	Ranks       []int // none: it is spare
	Program     Program
	File        string                // what Program.Find found
	Credentials *identity.Credentials // nil where all is on this host; see Identify

	Input      *os.File // nil: it reads nothing
	CloseInput bool     // Input was made for it: the crew closes it once it is started

	Output [2]Output   // who passes on what it writes to stdout and stderr
	Raw    [2]*os.File // not nil: it writes there, and nobody asks its Output; the caller closes it
}

// An Output passes on what a process writes to one pipe.
type Output interface {
	// Pump passes on what r gives, until it ends or Leave has been called, and closes r. It has
	// a goroutine of its own.
	Pump(r *os.File)
	// Leave tells Pump that the process has ended, so that others who hold the pipe open are
	// no reason to wait. It does not wait itself.
	Leave(r *os.File)
}

// An Owner is told what the processes of its crew do, by index in the job. The
// calls come from any goroutine, in order for each process, and may wait.
type Owner interface {
	Forked(process, pid int, err error)   // an err that is the program's is an [*exit.Error]
	Said(process int, m *control.Message) // nil: it ended its connection
	Refused(reason string)                // a connection was
	Exited(process int, status syscall.WaitStatus)
	Drained(process int)             // all that it wrote has been passed on
	Stopped(process int, why string) // it stands still; with an empty why it goes on
}

// New makes what a crew needs before its first process, in dir, an absolute path: the directory
// of the job, which the caller removes after Close.
func New(dir string, o Owner) (*Crew, error) {
	c := &Crew{owner: o, dir: dir, stopping: make(chan struct{}), conns: map[*net.UnixConn]bool{}, covered: map[int]uint32{}}
	var err error
	if c.null, err = os.Open(os.DevNull); err != nil {
		return nil, err
	}
	if c.control, err = net.ListenUnix("unix", &net.UnixAddr{Name: c.socket(), Net: "unix"}); err != nil {
		c.null.Close()
		return nil, err
	}
	return c, nil
}

// socket is where processes find the crew.
func (c *Crew) socket() string { return filepath.Join(c.dir, socketName) }

// Add makes the output pipes of p, which Start will start; once that was called, Add has it
// started without waiting for it, and the owner is told how that went. Indexes ascend.
func (c *Crew) Add(p Process) error {
	m := &child{Process: p}
	in := p.Input
	if in == nil {
		in = c.null
	} else if p.CloseInput {
		m.ours = append(m.ours, in)
	}
	files := []*os.File{in, nil, nil}
	for i := range p.Output {
		if p.Raw[i] != nil {
			files[1+i] = p.Raw[i]
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("make the output of %s: %w", Who(m.Ranks), err)
		}
		// A larger pipe lets a program that prints much run on while we write. It
		// is a wish: the system may have reached its bound.
		unix.FcntlInt(w.Fd(), unix.F_SETPIPE_SZ, 1<<20)
		m.ours, m.readers[i] = append(m.ours, w), r
		files[1+i] = w
	}
	m.files = files
	c.mu.Lock()
	c.children = append(slices.Clip(c.children), m)
	c.mu.Unlock()
	if c.starter != nil {
		c.pump(m)
		cores, err := c.coresOf(m)
		c.begin(m, cores, err)
	}
	return nil
}

// Identify gives a process that was added its credentials, before Start.
func (c *Crew) Identify(process int, credentials *identity.Credentials) {
	c.child(process).Credentials = credentials
}

// Start has every process started, by as many threads as there are cores, and the owner told of
// each. An error says why none is.
func (c *Crew) Start(j Job) error {
	c.job = j
	sets := make([]unix.CPUSet, len(c.children))
	if c.job.Bind {
		var err error
		if sets, err = coreSets(c.children); err != nil {
			return err
		}
	}
	for _, m := range c.children {
		c.pump(m)
	}
	c.job.Guard.guards(c.socket())
	c.Accept(c.control, c.serve)
	if c.job.Options.Survive == "crashes" || c.job.Options.Survive == "report" {
		c.wg.Go(c.lookForHangs)
	}
	c.starter = newStarter(min(runtime.NumCPU(), len(c.children)))
	for i, m := range c.children {
		c.begin(m, sets[i], nil)
	}
	return nil
}

// Processes is the indexes of those that were added, ascending.
func (c *Crew) Processes() []int {
	children := c.all()
	all := make([]int, len(children))
	for i, m := range children {
		all[i] = m.Index
	}
	return all
}

// Send hands m to processes, without waiting. False: one of them has not said Hello, or
// does not read.
func (c *Crew) Send(m control.Message, to ...int) bool {
	if m.Covered != nil {
		c.forgetBefore(control.Life{Rank: m.Covered.Rank, Epoch: m.Covered.Epoch})
	}
	all := true
	for _, p := range to {
		ch := c.child(p)
		all = ch != nil && ch.send(m) && all
	}
	return all
}

// Kill sends sig to a process, if it is here and runs, and to what it has started in its group.
func (c *Crew) Kill(process int, sig syscall.Signal) {
	if ch := c.child(process); ch != nil {
		ch.kill(sig)
	}
}

// Bury reaps what processes left behind and has ended since. It is for who has called
// orphans.Adopt, after a SIGCHLD.
func (c *Crew) Bury() {
	c.forking.Lock() // a process whose number is not known yet must not be taken for an orphan
	defer c.forking.Unlock()
	orphans.Bury(func(pid int) bool { return slices.ContainsFunc(c.all(), func(m *child) bool { return m.is(pid) }) })
}

// Go runs f in a goroutine for which Close waits; it closes stopping first.
func (c *Crew) Go(f func(stopping <-chan struct{})) { c.wg.Go(func() { f(c.stopping) }) }

// all is the children now, by index.
func (c *Crew) all() []*child {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.children
}

// coresOf is those that m, which is among the children, is to be bound to.
func (c *Crew) coresOf(m *child) (cores unix.CPUSet, err error) {
	if !c.job.Bind {
		return cores, nil
	}
	all := c.all()
	sets, err := coreSets(all)
	if err != nil {
		return cores, err
	}
	return sets[slices.Index(all, m)], nil
}

// pump begins to pass on what m will write.
func (c *Crew) pump(m *child) {
	for i, r := range m.readers {
		if r != nil {
			m.pumps.Go(func() { m.Output[i].Pump(r) })
		}
	}
}

// begin has a starter's thread start m, unless err says why not.
func (c *Crew) begin(m *child, cores unix.CPUSet, err error) {
	c.starter.do(func() {
		if err == nil {
			err = c.fork(m, cores)
		}
		m.closeOurs()
		c.started(m, err)
	})
}

// started is told that m runs, or why it does not.
func (c *Crew) started(m *child, err error) {
	if err != nil {
		c.owner.Forked(m.Index, 0, err)
		return
	}
	pid := m.pid()
	c.job.Guard.add(pid)
	c.owner.Forked(m.Index, pid, nil)
	c.wg.Go(func() {
		status := m.wait()
		if syscall.Kill(-pid, 0) != nil { // nothing that it started is left in its group
			c.job.Guard.remove(pid)
		}
		os.Remove(filepath.Join(c.dir, control.BlankFile(m.Index))) // of one that was killed
		c.owner.Exited(m.Index, status)
		m.drain()
		c.owner.Drained(m.Index)
	})
}

// child is the process of that index in the job; nil if it is not here.
func (c *Crew) child(process int) *child {
	children := c.all()
	i, found := slices.BinarySearchFunc(children, process, func(m *child, p int) int { return m.Index - p })
	if !found {
		return nil
	}
	return children[i]
}

// forgetBefore removes what the processes of lives before l have left here, of which a
// snapshot is covered: the rank goes on from no older one. It does not wait.
func (c *Crew) forgetBefore(l control.Life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || l.Epoch <= max(c.covered[l.Rank], 1) { // there is none before the first
		return
	}
	c.covered[l.Rank] = l.Epoch
	c.wg.Go(func() { buddy.RemoveBefore(c.dir, l, "rank", "choices") })
}

// Close ends what is left when no process is. It waits; twice is harmless.
func (c *Crew) Close() {
	c.mu.Lock()
	first := !c.closing
	c.closing = true
	for conn := range c.conns {
		conn.CloseRead() // who serves it may still be answering
	}
	c.mu.Unlock()
	if !first {
		return
	}
	close(c.stopping)
	c.control.Close()
	c.wg.Wait()
	if c.starter != nil {
		c.starter.close()
	}
	for _, m := range c.children {
		m.closeOurs()
		if m.pid() == 0 {
			for _, r := range m.readers {
				if r != nil {
					r.Close() // ends its pump, if that runs
				}
			}
			m.pumps.Wait()
		}
	}
	c.null.Close()
}
