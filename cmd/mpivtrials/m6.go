//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/events"
)

// A beheading is how the leader is lost.
type beheading struct {
	name string
	do   func(s *stage, h *heirloom) error
}

// The leader is on host X, and so is rank 0.
var beheadings = []beheading{
	{"its agent is killed", func(_ *stage, h *heirloom) error { return syscall.Kill(h.agents[victim], syscall.SIGKILL) }},
	{"its host is killed", func(s *stage, _ *heirloom) error { return s.lab.Signal(victim, syscall.SIGKILL) }},
}

const (
	m6Moves   = 1                    // the rank, which is on Y
	m6Watches = "W"                  // where the job is attached to
	m6Silence = time.Second          // after which nobody leads
	leadMost  = 2*m6Silence + 500*ms // an election takes one to two times the silence
	ms        = time.Millisecond
)

// m6Delays is how long after the order to move a rank the leader is lost, in turn.
var m6Delays = []time.Duration{8 * ms, 2 * ms, 20 * ms}

// m6 kills mpivrun, has a rank moved, and kills the agent that leads, or its whole host, in the middle of that. The move must end
// or be undone, and the job must be found by mpivrun attach and end with the output of an undisturbed run.
func m6(ctx context.Context, d *desk) error {
	want, err := d.expected(ctx, d.steady(0))
	if err != nil {
		return err
	}
	rounds := d.times(3)
	if d.short {
		rounds = d.times(1)
	}
	var rows [][]string
	var names []string
	var heights []float64
	under := 0
	for _, way := range beheadings {
		var all []reign
		for n := range rounds {
			r, err := d.behead(ctx, way, m6Delays[n%len(m6Delays)], want)
			if err != nil {
				return fmt.Errorf("%s, job %d: %w", way.name, n, err)
			}
			d.note("%s: job %d: another leads after %.2f s, rank 0 goes on after %.2f s, mpivrun attach shows so after %.2f s; the move: %s", way.name, n, r.leads, r.goesOn, r.shown, r.move)
			all = append(all, r)
			rows = append(rows, []string{way.name, strconv.Itoa(n), fmt.Sprintf("%.3f", r.leads), fmt.Sprintf("%.3f", r.goesOn), fmt.Sprintf("%.3f", r.shown), r.move, strconv.FormatBool(r.attached), strconv.FormatBool(r.same), strconv.Itoa(r.left)})
		}
		wrong, astray, lost, left := 0, 0, 0, 0
		var leads, on []float64
		for _, r := range all {
			wrong, lost, left = wrong+int(truth(!r.same)), lost+int(truth(!r.attached)), left+r.left
			astray += int(truth(r.move == moveAstray))
			under += int(truth(r.under))
			leads, on = append(leads, r.leads), append(on, r.goesOn)
		}
		at := way.name + ": "
		d.claim(claim{what: at + "jobs with another exit code or another output", measured: float64(wrong)})
		d.claim(claim{what: at + "jobs that mpivrun attach does not find", measured: float64(lost)})
		d.claim(claim{what: at + "moves that are neither done nor undone", measured: float64(astray)})
		d.claim(claim{what: at + "processes of the job that are left", measured: float64(left)})
		d.claim(claim{what: at + "another leads after, worst", measured: largest(leads), unit: "s", paper: "never: the Leader cannot move", bar: leadMost.Seconds(), pace: true})
		d.claim(claim{what: at + "the rank that was there goes on after, worst", measured: largest(on), unit: "s", bar: (leadMost + m6Silence).Seconds() + goesOnBar/1000.0, pace: true})
		names, heights = append(names, way.name+": leads", "goes on"), append(heights, median(leads), median(on))
	}
	d.claim(claim{what: "moves that were under way when the leader was lost", measured: float64(under), bar: 1, least: true, pace: true})
	if err := d.writeCSV([]string{"how", "job", "leads_s", "goes_on_s", "shown_s", "move", "attached", "same_output", "left_over"}, rows); err != nil {
		return err
	}
	if slices.ContainsFunc(heights, func(s float64) bool { return math.IsInf(s, 0) }) {
		return nil // a claim says so
	}
	return d.plotBars("the leader is lost while a rank moves", "s", names, heights)
}

// What came of a move.
const (
	moveDone   = "done"
	moveUndone = "undone"
	moveAstray = "neither"
)

// A reign is what was seen of a job whose leader was lost.
type reign struct {
	leads, goesOn float64 // s
	shown         float64 // s, until mpivrun attach says so
	move          string  // what came of it
	under         bool    // it was under way when the leader was lost
	attached      bool    // mpivrun attach has shown the job to its end
	same          bool    // it ended as an undisturbed one does
	left          int     // processes, on all hosts
}

var goesOnIn = regexp.MustCompile(`rank (\d+) goes on in process (\d+)`)

func (d *desk) behead(ctx context.Context, way beheading, delay time.Duration, want string) (r reign, err error) {
	s, err := d.stage()
	if err != nil {
		return r, err
	}
	defer s.close()
	h, err := s.outlive(ctx, cast{hosts: []string{victim + ":1", "Y:1", "Z:1", m6Watches + ":1"}, ranks: 4,
		options: survival("--snapshot", "0.2", "--silence", fmt.Sprint(m6Silence.Seconds())), program: d.steady(stepLasts)})
	if err != nil {
		return r, err
	}
	defer h.end()
	before := h.state()
	if before == nil {
		return r, errors.New("no agent tells how the job stands")
	}
	from := homeOf(before.Processes)
	h.first.kill()
	again, err := h.attach(ctx, m6Watches)
	if err != nil {
		return r, err
	}
	defer again.kill()
	dir, err := h.directory(m6Watches)
	if err != nil {
		return r, err
	}
	answered := make(chan error, 1)
	go func() {
		_, err := agent.Ask(dir, agent.Question{Op: "move", Rank: m6Moves})
		answered <- err
	}()
	if err := sleep(ctx, delay); err != nil {
		return r, err
	}
	zero := time.Now()
	if err := way.do(s, h); err != nil {
		return r, err
	}
	r.leads, r.goesOn, r.shown, r.move = never, never, never, moveAstray
	for end := zero.Add(patience); (r.goesOn == never || r.move == moveAstray) && time.Now().Before(end) && again.runs(); {
		if ans, err := h.ask(agent.Question{Op: "ps"}); err == nil {
			r.look(ans, zero, from)
		}
		if err := sleep(ctx, pollEvery); err != nil {
			return r, err
		}
	}
	if l, err := again.awaits(ctx, patience, zero, leadsNow); err == nil {
		r.shown = l.at.Sub(zero).Seconds()
	}
	<-answered // or nobody does, which it says within seconds
	select {
	case <-again.done:
	case <-time.After(surviveTime):
		return r, fmt.Errorf("the job does not end; mpivrun attach said: %s", again.stderr.text())
	case <-ctx.Done():
		return r, ctx.Err()
	}
	for _, l := range append(h.first.stderr.all(), again.stderr.all()...) {
		if m := goesOnIn.FindStringSubmatch(l.text); m != nil && m[1] == strconv.Itoa(m6Moves) {
			r.under = l.at.After(zero)
			break
		}
	}
	r.attached = again.err == nil
	got := h.first.stdout.whole() + again.stdout.whole()
	if r.same = again.err == nil && got == want; !r.same {
		d.note("%s: mpivrun attach ended with %v and what was shown was %q, not %q; it said: %s", way.name, again.err, got, want, again.stderr.text())
	}
	r.left, err = s.leftOver()
	return r, err
}

// look fills in what an answer to "ps" tells. The events of a leader begin when it begins to lead; until the
// next one has heard of all that the last had begun, a rank may be nowhere.
func (r *reign) look(ans agent.Answer, zero time.Time, from int) {
	now := ans.State()
	if now == nil || now.Leads.Before(zero) {
		return // the last leader's
	}
	r.leads = now.Leads.Sub(zero).Seconds()
	for _, e := range ans.Events {
		if e.Kind == events.RankArrived && *e.Rank == 0 {
			r.goesOn = e.Time.Sub(zero).Seconds()
		}
	}
	if r.goesOn == never {
		return
	}
	switch to := homeOf(now.Processes); {
	case to == from:
		r.move = moveUndone
	case to >= 0:
		r.move = moveDone
	}
}

// runs tells whether it has not ended.
func (f *front) runs() bool {
	select {
	case <-f.done:
		return false
	default:
		return true
	}
}
