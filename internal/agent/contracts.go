package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/exit"
	"github.com/mpiv/mpiv/sensors"
)

// Contracts is what the links between the hosts of a job promise, and how they do.
type Contracts struct {
	Mode  string             `json:"mode"` // "learn" or "enforce"
	Links []sensors.Standing `json:"links"`
}

// thresholds is the job's, with its hosts called as links call them. They must make sense,
// and there must be a watch that goes by them.
func (a *Agent) thresholds(mode sensors.Mode) ([]sensors.Threshold, error) {
	all := slices.Clone(a.job.Thresholds)
	for i := range all {
		t := &all[i]
		if err := a.checkThreshold(t, mode); err != nil {
			return nil, &exit.Error{Code: codeUsage, Err: fmt.Errorf("--contract %v: %w", a.job.Thresholds[i], err)}
		}
	}
	return all, nil
}

func (a *Agent) checkThreshold(t *sensors.Threshold, mode sensors.Mode) error {
	switch {
	case !a.leads():
		return a.unwatched()
	case mode == sensors.Off:
		return errors.New("--contracts off has nothing watch the links: leave one of the two out")
	case t.Network != "":
		return fmt.Errorf("a link is judged as a whole, over whatever networks it goes: leave out @%s", t.Network)
	}
	for _, name := range []*string{&t.From, &t.To} {
		if err := a.resolveHost(name); err != nil {
			return err
		}
	}
	if t.From == t.To && t.From != "*" {
		return errors.New("ranks of one host talk to each other over no link: want two hosts")
	}
	return nil
}

// unwatched says why nothing watches the links of the job.
func (a *Agent) unwatched() error {
	if len(busyHosts(a.hosts)) < 2 {
		return errors.New("the job is on one host, and so has no links between hosts")
	}
	return fmt.Errorf("nothing watches the links of a job with --survive %s: it takes ranks that can move (--survive moves or crashes)", a.job.Options.Survive)
}

// resolveHost makes name, of a host with or without its user, what the job calls that
// host; * it leaves.
func (a *Agent) resolveHost(name *string) error {
	if *name == "*" {
		return nil
	}
	var names []string
	if *name = a.called(*name); a.hostNamed(*name) != nil {
		return nil
	}
	for _, h := range a.hosts {
		names = append(names, h.name)
	}
	return fmt.Errorf("the job has no host %s: its hosts are %s", *name, strings.Join(names, ", "))
}

// contractsAsked answers with what links promise.
func (a *Agent) contractsAsked(reply chan<- Answer) {
	if a.contracts == nil {
		reply <- Answer{Error: fmt.Sprintf("nothing watches the links of job %s: it takes several hosts, ranks that can move (--survive moves or crashes), and not --contracts off", a.job.Name)}
		return
	}
	mode, _ := a.contractMode() // it was read before
	reply <- Answer{Contracts: &Contracts{Mode: mode.String(), Links: a.contracts.Standings(time.Now())}}
}

// newsTold is how many links that break their contracts at a time, or keep them again, have
// a line each.
const newsTold = 4

// linkNews tells of links of which the same is to be told at a time.
type linkNews struct {
	a     *Agent
	what  string
	count int
}

func (n *linkNews) tell(b sensors.Breach) {
	if n.count++; n.count <= newsTold {
		n.a.warn("%s: %v", n.what, b)
	} else {
		n.a.detail("%s: %v", n.what, b)
	}
}

// end tells how many there were besides.
func (n *linkNews) end() {
	if more := n.count - newsTold; more > 0 {
		n.a.warn("%s: %d links more; mpivrun contracts %s lists all", n.what, more, n.a.job.Name)
	}
}
