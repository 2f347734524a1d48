package agent

import (
	"bytes"
	"os"
	"path/filepath"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/topology"
)

// networksOf is where the processes of h listen.
func (a *Agent) networksOf(h *host) []control.Network {
	networks := h.networks
	if len(networks) == 0 {
		networks = []control.Network{{Class: topology.LAN, Address: a.hereAddress}}
	}
	if len(h.processes) > 1 {
		networks = append([]control.Network{{Class: topology.SameHost, Address: "127.0.0.1"}}, networks...)
	}
	return networks
}

// credentialsOf is who p is; nil where processes do not ask each other.
func (a *Agent) credentialsOf(p *process) (*identity.Credentials, error) {
	if a.head == nil || a.job.Options.Insecure {
		return nil, nil
	}
	c, err := a.authority.Issue(identity.Process, p.index)
	return &c, err
}

// runElsewhere has the agents of other hosts start their processes: of those that are behind address translations, or
// of the others.
func (a *Agent) runElsewhere(apart bool) error {
	for _, h := range a.hosts {
		if h.here || len(h.processes) == 0 || h.apart() != apart {
			continue
		}
		if err := a.runOn(h); err != nil {
			return err
		}
		for _, i := range h.processes {
			if p := a.processes[i]; p.reads {
				a.feed(p)
			}
		}
	}
	return nil
}

// runOn has the agent of h start its processes.
func (a *Agent) runOn(h *host) error {
	run := control.Run{Token: a.token, Networks: a.networksOf(h), Options: a.job.Options, Bind: a.job.Bind, Metrics: a.job.Metrics}
	if h.apart() {
		run.Options.Relays = a.relays()
	}
	for _, i := range h.processes {
		s, err := a.spawnOf(a.processes[i])
		if err != nil {
			return err
		}
		run.Processes = append(run.Processes, s)
	}
	h.place.(*remote).order(control.ToAgent{Run: &run})
	return nil
}

// spawnOf is how p is started on another host.
func (a *Agent) spawnOf(p *process) (s control.Spawn, err error) {
	c, err := a.credentialsOf(p)
	dir := p.prog.Dir
	if !filepath.IsAbs(dir) {
		dir = filepath.Join(a.job.Dir, dir)
	}
	return control.Spawn{
		Index: p.index, Ranks: p.ranks, Path: p.prog.Path, Args: p.prog.Args, Env: p.prog.Env, Dir: dir,
		Input: p.reads, Credentials: c,
	}, err
}

// feed sends the job's standard input to p, on another host.
func (a *Agent) feed(p *process) {
	send := func(data []byte, end bool) {
		p.host.place.(*remote).tell(control.ToAgent{Input: &control.Output{Process: p.index, Data: data, End: end}})
	}
	if isTerminal(a.job.Stdin) && !inForeground(a.job.Stdin) {
		send(nil, true)
		return // reading would stop us
	}
	r, w, err := os.Pipe()
	if err != nil {
		a.warn("the standard input of %s: %v", p.who(), err)
		return
	}
	a.feeding = newWindow()
	a.wg.Go(func() { typeOn(a.job.Stdin, w, a.done) })
	a.wg.Go(func() {
		defer r.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if !a.feeding.take(n) {
					return
				}
				send(bytes.Clone(buf[:n]), false)
			}
			if err != nil {
				select {
				case <-a.done: // the input may go on, under another head
				default:
					send(nil, true)
				}
				return
			}
		}
	})
}
