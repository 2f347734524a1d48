//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/agent"
	"github.com/mpiv/mpiv/internal/rundir"
)

// The application stands on hosts Y, X, W and Z: rank 0, who reads, on Y, both who compress on X, rank 3, who
// writes, on W, and a spare process on each. So what X sends is the compressed data, as in
// the paper, where its amount hangs on how compressible the input is.
const victim = "X"

var scenery = []string{"Y:1", victim + ":2", "W:1", "Z:1"}

// A scene is one run of the application: it is left in peace, then something happens to the
// victim.
type scene struct {
	name    string
	percent int
	options []string      // of mpivrun
	learned bool          // what the victim's links deliver must be known before anything happens
	before  time.Duration // in peace, at least
	upset   func(ctx context.Context, s *stage) (began time.Time, end func() error, err error)
	after   time.Duration // from then on
	oracle  bool          // the victim's ranks are told to leave at that instant
}

// A shown is what was seen of a scene.
type shown struct {
	scene
	all   []iteration
	peace time.Time // from when on it is counted as undisturbed
	zero  time.Time // the upset
	ended time.Time // the run

	breach, decided time.Time // zero: never
	arrived         time.Time // the last rank that left went on elsewhere
	first           time.Time // the first block was written that a moved rank has compressed elsewhere
	moved           map[int]bool
	why             string   // of the decision
	said            []string // of contracts, from the upset on
}

const (
	learnPatience = 40 * time.Second // for what links deliver to be known
	startPeace    = 2 * time.Second  // of a run, which is not counted
)

// survival is the options of a job whose ranks may leave a host.
func survival(more ...string) []string {
	return append([]string{"--spares", "4", "--survive", "crashes"}, more...)
}

// show runs a scene.
func (s *stage) show(ctx context.Context, sc scene) (sh shown, err error) {
	dir, err := os.MkdirTemp("", "mpivtrials-")
	if err != nil {
		return sh, err
	}
	defer os.RemoveAll(dir)
	csv := filepath.Join(dir, "iterations.csv")
	book := readIterations(csv)
	defer book.close()
	p, err := s.play(ctx, cast{hosts: scenery, ranks: 4, options: sc.options, program: s.d.compressor(sc.percent, csv)})
	if err != nil {
		return sh, err
	}
	defer p.end()
	if err := p.hold(ctx, startPeace); err != nil {
		return sh, err
	}
	sh = shown{scene: sc, peace: time.Now(), moved: map[int]bool{}}
	if sc.learned {
		if err := p.learned(ctx); err != nil {
			return sh, err
		}
	}
	if err := p.hold(ctx, sc.before-time.Since(sh.peace)); err != nil {
		return sh, err
	}
	sh.zero = time.Now()
	endUpset := func() error { return nil }
	if sc.upset != nil {
		sh.zero, endUpset, err = sc.upset(ctx, s)
		if err != nil {
			return sh, err
		}
		defer endUpset()
	}
	if sc.oracle {
		if err := p.leave(); err != nil {
			return sh, err
		}
	}
	if err := p.aftermath(ctx, sh.zero, sc.after); err != nil {
		return sh, err
	}
	sh.ended = time.Now()
	if err := endUpset(); err != nil {
		return sh, err
	}
	if sh.all, err = book.read(); err != nil {
		return sh, err
	}
	sh.look(p)
	return sh, nil
}

// aftermath waits; where no figure is judged that hangs on the machine's speed, until ranks go on elsewhere for a while,
// however long that takes.
func (p *play) aftermath(ctx context.Context, zero time.Time, after time.Duration) error {
	if !p.untimed {
		return p.hold(ctx, after)
	}
	for time.Since(zero) < 3*patience {
		left, arrived := p.moved(zero)
		if len(left) > 0 && len(arrived) >= len(left) && time.Since(arrived[len(arrived)-1].Time) > 3*time.Second {
			return nil
		}
		if err := p.hold(ctx, pollEvery); err != nil {
			return err
		}
	}
	return nil
}

// learned waits until it is known what the victim's links deliver that the job uses most.
func (p *play) learned(ctx context.Context) error {
	for began := time.Now(); ; {
		_, to := p.stderr.first(time.Time{}, "contract learned: "+victim+">W large")
		_, from := p.stderr.first(time.Time{}, "contract learned: Y>"+victim+" large")
		if to && from {
			return nil
		}
		if time.Since(began) > learnPatience {
			return fmt.Errorf("within %v it was not learned what the links of host %s deliver; mpivrun said: %s", learnPatience, victim, p.stderr.text())
		}
		if err := p.hold(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// leave has the operator move the victim's ranks away.
func (p *play) leave() error {
	p.mu.Lock()
	name := p.state.Job.Name
	p.mu.Unlock()
	if _, err := agent.Ask(filepath.Join(rundir.Root(), name), agent.Question{Op: "drain", Host: victim}); err != nil {
		return fmt.Errorf("drain %s: %w", victim, err)
	}
	return nil
}

// look fills in what mpivrun has told.
func (sh *shown) look(p *play) {
	if l, ok := p.stderr.first(sh.zero, "contract broken: "); ok {
		sh.breach = l.at
	}
	for _, l := range p.stderr.all() {
		if !l.at.Before(sh.zero) && strings.Contains(l.text, "contract ") {
			sh.said = append(sh.said, l.text)
		}
	}
	if all := p.decisions(sh.zero); len(all) > 0 {
		sh.decided = all[0].Time
		r := all[0].Decision
		sh.why = fmt.Sprintf("%s, %s: %s", r.Blamed, r.Verdict, r.Chosen)
	}
	left, arrived := p.moved(sh.zero)
	for _, e := range left {
		sh.moved[*e.Rank] = true
	}
	if len(arrived) > 0 {
		sh.arrived = arrived[len(arrived)-1].Time
		for _, it := range sh.all {
			if it.at.After(arrived[0].Time) && sh.moved[it.by] {
				sh.first = it.at
				break
			}
		}
	}
}

// since is how many seconds after the upset something was, as a figure.
func (sh *shown) since(t time.Time) float64 {
	if t.IsZero() {
		return never
	}
	return t.Sub(sh.zero).Seconds()
}

// scenes is those of all that are to be shown: where no figure is judged that hangs on the machine's
// speed, only those in which ranks leave by themselves.
func (d *desk) scenes(all []scene) []scene {
	if !d.untimed {
		return all
	}
	return slices.DeleteFunc(all, func(sc scene) bool { return !sc.learned })
}

const (
	detectMost = 2.0 // s
	decideMost = 2.0 // s
)

// reportLeft claims that the victim's ranks left it.
func (d *desk) reportLeft(at string, with *shown) {
	d.note("%safter it began: breach %.2f s, decision %.2f s, the last rank goes on elsewhere %.2f s, its first block is written %.2f s; %s", at,
		with.since(with.breach), with.since(with.decided), with.since(with.arrived), with.since(with.first), with.why)
	if with.breach.IsZero() || with.decided.IsZero() {
		for _, text := range with.said {
			d.note("%s%s", at, text)
		}
	}
	d.claim(claim{what: at + "breach seen after", measured: with.since(with.breach), unit: "s", paper: "up to 30 s", bar: detectMost, pace: true})
	d.claim(claim{what: at + "decided after", measured: with.since(with.decided), unit: "s", bar: decideMost, pace: true})
	d.claim(claim{what: at + "ranks that go on elsewhere", measured: float64(len(with.moved)), bar: 1, least: true})
	done := 0
	for _, it := range with.all {
		done += int(truth(!with.arrived.IsZero() && it.at.After(with.arrived) && with.moved[it.by]))
	}
	d.claim(claim{what: at + "iterations that they do there", measured: float64(done), bar: 1, least: true})
}

// undisturbed is how long an iteration takes in peace.
func (sh *shown) undisturbed() float64 { return mean(sh.all, sh.peace, sh.zero) }

// rows is the scene's iterations for a CSV file, with the heading sceneHeading.
func (sh *shown) rows() (rows [][]string) {
	for i, it := range sh.all {
		rows = append(rows, []string{strconv.Itoa(sh.percent), sh.name, strconv.Itoa(i), fmt.Sprintf("%.4f", it.at.Sub(sh.zero).Seconds()), strconv.Itoa(it.by)})
	}
	return rows
}

var sceneHeading = []string{"compressibility", "run", "iteration", "written_s", "compressed_by"}
