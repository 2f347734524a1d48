package crew

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/control"
)

// A child of a crew is one process on this host.
type child struct {
	Process

	files   []*os.File  // what it gets as 0, 1 and 2
	ours    []*os.File  // those of them that were made for it, closed here once it is started
	readers [2]*os.File // what the pumps read
	pumps   sync.WaitGroup

	mu      sync.Mutex // guards what follows
	proc    *os.Process
	reaped  bool
	link    *link  // its connection, once it has said Hello
	speaker int    // the process at the other end of that; 0: not known
	ponging uint64 // the last ping that it has answered
	start   bool   // it has been told Start, and has not ended its connection
}

// Who names a process for people by its ranks: "rank 4", "ranks 4-7".
func Who(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "a spare process"
	case 1:
		return "rank " + Label(ranks)
	}
	return "ranks " + Label(ranks)
}

// Label is "4" or "4-7", or "spare" of none.
func Label(ranks []int) string {
	switch len(ranks) {
	case 0:
		return "spare"
	case 1:
		return strconv.Itoa(ranks[0])
	}
	return fmt.Sprintf("%d-%d", ranks[0], ranks[len(ranks)-1])
}

// kill sends sig to the process and to what it has started in its group. It
// does nothing before the process runs and after it has ended.
func (m *child) kill(sig syscall.Signal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc != nil && !m.reaped {
		syscall.Kill(-m.proc.Pid, sig)
	}
}

// send hands msg to the process; false if it has not said Hello, or does not
// read.
func (m *child) send(msg control.Message) bool {
	m.mu.Lock()
	l := m.link
	m.mu.Unlock()
	if l == nil || !l.send(msg) {
		return false
	}
	if msg.Start != nil {
		m.mu.Lock()
		m.start = true
		m.mu.Unlock()
	}
	return true
}

// leave is told that the process has ended its connection.
func (m *child) leave() {
	m.mu.Lock()
	m.start = false
	m.mu.Unlock()
}

// begun is true if the process has been told Start, before which it awaits nothing
// else, and has its connection.
func (m *child) begun() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.start
}

// is is true if pid is the process, which has not been reaped.
func (m *child) is(pid int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc != nil && !m.reaped && m.proc.Pid == pid
}

// pid is the process's number; 0 before it is known.
func (m *child) pid() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.proc == nil {
		return 0
	}
	return m.proc.Pid
}

// wait returns when the process has ended.
func (m *child) wait() syscall.WaitStatus {
	// The process is seen to end first and reaped under the lock, so that kill
	// never signals a number that belongs to somebody else by now.
	for {
		err := unix.Waitid(unix.P_PID, m.proc.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reaped = true
	state, err := m.proc.Wait()
	if err != nil {
		panic(fmt.Sprintf("wait for process %d: %v", m.proc.Pid, err)) // nobody else may reap our children
	}
	return state.Sys().(syscall.WaitStatus)
}

// drain waits until what the process wrote has been passed on.
func (m *child) drain() {
	for i, r := range m.readers {
		if r != nil {
			m.Output[i].Leave(r)
		}
	}
	m.pumps.Wait()
}

// closeOurs closes what was made for m to inherit.
func (m *child) closeOurs() {
	for _, f := range m.ours {
		f.Close()
	}
	m.ours = nil
}
