package agent

import (
	"strconv"
	"strings"
	"syscall"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/crew"
)

// A process of the job, on whatever host, as the loop sees it. All but streams
// is owned by the loop once it runs.
type process struct {
	index int
	ranks []int // it is replaced, never changed: messages that are on their way have it
	prog  *Program
	host  *host
	slot  int  // it is the slot-th there
	reads bool // it has the job's standard input

	streams [2]*stream // its output; nil if it writes past the agent

	pid       int
	hello     *control.Hello
	addrs     []control.Addr // where others reach it, once it is ready
	ready     bool
	joined    bool // it was told Start
	linkEnded bool
	started   bool // it runs, or has run
	exited    bool
	drained   bool                     // and its output has been passed on
	judged    bool                     // how it ended has been looked at
	condemned bool                     // it is being killed, so it takes no rank
	killed    bool                     // by this agent, be it to order
	closed    map[*host][]control.Life // these hear no more of what its ranks choose
	status    syscall.WaitStatus
	failed    bool // it has said Failed
	dead      bool // its ranks were declared failed: level "report"
	stop      stop
	finished  map[int]control.RankReport
	bereaved  []control.RankReport // what its ranks waited for when it lost another process
}

// outputs is its streams, for the crew.
func (p *process) outputs() [2]crew.Output { return [2]crew.Output{p.streams[0], p.streams[1]} }

// label names the process by its ranks: "4", "4-7".
func (p *process) label() string {
	if len(p.ranks) == 0 {
		return "spare" + strconv.Itoa(p.index)
	}
	return crew.Label(p.ranks)
}

// who names the process for people: "rank 4", "ranks 4-7".
func (p *process) who() string { return crew.Who(p.ranks) }

// kill sends sig to the process and to what it has started in its group.
func (p *process) kill(sig syscall.Signal) {
	p.killed = p.killed || sig == syscall.SIGKILL
	if p.host.place != nil {
		p.host.place.kill(p.index, sig)
	}
}

// listens tells whether the process can be told something: it has said Hello.
func (p *process) listens() bool { return p.hello != nil && !p.linkEnded }

// send hands m to the process; false if it does not listen, or does not read.
func (p *process) send(m control.Message) bool {
	return p.listens() && p.host.place.send(m, p.index)
}

// names lists processes for people: "ranks 0, 4-7 and 2 spare processes".
func names(ps []*process) string {
	var labels, said []string
	word, spares := "rank ", 0
	for _, p := range ps {
		if len(p.ranks) == 0 {
			spares++
			continue
		}
		if labels = append(labels, p.label()); len(labels) > 1 || len(p.ranks) > 1 {
			word = "ranks "
		}
	}
	if len(labels) > 0 {
		said = append(said, word+strings.Join(labels, ", "))
	}
	switch spares {
	case 0:
	case 1:
		said = append(said, crew.Who(nil))
	default:
		said = append(said, strconv.Itoa(spares)+" spare processes")
	}
	return strings.Join(said, " and ")
}
