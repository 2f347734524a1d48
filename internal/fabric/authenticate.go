package fabric

import (
	"errors"
	"fmt"

	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
	"github.com/mpiv/mpiv/transport"
)

// ErrStranger is why a connection is refused whose other end does not prove to be a
// process of the job.
var ErrStranger = errors.New("no process of this job: refused")

// vouch looks who the other end of a connection is, and closes it if it is nobody.
func (f *Fabric) vouch(g *engine.Greeter, conn transport.Conn, class topology.Class) (process int, err error) {
	if f.opt.Authenticate == nil {
		return engine.Anybody, nil
	}
	if process, err = f.prove(conn, class); err != nil {
		conn.Close()
		return engine.Anybody, err
	}
	g.Vouched(process)
	return process, nil
}

// visitsMost is how many connections of a process may be in their greeting: it dials each path once at a time.
const visitsMost = 32

var errVisits = errors.New("too many connections of this process are in their greeting")

// visit notes that a process is in a greeting, until leave.
func (f *Fabric) visit(process int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if process != engine.Anybody && f.visits[process] >= visitsMost {
		return errVisits
	}
	if f.visits == nil {
		f.visits = make(map[int]int)
	}
	f.visits[process]++
	return nil
}

func (f *Fabric) leave(process int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.visits[process]--; f.visits[process] == 0 {
		delete(f.visits, process)
	}
}

func (f *Fabric) prove(conn transport.Conn, class topology.Class) (process int, err error) {
	a, ok := conn.(transport.Authenticated)
	if !ok || a.Certificate() == nil {
		if class == topology.SameHost {
			return engine.Anybody, nil
		}
		return 0, fmt.Errorf("connection with %s over %v has no certificate: %w", conn.Peer(), class, ErrStranger)
	}
	process, err = f.opt.Authenticate(a.Certificate())
	if err != nil {
		return 0, fmt.Errorf("connection with %s: its certificate: %w: %w", conn.Peer(), err, ErrStranger)
	}
	return process, nil
}

// refusals is who was refused, guarded by Fabric.mu.
type refusals struct {
	strangers uint64
	named     map[string]bool
}

// refused notes that a connection was. Of who is not who it says it is the log
// tells once.
func (f *Fabric) refused(err error) {
	name := "stranger"
	impostor, ok := errors.AsType[*engine.ImpostorError](err)
	if ok {
		name = fmt.Sprintf("%d for %d", impostor.Proved, impostor.Claimed)
	} else if !errors.Is(err, ErrStranger) {
		f.opt.Log.Debug("no connection", "err", err)
		return
	}
	f.mu.Lock()
	f.strangers++
	first := !f.named[name]
	if first {
		if f.named == nil {
			f.named = make(map[string]bool)
		}
		f.named[name] = true // as many as there are certificates and processes
	}
	f.mu.Unlock()
	if first {
		f.opt.Log.Error("connection refused", "err", err)
	}
}

// Refused is how many connections were refused because their other end is no
// process of the job, or not the one it says it is.
func (f *Fabric) Refused() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.strangers
}
