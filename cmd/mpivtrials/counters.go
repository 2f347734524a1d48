//go:build linux

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A load is the bytes that an interface has received and sent.
type load struct{ in, out uint64 }

func (l load) both() uint64 { return l.in + l.out }

// parseInterfaces reads /proc/net/dev.
func parseInterfaces(text string) (map[string]load, error) {
	all := map[string]load{}
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue // a heading
		}
		f := strings.Fields(rest)
		if len(f) < 9 {
			return nil, fmt.Errorf("/proc/net/dev: %q has %d columns, want 16", strings.TrimSpace(line), len(f))
		}
		in, err := strconv.ParseUint(f[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/dev: %w", err)
		}
		out, err := strconv.ParseUint(f[8], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/dev: %w", err)
		}
		all[strings.TrimSpace(name)] = load{in, out}
	}
	return all, nil
}

// States of sockets in /proc/net/tcp and /proc/net/udp.
const (
	stateListen  = 0x0A // of TCP
	stateUnbound = 0x07 // of UDP: open, and connected to nobody
)

// parseSockets reads /proc/net/tcp, udp, or their twins of IPv6: the local
// addresses of sockets in the state.
func parseSockets(text string, state uint64) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Scan() // the heading
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 4 {
			return nil, fmt.Errorf("sockets: %q has %d columns", lines.Text(), len(f))
		}
		s, err := strconv.ParseUint(f[3], 16, 8)
		if err != nil {
			return nil, fmt.Errorf("sockets: %w", err)
		}
		if s != state {
			continue
		}
		a, err := parseSocket(f[1])
		if err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, lines.Err()
}

// parseSocket reads "0100020A:A14B": each word of the address in the order of
// this machine's bytes, the port as a number.
func parseSocket(s string) (netip.AddrPort, error) {
	ip, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(ip)
	if err != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, fmt.Errorf("sockets: %q is no address", s)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
	}
	a, ok := netip.AddrFromSlice(raw)
	p, err := strconv.ParseUint(port, 16, 16)
	if !ok || err != nil {
		return netip.AddrPort{}, fmt.Errorf("sockets: %q is no address", s)
	}
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}

// A reading is the bytes that a host's interfaces have carried, at a time.
type reading struct {
	at    time.Time
	bytes map[string]load
}

// A meter reads the interfaces of one host again and again.
type meter struct {
	mu       sync.Mutex // guards what follows
	readings []reading
	err      error

	stop context.CancelFunc
	done chan struct{}
}

// watch reads the interfaces of host each pause, until the meter is closed.
func watch(l *lab.Lab, host string, pause time.Duration) (*meter, error) {
	var file *os.File
	err := l.Do(host, func() (err error) { // it shows the namespace of who opened it
		file, err = os.Open("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &meter{stop: stop, done: make(chan struct{})}
	go m.loop(ctx, file, pause)
	return m, nil
}

func (m *meter) loop(ctx context.Context, file *os.File, pause time.Duration) {
	defer close(m.done)
	defer file.Close()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		r, err := read(file)
		m.mu.Lock()
		if err != nil {
			m.err = err
		} else {
			m.readings = append(m.readings, r)
		}
		m.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func read(file *os.File) (reading, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return reading{}, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return reading{}, err
	}
	all, err := parseInterfaces(string(text))
	return reading{time.Now(), all}, err
}

// all is what was read so far.
func (m *meter) all() ([]reading, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readings, m.err // readings are only ever appended
}

func (m *meter) close() { m.stop(); <-m.done }

// carried is how many bytes an interface carried from one time to another, of
// readings in their order.
func carried(rs []reading, name string, from, to time.Time) float64 {
	in, out, _ := carriedEachWay(rs, name, from, to)
	return in + out
}

// carriedEachWay is carried, for each direction, and how long the readings lie apart.
func carriedEachWay(rs []reading, name string, from, to time.Time) (in, out float64, long time.Duration) {
	var first, last *reading
	for i := range rs {
		if r := &rs[i]; !r.at.Before(from) && !r.at.After(to) {
			if first == nil {
				first = r
			}
			last = r
		}
	}
	if first == nil {
		return 0, 0, 0
	}
	a, b := first.bytes[name], last.bytes[name]
	return float64(b.in - a.in), float64(b.out - a.out), last.at.Sub(first.at)
}

// settled is when, from a time on, most of a host's traffic went over the SAN for a
// whole backWindow, and that was at least so many bytes: the end of that window. It is
// zero if that never was.
func settled(rs []reading, from time.Time, least float64) time.Time {
	for i, r := range rs {
		start := r.at.Add(-backWindow)
		if start.Before(from) {
			continue
		}
		in := rs[:i+1]
		if n := carried(in, "san", start, r.at); n >= least && n > carried(in, "lan", start, r.at) {
			return r.at
		}
	}
	return time.Time{}
}
