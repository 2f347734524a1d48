package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/waits"
)

// A Question is what mpivrun asks about a running job, as a line of JSON over
// the job's second socket; the answer is one line too.
type Question struct {
	Op string // "ps", "explain" or "abort"
}

// An Answer to a Question. What does not belong to it is empty.
type Answer struct {
	Error string `json:",omitempty"`

	Job         *Status            `json:",omitempty"` // ps
	Explanation *waits.Explanation `json:",omitempty"` // explain
	Proven      bool               `json:",omitempty"` // the deadlock in Explanation was seen twice
	Silent      []int              `json:",omitempty"` // ranks whose process did not answer in time
}

// A Status is a job at a glance.
type Status struct {
	Name      string
	PID       int    // of the agent
	Host      string // where the agent is
	Program   string // the first one's command line
	Since     time.Time
	State     string // "starting", "running" or "ending"
	Ranks     int
	Processes []ProcessStatus
}

// A ProcessStatus is one process of a job at a glance.
type ProcessStatus struct {
	Host  string
	PID   int
	Ranks []int
	State string // "starting", "running", "finished" or "exited"
	Exit  string `json:",omitempty"` // how it ended
	Doing map[int]string
}

// questionTime is what a question may take, asking and answering.
const questionTime = 3 * time.Second

// serveQuestion answers one question.
func (a *Agent) serveQuestion(c *net.UnixConn) {
	c.SetDeadline(time.Now().Add(questionTime))
	var q Question
	if json.NewDecoder(c).Decode(&q) != nil {
		return
	}
	reply := make(chan Answer, 1)
	a.post(func() { a.answer(q, reply) })
	ans := Answer{Error: "the job has ended"}
	select {
	case ans = <-reply:
	case <-a.done:
		select {
		case ans = <-reply: // it was the last thing that the loop did
		default:
		}
	}
	json.NewEncoder(c).Encode(ans)
}

// answer answers q, once.
func (a *Agent) answer(q Question, reply chan<- Answer) {
	switch q.Op {
	case "ps":
		a.ask(func(reports []control.Report, silent []*process) {
			reply <- Answer{Job: a.status(reports), Silent: ranksOf(silent)}
		})
	case "explain":
		a.lookTwice(func(e waits.Explanation, silent []*process, proven, _ bool) {
			reply <- Answer{Explanation: &e, Proven: proven, Silent: ranksOf(silent)}
		})
	case "abort":
		a.fail(verdict{code: 1, text: "the job was ended by mpivrun abort"})
		reply <- Answer{}
	default:
		reply <- Answer{Error: fmt.Sprintf("unknown question %q: mpivrun here and there are of different versions", q.Op)}
	}
}

func ranksOf(ps []*process) []int {
	var all []int
	for _, p := range ps {
		all = append(all, p.ranks...)
	}
	return all
}

// status is the job, with what reports tell of its ranks.
func (a *Agent) status(reports []control.Report) *Status {
	first := a.job.Programs[0]
	s := &Status{
		Name: a.job.Name, PID: os.Getpid(), Host: a.job.Host, Since: a.since, State: "starting",
		Program: strings.Join(append([]string{first.Path}, first.Args...), " "),
	}
	if a.toldStart || a.toldRun && a.ready == 0 {
		s.State = "running"
	}
	if a.ending {
		s.State = "ending"
	}
	doing := waits.Doing(time.Now(), reports)
	for _, p := range a.processes {
		ps := ProcessStatus{Host: p.host.name, PID: p.pid, Ranks: p.ranks, State: "starting", Doing: map[int]string{}}
		s.Ranks += len(p.ranks)
		switch {
		case p.exited:
			ps.State, ps.Exit = "exited", ending(p.status)
		case p.allFinished():
			ps.State = "finished"
		case p.started && (p.hello == nil || a.toldStart):
			ps.State = "running"
		}
		for _, r := range p.ranks {
			if text, ok := doing[r]; ok {
				ps.Doing[r] = text
			}
		}
		s.Processes = append(s.Processes, ps)
	}
	return s
}

// Ask puts q to the agent of the job in dir.
func Ask(dir string, q Question) (Answer, error) {
	var ans Answer
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(dir, askName), Net: "unix"})
	if err != nil {
		return ans, fmt.Errorf("ask job %s: %w", filepath.Base(dir), err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(questionTime))
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return ans, fmt.Errorf("ask job %s: %w", filepath.Base(dir), err)
	}
	if err := json.NewDecoder(c).Decode(&ans); err != nil {
		return ans, fmt.Errorf("job %s did not answer: %w", filepath.Base(dir), err)
	}
	if ans.Error != "" {
		return ans, errors.New(ans.Error)
	}
	return ans, nil
}
