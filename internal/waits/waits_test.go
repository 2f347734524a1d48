package waits

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

var update = flag.Bool("update", false, "write what Explain says into testdata")

// TestScripts runs testdata. A case is reports, a line of dashes, and what is
// said of them; an empty line ends it. The lines of a report are
//
//	rank R STATE                  the rank; what follows is about it
//	sent PEER N, received PEER N  its counts
//	offered PEER FIRST LAST       messages of it that no receive has, by number
//	wait ID OP WHERE AGE [any] [until DURATION]
//	need message|receive|delivery|arrival|turn PEERS TAG COMM [as NUMBER] [Collective number 3, root 0] [at WHERE] [unexpected TAGS] [near RANK@COMM]
//	need goroutine|event PEERS any -
//	later                         what follows is the second look
//
// where PEERS is "1", "any:0,2" or, of goroutines, "nobody".
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
				if !*update {
					require.True(t, ok, "no ---- in %q", c)
					require.Equal(t, want, play(t, script), "%s", script)
				}
				script = strings.TrimSuffix(script, "\n----") // of a case that has no answer yet
				got = append(got, script+"\n----\n"+play(t, script))
			}
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(strings.Join(got, "\n\n")+"\n"), 0o644))
			}
		})
	}
}

var now = time.Unix(1_700_000_000, 0)

func play(t *testing.T, script string) string {
	first, second, twice := strings.Cut(script, "\nlater\n")
	e := Explain(now, parse(t, first))
	if twice {
		before := e
		e = Explain(now, parse(t, second))
		return fmt.Sprintf("confirmed: %v", e.Confirms(before) || e.Repeats(before))
	}
	verdict := "no deadlock"
	if d := e.Deadlock; d != nil {
		verdict = fmt.Sprintf("deadlock %v, cycle %v", d.Ranks, d.Cycle)
	} else if d := e.Suspected; d != nil {
		verdict = fmt.Sprintf("suspected %v, cycle %v", d.Ranks, d.Cycle)
	}
	return verdict + "\n" + e.String()
}

func parse(t *testing.T, script string) []control.Report {
	var reports []control.Report
	var r *control.RankReport
	for line := range strings.Lines(script) {
		line = strings.TrimSpace(line)
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		number := func(i int) int {
			n, err := strconv.Atoi(w[i])
			require.NoError(t, err, line)
			return n
		}
		switch w[0] {
		case "rank":
			reports = append(reports, control.Report{Process: number(1), Ranks: []control.RankReport{{Rank: number(1), State: w[2]}}})
			r = &reports[len(reports)-1].Ranks[0]
		case "sent":
			c := control.Count{Peer: number(1), N: uint64(number(2))}
			if len(w) > 3 { // held
				c.Held = uint64(number(4))
			}
			r.Sent = append(r.Sent, c)
		case "offered":
			r.Offered = append(r.Offered, control.Numbers{Peer: number(1), First: uint64(number(2)), Last: uint64(number(3))})
		case "received":
			r.Received = append(r.Received, control.Count{Peer: number(1), N: uint64(number(2))})
		case "wait":
			r.Waits = append(r.Waits, parseWait(t, w, uint64(number(1))))
		case "need":
			last := &r.Waits[len(r.Waits)-1]
			last.Needs = append(last.Needs, parseNeed(t, w[1:]))
		default:
			t.Fatalf("what is %q?", line)
		}
	}
	return reports
}

func parseWait(t *testing.T, w []string, id uint64) control.Wait {
	age, err := time.ParseDuration(w[4])
	require.NoError(t, err)
	wait := control.Wait{ID: id, Op: w[2], Where: w[3], Since: now.Add(-age).UnixNano()}
	for i, word := range w {
		switch word {
		case "any":
			wait.Any = true
		case "until":
			d, err := time.ParseDuration(w[i+1])
			require.NoError(t, err)
			wait.Until = now.Add(d).UnixNano()
		}
	}
	return wait
}

func parseNeed(t *testing.T, w []string) control.Need {
	numbers := func(list string) (ns []int) {
		for s := range strings.SplitSeq(list, ",") {
			n, err := strconv.Atoi(s)
			require.NoError(t, err)
			ns = append(ns, n)
		}
		return ns
	}
	n := control.Need{What: w[0], Comm: w[3]}
	if w[1] == "nobody" {
		n.Peer = -1
	} else if list, ok := strings.CutPrefix(w[1], "any:"); ok {
		n.Peer, n.Peers = -1, numbers(list)
	} else {
		n.Peer = numbers(w[1])[0]
	}
	if n.Tag = -1; w[2] != "any" {
		n.Tag = numbers(w[2])[0]
	}
	for rest := w[4:]; len(rest) > 0; {
		switch rest[0] {
		case "as":
			n.Number, rest = uint64(numbers(rest[1])[0]), rest[2:]
		case "at":
			n.Where, rest = rest[1], rest[2:]
		case "near":
			peer, comm, _ := strings.Cut(rest[1], "@")
			n.Near, rest = append(n.Near, control.Near{Peer: numbers(peer)[0], Comm: comm}), rest[2:]
		case "unexpected":
			n.Unexpected, rest = numbers(rest[1]), rest[2:]
		default:
			n.Collective, rest = strings.TrimSpace(n.Collective+" "+rest[0]), rest[1:]
		}
	}
	return n
}

// A deadlock of many ranks is found and told in little time and space.
func TestManyRanks(t *testing.T) {
	const n = 2000
	reports := make([]control.Report, n)
	for i := range n {
		reports[i] = control.Report{Process: i, Ranks: []control.RankReport{{
			Rank: i, State: "waiting",
			Waits: []control.Wait{{ID: 1, Op: "Recv", Where: "ring.go:5", Needs: []control.Need{{Peer: (i + 1) % n, What: "message", Comm: "world"}}}},
		}}}
	}
	e := Explain(now, reports)
	require.Len(t, e.Deadlock.Cycle, n)
	require.Less(t, strings.Count(e.String(), "\n"), 60)
	require.True(t, e.Confirms(e))

	// And a chain that hangs on one rank that runs is none.
	reports[n-1].Ranks[0] = control.RankReport{Rank: n - 1, State: "running"}
	require.Nil(t, Explain(now, reports).Deadlock)
}

// Explain finds the greatest set: it is the union of all sets of waiting ranks
// that have the property, which for a few ranks one can simply try out.
func TestGreatestSet(t *testing.T) {
	const n = 5
	rng := rand.New(rand.NewPCG(1, 2))
	deadlocks := 0
	for range 3000 {
		reports := randomReports(rng, n)
		ranks := make([]control.RankReport, n)
		for i, r := range reports {
			ranks[i] = r.Ranks[0]
		}
		greatest := map[int]bool{}
		for set := 1; set < 1<<n; set++ {
			if holds(ranks, set) {
				for r := range n {
					if set>>r&1 == 1 {
						greatest[r] = true
					}
				}
			}
		}
		var want, got []int
		want = slices.Sorted(maps.Keys(greatest))
		if d := Explain(now, reports).Deadlock; d != nil {
			got = d.Ranks
			deadlocks++
		}
		require.Equal(t, want, got, "%+v", ranks)
	}
	require.Greater(t, deadlocks, 300, "too few of the cases were deadlocks")
	require.Less(t, deadlocks, 2700, "too few of the cases were none")
}

func randomReports(rng *rand.Rand, n int) []control.Report {
	reports := make([]control.Report, n)
	for i := range n {
		r := control.RankReport{Rank: i, State: [...]string{"running", "finished", "waiting", "waiting", "waiting", "waiting", "waiting", "waiting"}[rng.IntN(8)]}
		if r.State == "waiting" {
			for range 1 + rng.IntN(2) {
				w := control.Wait{Any: rng.IntN(2) == 0}
				for range 1 + rng.IntN(2) {
					need := control.Need{Peer: rng.IntN(n)}
					if rng.IntN(4) == 0 {
						need = control.Need{Peer: -1, Peers: []int{rng.IntN(n), rng.IntN(n)}}
					}
					w.Needs = append(w.Needs, need)
				}
				r.Waits = append(r.Waits, w)
			}
		}
		if rng.IntN(4) == 0 {
			r.Sent = []control.Count{{Peer: rng.IntN(n), N: 1}}
		}
		reports[i] = control.Report{Process: i, Ranks: []control.RankReport{r}}
	}
	return reports
}

// holds is the definition: no rank in set can be freed but by set.
func holds(ranks []control.RankReport, set int) bool {
	canHelp := func(helper, r int) bool {
		if slices.ContainsFunc(ranks[helper].Sent, func(c control.Count) bool { return c.Peer == r }) {
			return true // something is in flight: nobody has received anything
		}
		return set>>helper&1 == 0 && ranks[helper].State != "finished"
	}
	for r := range ranks {
		if set>>r&1 == 0 {
			continue
		}
		if ranks[r].State != "waiting" {
			return false
		}
		for _, w := range ranks[r].Waits {
			helped := 0
			for _, n := range w.Needs {
				if n.Peer >= 0 && canHelp(n.Peer, r) || n.Peer < 0 && (canHelp(n.Peers[0], r) || canHelp(n.Peers[1], r)) {
					helped++
				}
			}
			if helped == len(w.Needs) || w.Any && helped > 0 {
				return false
			}
		}
	}
	return true
}
