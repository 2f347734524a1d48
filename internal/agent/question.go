package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/rundir"
	"github.com/mpiv/mpiv/internal/waits"
)

// A Question is what mpivrun asks about a running job, as a line of JSON over
// the job's second socket; the answer is one line too. That to "watch" is followed
// by the job's events, a line each: those that tell how it stands, and then what
// happens, until it has ended or the other end closes the connection.
type Question struct {
	Op string // "ps", "watch", "explain", "contracts", "trace", "attach", "move", "drain", "cordon", "uncordon", "add" or "abort"

	Rank  int           `json:",omitempty"` // move: which
	For   time.Duration `json:",omitempty"` // trace: how long
	Host  string        `json:",omitempty"` // move: where to. Empty: wherever there is a spare process. drain and the like: which
	Slots int           `json:",omitempty"` // add: spare processes that the host gets. Zero means 1
}

// An Answer to a Question. What does not belong to it is empty.
type Answer struct {
	Error  string `json:",omitempty"`
	NoHead bool   `json:",omitempty"` // it is ErrNoHead

	Events      []events.Event     `json:",omitempty"` // ps: how the job stands; readings are the last of them
	Poll        bool               `json:",omitempty"` // watch: not from here; ask ps again and again
	Explanation *waits.Explanation `json:",omitempty"` // explain
	Audit       *events.Audit      `json:",omitempty"` // explain
	Proven      bool               `json:",omitempty"` // the deadlock in Explanation was seen twice
	Contracts   *Contracts         `json:",omitempty"` // contracts
	Moved       *Moved             `json:",omitempty"` // move: where the rank is now
	Decision    string             `json:",omitempty"` // drain, cordon, uncordon, add: what the policy says, for people,
	Host        string             `json:",omitempty"` //   and what the job calls the host
	Pass        *control.Pass      `json:",omitempty"` // attach: lets who shows the job in. Nil: mpivrun shows it
	Silent      []int              `json:",omitempty"` // ranks whose process did not answer in time
}

// Moved is where a rank is.
type Moved struct {
	Process int
	Host    string
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
	c.SetDeadline(time.Now().Add(q.time()))
	if q.Op == "watch" {
		a.serveWatch(c)
		return
	}
	if q.Op == "trace" {
		a.serveTrace(c, q)
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
	text, err := json.Marshal(ans)
	if err != nil {
		text, _ = json.Marshal(Answer{Error: "the answer cannot be told: " + err.Error()})
	}
	c.Write(append(text, '\n'))
}

// time is what the question may take. A move waits for a safe point, and who adds a host
// for what is started there.
func (q Question) time() time.Duration {
	switch q.Op {
	case "move":
		return moveTime
	case "add":
		return addTime
	}
	return questionTime
}

// changes tells whether the question is an order.
func (q Question) changes() bool {
	switch q.Op {
	case "move", "drain", "cordon", "uncordon", "add", "abort":
		return true
	}
	return false
}

// moveAsked moves the rank that q is about, and answers when it goes on.
func (a *Agent) moveAsked(q Question, reply chan<- Answer) {
	a.move(q.Rank, q.Host, func(err error) {
		if err != nil {
			reply <- Answer{Error: err.Error()}
			return
		}
		p := a.processOf(q.Rank)
		reply <- Answer{Moved: &Moved{Process: p.index, Host: p.host.name}}
	})
}

// attachAsked lets who asked show the job.
func (a *Agent) attachAsked(reply chan<- Answer) {
	if a.deputy == nil {
		reply <- Answer{}
		return
	}
	p, err := a.passFor()
	if err != nil {
		reply <- Answer{Error: err.Error()}
		return
	}
	reply <- Answer{Pass: &p}
}

// answer answers q, once.
func (a *Agent) answer(q Question, reply chan<- Answer) {
	switch q.Op {
	case "ps":
		a.lease()
		a.readAll(func(silent []*process) {
			reply <- Answer{Events: a.standing(), Silent: ranksOf(silent)}
		})
	case "watch":
		reply <- Answer{Poll: true} // from another host
	case "trace":
		if a.deputy != nil {
			reply <- Answer{Error: "a job with --outlive cannot be traced while it runs: begin it with --trace FILE"}
			return
		}
		reply <- Answer{Error: fmt.Sprintf("a trace is written on the host on which the job began: ask on host %s", a.hereName())}
	case "explain":
		a.lookTwice(func(e waits.Explanation, silent []*process, proven, _ bool) {
			reply <- Answer{Explanation: &e, Audit: a.audit(), Proven: proven, Silent: ranksOf(silent)}
		})
	case "contracts":
		a.contractsAsked(reply)
	case "attach":
		a.attachAsked(reply)
	case "move":
		a.moveAsked(q, reply)
	case "drain", "cordon", "uncordon":
		a.orderAsked(q, reply)
	case "add":
		a.addAsked(q, reply)
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

// ErrNoHead: no agent leads the job, for the moment or any more.
var ErrNoHead = errors.New("no agent leads the job for the moment: ask again")

// dialJob connects to the agent of the job in dir, where it is asked.
func dialJob(dir string) (*net.UnixConn, error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: rundir.AskSocket(dir), Net: "unix"})
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("job %s has just ended, or is about to begin", filepath.Base(dir))
	}
	if err != nil {
		return nil, fmt.Errorf("ask job %s: %w", filepath.Base(dir), err)
	}
	return c, nil
}

// Ask puts q to the agent of the job in dir.
func Ask(dir string, q Question) (Answer, error) {
	var ans Answer
	c, err := dialJob(dir)
	if err != nil {
		return ans, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(q.time()))
	if err := json.NewEncoder(c).Encode(q); err != nil {
		return ans, fmt.Errorf("ask job %s: %w", filepath.Base(dir), err)
	}
	if err := json.NewDecoder(c).Decode(&ans); err != nil {
		return ans, fmt.Errorf("job %s did not answer: %w", filepath.Base(dir), err)
	}
	if ans.NoHead {
		return ans, ErrNoHead
	}
	if ans.Error != "" {
		return ans, errors.New(ans.Error)
	}
	return ans, nil
}
