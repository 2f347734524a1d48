// Package witness is the page on which the processes of a host and its agent say how many
// choices there were, and how many of them are known on another host.
package witness

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	pageName = "witness"
	bellName = "witness-bell"
	pageLen  = 4 << 10
	magic    = 0x31_74_69_77_76_69_70_6d // "mpivwit1" on a little-endian host
)

// Words of the page, each in a cache line of its own.
const (
	magicWord     = 0
	recordedWord  = 64
	witnessedWord = 128
	filesWord     = 192
	asleepWord    = 256
	stillWord     = 320
)

// Alone is a Witnessed that covers whatever is recorded: there is no other host.
const Alone = math.MaxUint64

// A Page is one end of it. All methods may be called by any goroutine.
type Page struct {
	mem  []byte
	bell *os.File // a pipe: what is written there wakes the agent
}

// Create makes the page in a directory, for the agent.
func Create(dir string) (*Page, error) {
	if err := unix.Mkfifo(filepath.Join(dir, bellName), 0o600); err != nil {
		return nil, fmt.Errorf("make %s: %w", filepath.Join(dir, bellName), err)
	}
	path := filepath.Join(dir, pageName)
	first := make([]byte, pageLen)
	*(*uint64)(unsafe.Pointer(&first[magicWord])) = magic
	if err := os.WriteFile(path+".new", first, 0o600); err != nil {
		return nil, err
	}
	if err := os.Rename(path+".new", path); err != nil { // whole, or not there
		return nil, err
	}
	return Open(dir)
}

// Open opens the page that the agent has made in dir.
func Open(dir string) (*Page, error) {
	f, err := os.OpenFile(filepath.Join(dir, pageName), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Size() != pageLen {
		return nil, fmt.Errorf("%s is not a page of %d bytes: %w", f.Name(), pageLen, errors.Join(err, os.ErrInvalid))
	}
	p := new(Page)
	if p.mem, err = unix.Mmap(int(f.Fd()), 0, pageLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	if p.word(magicWord).Load() != magic {
		err = fmt.Errorf("%s: %w", f.Name(), os.ErrInvalid)
	} else {
		p.bell, err = os.OpenFile(filepath.Join(dir, bellName), os.O_RDWR|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		unix.Munmap(p.mem)
		return nil, err
	}
	return p, nil
}

func (p *Page) word(off int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&p.mem[off])) }

// Still asks that nobody records a choice for a moment, or ends that. For the agent.
func (p *Page) Still(on bool) {
	n := uint64(0)
	if on {
		n = 1
	}
	p.word(stillWord).Store(n)
}

// Ready is called before a choice is recorded: it waits while Still is asked, but not for
// an agent that does not go on.
func (p *Page) Ready() {
	if p.word(stillWord).Load() == 0 {
		return
	}
	for since := time.Now(); p.word(stillWord).Load() != 0 && time.Since(since) < stillMost; {
		runtime.Gosched()
	}
}

// stillMost is many times what the agent needs.
const stillMost = 2 * time.Millisecond

// Record counts n choices more. They are in their file.
func (p *Page) Record(n int) { p.word(recordedWord).Add(uint64(n)) }

// Recorded is how many choices there were on this host.
func (p *Page) Recorded() uint64 { return p.word(recordedWord).Load() }

// Witnessed is how many of them are known on another host.
func (p *Page) Witnessed() uint64 { return p.word(witnessedWord).Load() }

// Witness says so. It is for the agent.
func (p *Page) Witness(n uint64) { p.word(witnessedWord).Store(n) }

// AddFile says that there is a new file of choices.
func (p *Page) AddFile() { p.word(filesWord).Add(1) }

// Files is how often AddFile was called.
func (p *Page) Files() uint64 { return p.word(filesWord).Load() }

// Wake ends the agent's Sleep, this or the next. It is a load while the agent is awake.
func (p *Page) Wake() {
	if asleep := p.word(asleepWord); asleep.Load() != 0 && asleep.CompareAndSwap(1, 0) {
		p.bell.Write([]byte{1}) // a full pipe wakes as well
	}
}

// Ring ends the agent's Sleep though a process was stopped, or killed, in the midst of Wake: then no other Wake does. For the agent.
func (p *Page) Ring() { p.bell.Write([]byte{1}) }

// Sleep waits for Wake or Ring. False after Close.
func (p *Page) Sleep() bool {
	p.word(asleepWord).Store(1)
	var buf [64]byte
	_, err := p.bell.Read(buf[:])
	p.word(asleepWord).Store(0)
	return !errors.Is(err, os.ErrClosed)
}

// Close ends Sleep. The page stays mapped: a late reader of it must find it.
func (p *Page) Close() error { return p.bell.Close() }
