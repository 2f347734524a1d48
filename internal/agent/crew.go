package agent

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
)

// A crew is the processes of a job on this host. It starts them, has their
// connections, and sees them end; what all that means is for its owner, which is
// the job's first agent here, or behind a connection.
type crew struct {
	job      crewJob
	owner    owner
	dir      *jobDir
	control  *net.UnixListener
	starter  *starter
	guard    *guard // nil if there is none
	null     *os.File
	forking  sync.RWMutex // held for reading while a process is started
	scrapes  scrapes
	stopping chan struct{} // closed by close
	wg       sync.WaitGroup

	mu       sync.Mutex // guards what follows
	children []*child   // by index, ascending; replaced as a whole
	conns    map[*net.UnixConn]bool
	closing  bool
	covered  map[int]uint32 // by rank: the newest life of which a snapshot is
}

// A crewJob is what a crew has to know of the job.
type crewJob struct {
	name     string
	runtime  string // where running jobs are found
	token    []byte
	networks []control.Network
	options  control.Options
	bind     bool
	guard    []string // the command that is a guard; none: no guard
}

// An owner is told what the processes of its crew do, by index in the job. The
// calls come from any goroutine, in order for each process, and may wait.
type owner interface {
	forked(process, pid int, err error)
	said(process int, m *control.Message) // nil: it ended its connection
	refused(reason string)                // a connection was
	exited(process int, status syscall.WaitStatus)
	drained(process int)             // all that it wrote has been passed on
	stopped(process int, why string) // it stands still; with an empty why it goes on
}

// newCrew makes what a crew needs before its first process. Close frees it.
func newCrew(j crewJob, o owner) (*crew, error) {
	c := &crew{job: j, owner: o, stopping: make(chan struct{}), conns: map[*net.UnixConn]bool{}, covered: map[int]uint32{}}
	var err error
	if c.dir, err = makeJobDir(j.runtime, j.name); err != nil {
		return nil, err
	}
	if _, here := o.(local); !here {
		err = c.dir.belongs(j.name)
	}
	if err == nil {
		c.null, err = os.Open(os.DevNull)
	}
	if err == nil {
		c.control, err = net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(c.dir.path, processName), Net: "unix"})
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// add makes the output pipes of m, which start will start. in is what it reads;
// out takes what it writes, unless raw is given: the files that it gets.
func (c *crew) add(m *child, in *os.File, out [2]*stream, raw [2]*os.File) error {
	if in == nil {
		in = c.null
	}
	files := []*os.File{in, nil, nil}
	m.streams = out
	for i := range out {
		if raw[i] != nil {
			files[1+i] = raw[i]
			continue
		}
		r, w, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("make the output of %s: %w", whoIs(m.ranks), err)
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
	return nil
}

// all is the children now, by index.
func (c *crew) all() []*child {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.children
}

// more starts m, which add was given after start.
func (c *crew) more(m *child) {
	c.pump(m)
	cores, err := c.coresOf(m)
	c.starter.do(func() {
		if err == nil {
			err = c.fork(m, cores)
		}
		m.closeOurs()
		c.started(m, err)
	})
}

// coresOf is those that m, which is among the children, is to be bound to.
func (c *crew) coresOf(m *child) (cores unix.CPUSet, err error) {
	if !c.job.bind {
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
func (c *crew) pump(m *child) {
	for i, s := range m.streams {
		if s != nil {
			m.pumps.Go(func() { s.pump(m.readers[i]) })
		}
	}
}

// start has every process started, by as many threads as there are cores.
func (c *crew) start() error {
	sets := make([]unix.CPUSet, len(c.children))
	if c.job.bind {
		var err error
		if sets, err = coreSets(c.children); err != nil {
			return err
		}
	}
	for _, m := range c.children {
		c.pump(m)
	}
	if len(c.job.guard) > 0 && len(c.children) > 0 {
		var err error
		if c.guard, err = newGuard(c.job.guard, filepath.Join(c.dir.path, processName)); err != nil {
			return err
		}
	}
	c.wg.Go(func() { c.accept(c.control, c.serve) })
	if c.job.options.Survive == "crashes" || c.job.options.Survive == "report" {
		c.wg.Go(c.lookForHangs)
	}
	c.starter = newStarter(min(runtime.NumCPU(), len(c.children)))
	for i, m := range c.children {
		c.starter.do(func() {
			err := c.fork(m, sets[i])
			m.closeOurs()
			c.started(m, err)
		})
	}
	return nil
}

// started is told that m runs, or why it does not.
func (c *crew) started(m *child, err error) {
	if err != nil {
		c.owner.forked(m.index, 0, err)
		return
	}
	pid := m.pid()
	c.guard.add(pid)
	c.owner.forked(m.index, pid, nil)
	c.wg.Go(func() {
		status := m.wait()
		if syscall.Kill(-pid, 0) != nil { // nothing that it started is left in its group
			c.guard.remove(pid)
		}
		os.Remove(filepath.Join(c.dir.path, control.BlankFile(m.index))) // of one that was killed
		c.owner.exited(m.index, status)
		m.drain()
		c.owner.drained(m.index)
	})
}

// child is the process of that index in the job; nil if it is not here.
func (c *crew) child(process int) *child {
	children := c.all()
	i, found := slices.BinarySearchFunc(children, process, func(m *child, p int) int { return m.index - p })
	if !found {
		return nil
	}
	return children[i]
}

// forgetBefore removes what the processes of lives before l have left here, of which a
// snapshot is covered: the rank goes on from no older one. It does not wait.
func (c *crew) forgetBefore(l control.Life) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing || l.Epoch <= max(c.covered[l.Rank], 1) { // there is none before the first
		return
	}
	c.covered[l.Rank] = l.Epoch
	c.wg.Go(func() { buddy.RemoveBefore(c.dir.path, l, "rank", "choices") })
}

// close ends what is left when no process is. It waits.
func (c *crew) close() {
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
	if c.control != nil {
		c.control.Close()
	}
	c.wg.Wait()
	if c.starter != nil {
		c.starter.close()
	}
	c.guard.close()
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
	if c.null != nil {
		c.null.Close()
	}
	c.dir.remove()
}
