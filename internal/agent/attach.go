package agent

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/door"
	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/internal/rundir"
)

// A Viewer shows a job that outlives its head, and passes on input and signals. The job
// does not end with it.
type Viewer struct {
	Stdin  *os.File // nil: there is none
	Stdout io.Writer
	Stderr io.Writer

	pass     control.Pass
	identity *identity.Identity
	seen     map[stdio]int64
	unshown  error // why what the job prints cannot be shown

	name    string
	watches bool // another brings the input
	met     bool // a head has had it show the job

	line atomic.Pointer[control.Conn[control.FromFront]] // to the head; nil: there is none

	mu     sync.Mutex // guards what follows
	more   sync.Cond
	input  []byte // the last that was read
	read   int64  // bytes that were
	sent   int64  // of them
	taken  int64
	eof    bool
	typed  bool // it has begun to be sent
	closed bool

	signals   []control.Signal // that no head has passed on yet
	signalled int              // how many there were
	interrupt atomic.Int32     // the signal by which showing ends; 0: it does not
}

// inputKept is how much of the input is kept to be sent again to another head: more than
// can be on its way.
const inputKept = 2 << 20

// inputAhead is how much may be on its way to the head.
const inputAhead = 256 << 10

// Attach shows the job in dir until it has ended, and returns its exit code. It is called
// once.
func (v *Viewer) Attach(dir string) (code int, err error) {
	if text, err := rundir.Rest(dir); err == nil {
		return v.showRest(dir, text)
	}
	ans, err := Ask(dir, Question{Op: "attach"})
	for since := time.Now(); (errors.Is(err, ErrNoHead) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded)) && time.Since(since) < headless(control.CrashPatient); {
		time.Sleep(100 * time.Millisecond) // there is no head, for the moment
		ans, err = Ask(dir, Question{Op: "attach"})
		if err := v.interrupted(); err != nil {
			return 1, err
		}
	}
	if err != nil {
		return 1, err
	}
	if ans.Pass == nil {
		return 1, fmt.Errorf("job %s ends with its mpivrun, which shows it", filepath.Base(dir))
	}
	v.pass = *ans.Pass
	if v.identity, err = v.pass.Credentials.Open(); err != nil {
		return 1, err
	}
	v.seen, v.name = map[stdio]int64{}, rand.Text()
	v.more.L = &v.mu
	defer func() {
		v.mu.Lock()
		v.closed = true
		v.more.Broadcast()
		v.mu.Unlock()
	}()
	silence := time.Duration(v.pass.Silence)
	patience := quick(silence)
	for last := time.Now(); ; {
		code, ended, met := v.session(silence, patience)
		if v.unshown != nil {
			return code, fmt.Errorf("what job %s prints cannot be shown: %w; the job goes on, and mpivrun attach shows it", v.pass.Job, v.unshown)
		}
		if ended {
			return code, nil
		}
		if err := v.interrupted(); err != nil && !met {
			return 1, err
		}
		patience = min(2*patience, 3*quick(silence))
		if met {
			last, patience = time.Now(), quick(silence)
		}
		if time.Since(last) > headless(silence) {
			return 1, fmt.Errorf("job %s: no agent that leads it is reached from here. It has ended, as too many of those that decide are lost, or this host is cut off and it goes on elsewhere: see mpivrun attach on its other hosts", v.pass.Job)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// Signal passes sig on, at once or when there is a head. Who asks twice to be interrupted while there
// is none is.
func (v *Viewer) Signal(sig syscall.Signal) {
	v.mu.Lock()
	l := v.line.Load()
	ends := func(s syscall.Signal) bool { return s == syscall.SIGINT || s == syscall.SIGTERM }
	if l == nil && ends(sig) && slices.ContainsFunc(v.signals, func(s control.Signal) bool { return ends(syscall.Signal(s.Signal)) }) {
		v.interrupt.Store(int32(sig))
	}
	v.signalled++
	s := control.Signal{Signal: int(sig), N: v.signalled}
	if len(v.signals) < signalsKept { // also where there is a head: it may be lost before it has read this
		v.signals = append(v.signals, s)
	}
	v.mu.Unlock()
	if l != nil {
		l.Send(control.FromFront{Signal: &s})
	}
}

// signalsKept is how many signals wait for a head.
const signalsKept = 16

// interrupted is why the job is not shown any more, if Signal was asked so; nil: it was not.
func (v *Viewer) interrupted() error {
	sig := syscall.Signal(v.interrupt.Load())
	if sig == 0 {
		return nil
	}
	return &exit.Error{Code: exit.Signal + int(sig), Err: fmt.Errorf("no agent leads the job for the moment, so nobody was told of signal %d (%v); mpivrun attach shows the job, if it goes on", sig, sig)}
}

// session is one connection to a head: met tells whether there was one.
func (v *Viewer) session(silence, patience time.Duration) (code int, ended, met bool) {
	reached, stop := v.reach(patience)
	defer stop()
	for c := range reached {
		line := &patient.Conn{Conn: c}
		from, told := control.NewConn[control.FromFront](line), control.NewConn[control.ToFront](line)
		c.SetDeadline(time.Now().Add(door.ShakeTime))
		var first control.ToFront
		err := from.Send(control.FromFront{Attach: &control.Attach{Viewer: v.name, Types: v.Stdin != nil && !v.watches, Again: v.met}})
		if err == nil {
			first, err = told.Receive()
		}
		if err != nil || first.Attached == nil {
			c.Close() // it is not the head any more
			continue
		}
		stop()
		v.met = true
		c.SetDeadline(time.Time{})
		defer line.Wait(silence)()
		code, ended = v.follow(from, told, *first.Attached, silence)
		c.Close()
		return code, ended, true
	}
	return 0, false, false
}

// reach connects to those voters that lead: to one, but for moments. All are asked at once, as one that is lost
// does not answer. Stop ends what is under way, closes who was not received, and waits.
func (v *Viewer) reach(patience time.Duration) (reached <-chan *tls.Conn, stop func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	all := make(chan *tls.Conn, len(v.pass.Voters))
	var asked sync.WaitGroup
	for _, to := range v.pass.Voters {
		asked.Go(func() {
			if c, err := door.Reach(ctx, v.identity, control.ProtocolFront, to); err == nil {
				all <- c
			}
		})
	}
	var closed sync.WaitGroup
	closed.Go(func() {
		asked.Wait()
		close(all)
	})
	return all, func() {
		cancel()
		closed.Wait()
		for c := range all {
			c.Close()
		}
	}
}

// follow shows what comes until the connection ends.
func (v *Viewer) follow(from *control.Conn[control.FromFront], told *control.Conn[control.ToFront], at control.Attached, silence time.Duration) (code int, ended bool) {
	v.mu.Lock()
	v.line.Store(from)
	signals := slices.Clone(v.signals)
	v.mu.Unlock()
	for _, s := range signals {
		from.Send(control.FromFront{Signal: &s})
	}
	over := make(chan struct{})
	var senders sync.WaitGroup
	defer senders.Wait()
	defer func() {
		v.line.Store(nil)
		close(over)
		from.Close()
		v.mu.Lock()
		v.more.Broadcast()
		v.mu.Unlock()
	}()
	senders.Go(func() {
		tick := alarm.NewTicker(control.Beat(silence))
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				from.Send(control.FromFront{Alive: &control.Alive{}})
			case <-over:
				return
			}
		}
	})
	if v.watches = at.Other; at.Reads && v.Stdin != nil {
		v.mu.Lock()
		if !v.typed { // what is read here goes on where others have ended
			v.typed = true
			v.read += at.Input
			if isTerminal(v.Stdin) && !inForeground(v.Stdin) {
				v.eof = true // reading would stop us
			} else {
				go v.readInput() // ends with this operating-system process: a terminal cannot be left off
			}
		}
		v.sent, v.taken = min(max(at.Input, v.read-int64(len(v.input))), v.read), at.Input
		v.more.Broadcast()
		v.mu.Unlock()
		senders.Go(func() { v.sendInput(from, over) })
	}
	for {
		m, err := told.Receive()
		switch {
		case err != nil:
			return 0, false
		case m.Text != nil:
			if v.unshown = v.show(*m.Text); v.unshown != nil {
				return 1, true
			}
			from.Send(control.FromFront{Shown: &control.Shown{N: 1}})
		case m.Hole != nil:
			v.show(control.Text{Stderr: true, Data: []byte("mpivrun: this was cut off from the agent that leads: what the job printed meanwhile was shown elsewhere, and some of it not here\n")})
		case m.Voters != nil:
			v.look(m.Voters.Voters)
		case m.Taken != nil:
			v.mu.Lock()
			v.taken += int64(m.Taken.Bytes)
			v.more.Broadcast()
			v.mu.Unlock()
		case m.Heeded != nil:
			v.mu.Lock()
			v.signals = slices.DeleteFunc(v.signals, func(s control.Signal) bool { return s.N <= m.Heeded.N })
			v.mu.Unlock()
		case m.Ended != nil:
			return m.Ended.Code, true
		}
	}
}

// look is told where to look for the next head: there first, and then where it was before, as who
// says this may be cut off from those who have elected another already.
func (v *Viewer) look(voters []control.Voter) {
	voters = slices.Clone(voters)
	for _, w := range v.pass.Voters {
		if !slices.ContainsFunc(voters, func(x control.Voter) bool { return x.Agent == w.Agent }) {
			voters = append(voters, w)
		}
	}
	v.pass.Voters = voters
}

// show shows what was not shown before. Where nobody reads it that is no error.
func (v *Viewer) show(t control.Text) error {
	if t.End != 0 {
		of := stdio{t.Process, t.Stderr}
		if t.End <= v.seen[of] {
			return nil
		}
		v.seen[of] = t.End
	}
	w := v.Stdout
	if t.Stderr {
		w = v.Stderr
	}
	if _, err := w.Write(t.Data); err != nil && !errors.Is(err, syscall.EPIPE) {
		return err
	}
	return nil
}

// readInput reads what the job is to read.
func (v *Viewer) readInput() {
	buf := make([]byte, 32<<10)
	for {
		n, err := v.Stdin.Read(buf)
		v.mu.Lock()
		v.input = append(v.input, buf[:n]...)
		if over := len(v.input) - inputKept; over > 0 {
			v.input = append([]byte(nil), v.input[over:]...)
		}
		v.read += int64(n)
		v.eof = err != nil
		v.more.Broadcast()
		for v.read-v.taken > inputAhead && !v.closed {
			v.more.Wait()
		}
		v.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// sendInput sends what was read and not sent, until the connection ends.
func (v *Viewer) sendInput(to *control.Conn[control.FromFront], over <-chan struct{}) {
	for {
		v.mu.Lock()
		for v.sent == v.read && !v.eof {
			select {
			case <-over:
				v.mu.Unlock()
				return
			default:
			}
			v.more.Wait()
		}
		data := append([]byte(nil), v.input[len(v.input)-int(v.read-v.sent):]...)
		v.sent = v.read
		end := v.eof
		v.mu.Unlock()
		if to.Send(control.FromFront{Input: &control.FrontInput{Data: data, End: end}}) != nil || end {
			return
		}
	}
}

// showRest shows what a job has left that ended while nobody looked, and removes it.
func (v *Viewer) showRest(dir string, text []byte) (int, error) {
	var e endedJob
	if err := json.Unmarshal(text, &e); err != nil {
		return 1, errors.New("what the job has left cannot be read: is it of another version of mpivrun?")
	}
	v.seen = map[stdio]int64{}
	for _, t := range e.Texts {
		if err := v.show(t); err != nil {
			return 1, fmt.Errorf("what the job has left cannot be shown: %w; it is kept, and mpivrun attach shows it", err)
		}
	}
	return e.Code, os.RemoveAll(dir)
}
