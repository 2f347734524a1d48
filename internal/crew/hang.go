package crew

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/plain"
)

// A crew looks at its processes and tells what stands still and what goes on again. It counts
// time by its own looks, so that what stood still with it does not count.
const (
	hangLook = 100 * time.Millisecond // between two looks

	// A process that takes no processor time, and is not just waiting for some, is
	// asked for a word after idleTime. It is hung if it has none for muteTime.
	idleTime = 2 * time.Second
	muteTime = 5 * time.Second
)

// A pulse is what a crew knows of how one process lives. Owned by lookForHangs.
type pulse struct {
	stat  *os.File      // its /proc/PID/stat: later it is an error, and never another process
	ticks uint64        // of processor time
	idle  time.Duration // for which it took none
	mute  time.Duration // of that, since it was asked for a word
	asked uint64        // the last ping; 0: none since it took time
	told  string        // why it stands still, as the owner knows it; empty: it goes on
	cold  bool          // its control group is frozen, when that was last looked at
}

// lookForHangs tells the owner which processes stand still, until the crew closes.
func (c *Crew) lookForHangs() {
	pulses := map[*child]*pulse{}
	defer func() {
		for _, p := range pulses {
			p.stat.Close()
		}
	}()
	tick := alarm.NewTicker(hangLook)
	defer tick.Stop()
	buf := make([]byte, 1024)
	pings := uint64(0)
	for {
		select {
		case <-tick.C:
		case <-c.stopping:
			return
		}
		for _, m := range c.all() {
			p := pulses[m]
			if p == nil {
				pid := m.speaks()
				if pid == 0 {
					continue
				}
				stat, err := os.Open(fmt.Sprintf("/proc/%d/stat", pid))
				if err != nil {
					continue // it has ended, or there is no /proc
				}
				p = &pulse{stat: stat}
				pulses[m] = p
			}
			n, err := p.stat.ReadAt(buf, 0)
			if err != nil && err != io.EOF { // it has ended
				p.stat.Close()
				delete(pulses, m)
				continue
			}
			state, ticks, ok := parseStat(buf[:n])
			if !ok {
				continue
			}
			why := p.look(state, ticks, func() bool { return frozen(m.speaks()) })
			switch {
			case p.idle < idleTime || state == 'T':
				p.asked, p.mute = 0, 0
			case !m.begun(): // it awaits Start, and nothing else
			case p.asked == 0:
				pings++
				p.asked, p.mute = pings, 0
				m.send(control.Message{Ping: &control.Ping{ID: pings}})
			case m.ponged() == p.asked:
				p.idle, p.mute, p.asked = 0, 0, 0
			default:
				if p.mute += hangLook; p.mute >= muteTime && why == "" {
					why = fmt.Sprintf("does not answer, and has taken no processor time for %v", p.idle)
				}
			}
			if (why == "") != (p.told == "") {
				p.told = why
				c.owner.Stopped(m.Index, why)
			}
		}
	}
}

// look takes what /proc says now, and tells why the process stands still; empty: it may
// well go on. frozen is asked where that can only be.
func (p *pulse) look(state byte, ticks uint64, frozen func() bool) (why string) {
	switch {
	case state == 'T':
		p.ticks, p.idle = ticks, 0
		return "is stopped"
	case ticks != p.ticks, state == 'R', state == 't': // it runs, or would, or is in a debugger
		p.ticks, p.idle, p.cold = ticks, 0, false
		return ""
	}
	if p.idle += hangLook; p.idle%(2*hangLook) == 0 {
		p.cold = frozen()
	}
	if p.cold {
		return "is frozen"
	}
	return ""
}

// Ticks is the processor time that each process has taken, by index, in ticks of /proc/PID/stat.
// Those that have not said Hello, or have ended, are not in it.
func (c *Crew) Ticks() map[int]uint64 {
	all := map[int]uint64{}
	for _, m := range c.all() {
		pid := m.speaks()
		if pid == 0 {
			continue
		}
		stat, err := plain.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue
		}
		if _, ticks, ok := parseStat(stat); ok {
			all[m.Index] = ticks
		}
	}
	return all
}

// parseStat reads /proc/PID/stat.
func parseStat(text []byte) (state byte, ticks uint64, ok bool) {
	// The second field is the program's name in parentheses, which may have any in it.
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return 0, 0, false
	}
	fields := bytes.Fields(text[i+1:])
	if len(fields) < 13 || len(fields[0]) != 1 {
		return 0, 0, false
	}
	user, err1 := strconv.ParseUint(string(fields[11]), 10, 64)
	system, err2 := strconv.ParseUint(string(fields[12]), 10, 64)
	return fields[0][0], user + system, err1 == nil && err2 == nil
}

// frozen tells whether the process is in a control group that is frozen, of version 1
// or 2.
func frozen(pid int) bool {
	groups, err := plain.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(groups)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(part) < 3 || part[2] == "/": // the first group cannot be frozen
		case part[0] == "0":
			for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
				text, err := plain.ReadFile(filepath.Join(root, part[2], "cgroup.events"))
				if err == nil && strings.Contains(string(text), "frozen 1") {
					return true
				}
			}
		case part[1] == "freezer":
			text, err := plain.ReadFile(filepath.Join("/sys/fs/cgroup/freezer", part[2], "freezer.state"))
			if err == nil && strings.TrimSpace(string(text)) == "FROZEN" {
				return true
			}
		}
	}
	return false
}

// peerOf is the process at the other end of c, as this host numbers it; 0: not known.
func peerOf(c *net.UnixConn) (pid int) {
	if raw, err := c.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				pid = int(cred.Pid)
			}
		})
	}
	return pid
}

// spoken is told which process has said Hello.
func (m *child) spoken(pid int) {
	m.mu.Lock()
	m.speaker = pid
	m.mu.Unlock()
}

// speaks is the process that has said Hello; 0: none has, or it has ended its connection.
func (m *child) speaks() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reaped {
		return 0
	}
	return m.speaker
}

// pong is told that the process has answered a ping.
func (m *child) pong(id uint64) {
	m.mu.Lock()
	m.ponging = id
	m.mu.Unlock()
}

// ponged is the last ping that the process has answered.
func (m *child) ponged() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ponging
}
