package paths

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/topology"
)

var update = flag.Bool("update", false, "write what the pair does into testdata")

// TestScripts runs testdata. A case is inputs, a line of dashes, and what is done;
// an empty line ends it. The inputs are
//
//	paths CLASS[N][@NETWORK]…      of the pair
//	follows                        the other end plans
//	want [WHY]                     there is no connection
//	answered PATH, failed PATH WHY
//	attached PATH [theirs]         the other end has dialed it, where it says so
//	reading [stalled D] [silent D] [rtt D] [measured] [out MB/s [limited]] [in MB/s [limited]]
//	avoid CLASS D                  a class, for that long
//	run D                          time passes, with a tick every 5 ms
//	held D                         time passes without one, and then comes one
//	status
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var got []string
			for c := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
				script, want, ok := strings.Cut(c, "\n----\n")
				script = strings.TrimSuffix(script, "\n----") // of a case that has no answer yet
				out := play(t, script)
				if !*update {
					require.True(t, ok, "no ---- in %q", c)
					require.Equal(t, want, out, "%s", script)
				}
				got = append(got, script+"\n----\n"+out)
			}
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(strings.Join(got, "\n\n")+"\n"), 0o644))
			}
		})
	}
}

type player struct {
	t     *testing.T
	cfg   Config
	pair  *Pair
	start time.Time
	now   time.Time
	read  Reading
	out   []string
}

func play(t *testing.T, script string) string {
	p := &player{t: t, start: time.Unix(1_700_000_000, 0), cfg: Config{Plans: true, Seed: 1}}
	p.now = p.start
	for line := range strings.SplitSeq(script, "\n") {
		if words := strings.Fields(line); len(words) > 0 && words[0] != "#" {
			p.command(words)
		}
	}
	return strings.Join(p.out, "\n")
}

func (p *player) command(words []string) {
	rest := words[1:]
	switch words[0] {
	case "paths":
		for _, name := range rest {
			word, network, _ := strings.Cut(name, "@")
			class, err := topology.ParseClass(strings.TrimRight(word, "0123456789"))
			require.NoError(p.t, err)
			p.cfg.Paths = append(p.cfg.Paths, Path{Name: name, Class: class, Network: network})
		}
		p.pair = New(p.cfg)
	case "follows":
		p.cfg.Plans = false
		p.pair = New(p.cfg)
	case "want":
		var err error
		if len(rest) > 0 {
			err = errors.New(strings.Join(rest, " "))
		}
		p.step(Want{err})
	case "answered":
		p.step(Answered{Path: p.path(rest[0]), RTT: time.Millisecond})
	case "failed":
		p.step(Failed{p.path(rest[0]), errors.New(strings.Join(rest[1:], " "))})
	case "attached":
		p.step(Attached{Path: p.path(rest[0]), Dialed: len(rest) == 1})
	case "avoid":
		class, err := topology.ParseClass(rest[0])
		require.NoError(p.t, err)
		in := Avoid{Class: class, Why: "the leader's order"}
		if d := p.duration(rest[1]); d > 0 {
			in.Until = p.now.Add(d)
		}
		p.step(in)
	case "reading":
		p.reading(rest)
	case "run":
		for end := p.now.Add(p.duration(rest[0])); p.now.Before(end); {
			p.now = p.now.Add(5 * time.Millisecond)
			p.step(Tick{p.read})
		}
	case "held":
		p.now = p.now.Add(p.duration(rest[0]))
		p.step(Tick{p.read})
	case "status":
		s := p.pair.Status(p.now)
		p.say("%s; %d switches", s.Why, s.Switches)
		for _, r := range s.Routes {
			p.out = append(p.out, "  "+r.Name+": "+r.State)
		}
	default:
		p.t.Fatalf("no command %q", words)
	}
}

func (p *player) reading(words []string) {
	p.read = Reading{}
	var pace *Pace
	for len(words) > 0 {
		word := words[0]
		words = words[1:]
		switch word {
		case "measured":
			p.read.Measured = true
			continue
		case "limited":
			pace.Limited = true
			continue
		}
		value := words[0]
		words = words[1:]
		switch word {
		case "stalled":
			p.read.Measured, p.read.Stalled = true, p.duration(value)
		case "silent":
			p.read.Silent = p.duration(value)
		case "rtt":
			p.read.RTT = p.duration(value)
		case "out", "in":
			if pace = &p.read.Out; word == "in" {
				pace = &p.read.In
			}
			rate, err := strconv.ParseFloat(value, 64)
			require.NoError(p.t, err)
			pace.Rate = rate * 1e6
		default:
			p.t.Fatalf("no reading %q", word)
		}
	}
}

func (p *player) duration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(p.t, err)
	return d
}

func (p *player) path(name string) int {
	for i := range p.cfg.Paths {
		if p.cfg.Paths[i].Name == name {
			return i
		}
	}
	p.t.Fatalf("no path %q", name)
	return -1
}

func (p *player) step(in Input) {
	for _, a := range p.pair.Step(p.now, in) {
		if a.Do == GiveUp {
			p.say("give up: %v", a.Err)
		} else {
			p.say("%v %s", a.Do, p.cfg.Paths[a.Path].Name)
		}
	}
}

func (p *player) say(format string, args ...any) {
	p.out = append(p.out, fmt.Sprintf("%v ", p.now.Sub(p.start))+fmt.Sprintf(format, args...))
}
