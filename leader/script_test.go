package leader

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/adapt"
	"github.com/mpiv/mpiv/sensors"
	"github.com/mpiv/mpiv/topology"
)

var update = flag.Bool("update", false, "write what the policy does into testdata")

// TestScripts runs testdata. A file is one story; a case is inputs, a line of dashes, and
// what is done; an empty line ends it. The inputs are
//
//	job LEVEL [budget N] HOST:RANKS[+SPARES][!]…  a new job, a process for each rank, and spares; ! is not trusted
//	nets NAME HOST…               the hosts are on a network
//	traffic RANK TO:MB/s[:MB/S[:limited]]…  what it sends; and what the network delivered of it for all of a second
//	state RANK MB [HOST… [AGE]]
//	breach X→Y PROMISED SEEN [on NETWORK]
//	fine X→Y MB/s, recovered X→Y
//	reading HOST KEY=VALUE…       bytes in MB/s
//	placed RANK PLACE …           others have
//	lost HOST, lost PLACE WHY, ready PLACE, joined HOST[!]
//	done ID, undone ID
//	unreached X|Y…
//	ending                        the job
//	lead, stays, drain, cordon, uncordon, add
//	run D                         time passes, with a tick every 100 ms
//
// At the end of each job its log is replayed, and must give the same.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			p := &player{t: t}
			var got []string
			for c := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				script, want, ok := strings.Cut(c, "\n----")
				want = strings.TrimPrefix(want, "\n")
				out := p.play(script)
				if !*update {
					require.True(t, ok, "no ---- in %q", c)
					require.Equal(t, want, out, "%s", script)
				}
				got = append(got, script+"\n----\n"+out)
			}
			p.replay()
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(strings.Join(got, "\n\n")+"\n"), 0o644))
			}
		})
	}
}

type player struct {
	t     *testing.T
	cfg   Config
	first *topology.Map
	m     *Machine
	now   time.Time
	nets  map[string][]string
	joins map[string]HostJoined
	log   []entry
	did   [][]Action
	out   []string
	told  map[uint64]bool
}

// An entry is what a machine was told, and when.
type entry struct {
	at time.Time
	in Input
}

var start = time.Unix(1_700_000_000, 0).UTC()

func (p *player) play(script string) string {
	p.out = nil
	for line := range strings.SplitSeq(script, "\n") {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			p.command(words)
		}
	}
	if p.out == nil {
		return "ok"
	}
	return strings.Join(p.out, "\n")
}

func (p *player) step(in Input) {
	p.log = append(p.log, entry{p.now, in})
	acts := p.m.Step(p.now, in)
	p.did = append(p.did, acts)
	for _, a := range acts {
		lines := strings.Split(show(p.now.Sub(start), a), "\n")
		if t, ok := a.(Tell); ok {
			if p.told[t.Record.ID] { // only what is new
				plans := len(t.Record.Plans)
				if t.Record.Measured != nil {
					plans++
				}
				lines = append([]string{fmt.Sprintf("%.1f record %d goes on", p.now.Sub(start).Seconds(), t.Record.ID)}, lines[len(lines)-plans-1:]...)
			}
			p.told[t.Record.ID] = true
		}
		p.out = append(p.out, lines...)
	}
}

// replay gives the log to another machine.
func (p *player) replay() {
	if p.m == nil {
		return
	}
	again := New(p.cfg, p.first)
	for i, e := range p.log {
		require.Equal(p.t, p.did[i], again.Step(e.at, e.in), "replay of %T", e.in)
	}
	require.Equal(p.t, p.m.Map(), again.Map())
}

func (p *player) command(w []string) {
	arg := func(i int) string {
		require.Greater(p.t, len(w), i, "%q lacks a word", w)
		return w[i]
	}
	num := func(text string) float64 {
		f, err := strconv.ParseFloat(text, 64)
		require.NoError(p.t, err, "%q", w)
		return f
	}
	place := func(text string) topology.Place {
		host, slot, ok := strings.Cut(text, "/")
		if !ok {
			return topology.Place{Host: text, Slot: -1}
		}
		return topology.Place{Host: host, Slot: int(num(slot))}
	}
	link := func(text string) Link {
		from, to, ok := strings.Cut(text, "→")
		require.True(p.t, ok, "%q", text)
		l := Link{From: from, To: to}
		for i := range w {
			if w[i] == "on" {
				l.Network = w[i+1]
			}
		}
		return l
	}
	switch w[0] {
	case "job":
		p.job(w[1:])
	case "nets":
		for _, h := range w[2:] {
			p.nets[h] = append(p.nets[h], arg(1))
			j := p.joins[h]
			j.Networks = p.nets[h]
			p.joins[h] = j
			p.step(j)
		}
	case "traffic":
		in := Traffic{Rank: topology.Rank(num(arg(1)))}
		for _, f := range w[2:] {
			parts := strings.Split(f, ":")
			flow := Flow{To: topology.Rank(num(parts[0])), Rate: 1e6 * num(parts[1]), Limited: len(parts) > 3}
			if len(parts) > 2 {
				flow.Bytes = 1e6 * num(parts[2])
				flow.Slots.Mark(p.now.Add(-time.Second), p.now.Add(-sensors.SlotTime))
			}
			in.To = append(in.To, flow)
		}
		p.step(in)
	case "state":
		in := StateSize{Rank: topology.Rank(num(arg(1))), Bytes: 1e6 * num(arg(2))}
		age := time.Duration(0)
		for _, h := range w[3:] {
			if d, err := time.ParseDuration(h); err == nil {
				age = d
			} else {
				in.Copies = append(in.Copies, h)
			}
		}
		if in.Copies != nil {
			in.Taken = p.now.Add(-age)
		}
		p.step(in)
	case "breach":
		p.step(Breach{Link: link(arg(1)), Promised: 1e6 * num(arg(2)), Seen: 1e6 * num(arg(3)), Since: p.now.Add(-100 * time.Millisecond)})
	case "fine":
		p.step(Fine{link(arg(1)), 1e6 * num(arg(2))})
	case "recovered":
		p.step(Recovered{Link: link(arg(1))})
	case "reading":
		in := HostReading{Host: arg(1)}
		for _, kv := range w[2:] {
			k, v, _ := strings.Cut(kv, "=")
			if k == "shared" {
				in.Shared = v == "true"
				continue
			}
			f := map[string]*float64{
				"cores": &in.Cores, "busy": &in.Busy, "others": &in.Others, "steal": &in.Steal, "pressure": &in.Pressure,
				"throttled": &in.Throttled, "memory": &in.MemoryFree, "in": &in.ForeignIn, "out": &in.ForeignOut,
			}[k]
			require.NotNil(p.t, f, "%q", kv)
			*f = num(v)
			if k == "in" || k == "out" || k == "memory" {
				*f *= 1e6
			}
		}
		p.step(in)
	case "lost":
		if at := place(arg(1)); at.Slot < 0 {
			p.step(HostLost{at.Host})
		} else {
			p.step(ProcessLost{Place: at, Why: Loss(arg(2))})
		}
	case "placed":
		var in Placed
		for i := 1; i < len(w); i += 2 {
			in.Ranks = append(in.Ranks, Seat{topology.Rank(num(arg(i))), place(arg(i + 1))})
		}
		p.step(in)
	case "ready":
		p.step(ProcessReady{place(arg(1))})
	case "joined":
		p.step(HostJoined{Host: strings.TrimSuffix(arg(1), "!"), Trusted: !strings.HasSuffix(arg(1), "!")})
	case "done", "undone":
		out := adapt.Outcome{End: adapt.End(w[0]), Took: time.Second, Stood: 100 * time.Millisecond}
		if w[0] == "undone" {
			out.Why = "no safe point within 2s"
		}
		p.step(PlanEnded{ID: adapt.ID(num(arg(1))), Outcome: out})
	case "lead":
		p.step(LeadingFrom{arg(1)})
	case "stays":
		p.step(Stays{})
	case "drain":
		p.step(Drain{Host: arg(1), Ref: "op"})
	case "cordon":
		p.step(Cordon{arg(1), "op"})
	case "uncordon":
		p.step(Uncordon{arg(1), "op"})
	case "unreached":
		in := Unreached{For: 4 * time.Second}
		for _, pair := range w[1:] {
			a, b, _ := strings.Cut(pair, "|")
			in.Pairs = append(in.Pairs, [2]string{a, b})
		}
		p.step(in)
	case "add":
		p.step(AddHost{arg(1), "op"})
	case "ending":
		p.step(Ending{})
	case "run":
		d, err := time.ParseDuration(arg(1))
		require.NoError(p.t, err)
		for end := p.now.Add(d); p.now.Before(end); {
			p.now = p.now.Add(min(100*time.Millisecond, end.Sub(p.now)))
			p.step(Tick{})
		}
	default:
		p.t.Fatalf("no command %q", w)
	}
}

func (p *player) job(w []string) {
	p.replay()
	p.now, p.log, p.did, p.nets, p.joins = start, nil, nil, map[string][]string{}, map[string]HostJoined{}
	p.told = map[uint64]bool{}
	p.cfg = Config{Level: Level(w[0])}
	if w = w[1:]; w[0] == "budget" {
		p.cfg.MovesPerMinute, _ = strconv.Atoi(w[1])
		w = w[2:]
	}
	var places []topology.Place
	var ins []Input
	for _, text := range w {
		name, size, ok := strings.Cut(text, ":")
		require.True(p.t, ok, "%q", text)
		j := HostJoined{Host: name, Trusted: !strings.HasSuffix(size, "!")}
		p.joins[name] = j
		ins = append(ins, j)
		size, more, _ := strings.Cut(strings.TrimSuffix(size, "!"), "+")
		ranks, _ := strconv.Atoi(size)
		spares, _ := strconv.Atoi(more)
		for i := range ranks {
			places = append(places, topology.Place{Host: name, Slot: i})
		}
		for i := range spares {
			ins = append(ins, ProcessReady{topology.Place{Host: name, Slot: ranks + i}})
		}
	}
	p.first = topology.New(places)
	p.m = New(p.cfg, p.first)
	for _, in := range ins {
		p.step(in)
	}
}

func show(at time.Duration, a Action) string {
	t := fmt.Sprintf("%.1f ", at.Seconds())
	switch a := a.(type) {
	case Do:
		return fmt.Sprintf("%sdo %d: %s", t, a.Plan.ID, a.Plan.What)
	case HandOver:
		return fmt.Sprintf("%shand over to %s: %s", t, a.To, a.Why)
	case GiveUp:
		return fmt.Sprintf("%sgive up: %s", t, a.Reason)
	case Tell:
		r := a.Record
		lines := []string{fmt.Sprintf("%srecord %d: %s", t, r.ID, strings.Join(r.Seen, "; "))}
		add := func(format string, args ...any) { lines = append(lines, "    "+fmt.Sprintf(format, args...)) }
		if r.Blamed != "" {
			add("%s", strings.TrimRight(fmt.Sprintf("%s: %s: %s", r.Blamed, r.Verdict, strings.Join(r.Reasons, "; ")), ": "))
		}
		for _, o := range r.Options {
			add("- %v", o)
		}
		add("%s", strings.TrimSuffix(r.Chosen+": "+r.Why, ": "))
		for _, pl := range r.Plans {
			if pl.End == "" {
				add("plan %d, %.3g s", pl.ID, pl.Cost)
			} else {
				add("%s", strings.TrimSuffix(fmt.Sprintf("plan %d, %.3g s: %s, %.3g s: %s", pl.ID, pl.Cost, pl.End, pl.Stood, pl.Why), ": "))
			}
		}
		if r.Measured != nil {
			add("%v", *r.Measured)
		}
		return strings.Join(lines, "\n")
	}
	return fmt.Sprintf("%s%T", t, a)
}
