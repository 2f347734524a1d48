package chaos

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const s, ms = time.Second, time.Millisecond

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       Schedule
		says       string // empty: text itself
	}{
		{"a kill", "kill 2@5s", Schedule{Kill(2).At(5 * s)}, ""},
		{"a stop", "stop 3@8s for 4s", Schedule{Stop(3).At(8 * s).For(4 * s)}, ""},
		{"a stop until the end", "stop 0@0s", Schedule{Stop(0)}, ""},
		{"a stop after whole minutes", "stop 0@10m for 20h", Schedule{Stop(0).At(10 * time.Minute).For(20 * time.Hour)}, ""},
		{"a duty", "duty 1 10%@3s for 5s", Schedule{Duty(1, 10).At(3 * s).For(5 * s)}, ""},
		{"a move", "move 2@4s", Schedule{Move(2).At(4 * s)}, ""},
		{"a move to a host", "move 2 to node-7.x@4s", Schedule{Move(2).To("node-7.x").At(4 * s)}, ""},
		{"a slow host", "slow X 5mbit@3s for 4s", Schedule{Slow("X", "5mbit").At(3 * s).For(4 * s)}, ""},
		{"a slow cable", "slow X/lan 1.5gbit@3s", Schedule{Slow("X/lan", "1.5gbit").At(3 * s)}, ""},
		{"a host is cut off", "cut X@9s for 2s", Schedule{Cut("X").At(9 * s).For(2 * s)}, ""},
		{"a cable is pulled", "cut X/san@9s", Schedule{Cut("X/san").At(9 * s)}, ""},
		{"two hosts are apart", "cut X|Y@9s for 2s", Schedule{Cut("X", "Y").At(9 * s).For(2 * s)}, ""},
		{"groups are apart", "cut X,W|Y,Z|A@9s", Schedule{Cut("X,W", "Y,Z", "A").At(9 * s)}, ""},
		{"a flood", "flood X@12s for 10s", Schedule{Flood("X").At(12 * s).For(10 * s)}, ""},
		{"a flood from a host", "flood X from A@12s", Schedule{Flood("X").From("A").At(12 * s)}, ""},
		{"random", "random seed=7 kills=10 every=2s", Schedule{Random{Seed: 7, Kills: 10, Every: 2 * s}}, ""},
		{"random of all", "random seed=7 kills=1 stops=2 duties=3 moves=4 every=500ms@5s for 1s",
			Schedule{Random{Seed: 7, Kills: 1, Stops: 2, Duties: 3, Moves: 4, Every: 500 * ms, Start: 5 * s, Length: s}}, ""},
		{"random of hosts", "random seed=7 kills=1 slows=2 cuts=3 floods=1 hosts=X,Y every=4s for 2s",
			Schedule{Random{Seed: 7, Kills: 1, Slows: 2, Cuts: 3, Floods: 1, Hosts: []string{"X", "Y"}, Every: 4 * s, Length: 2 * s}}, ""},
		{"several", "kill 2@5s; stop 3@8s for 4s; random seed=0 moves=1 every=1s",
			Schedule{Kill(2).At(5 * s), Stop(3).At(8 * s).For(4 * s), Random{Moves: 1, Every: s}}, ""},
		{"spaces and empty faults", " ;kill\t2 @ 1500ms ;; stop 3@120s  for  60m;\n", Schedule{Kill(2).At(1500 * ms), Stop(3).At(2 * time.Minute).For(time.Hour)},
			"kill 2@1.5s; stop 3@2m for 1h"},
		{"words of random in another order", "random every=1s moves=1 seed=3", Schedule{Random{Seed: 3, Moves: 1, Every: s}}, "random seed=3 moves=1 every=1s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse(c.text)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			if c.says == "" {
				c.says = c.text
			}
			require.Equal(t, c.says, got.String())
		})
	}
}

func TestParseSaysWhereAndWhat(t *testing.T) {
	for _, c := range []struct{ text, at, says string }{ // at: the text from there on
		{"", "", "there is no fault"},
		{" ; ", " ; ", "there is no fault"},
		{"kill 1@1s; kil 2@4s", "kil 2@4s", `"kil" is no fault: there are kill`},
		{"kill@5s", "@5s", "something is missing: write kill RANK@TIME"},
		{"kill x@5s", "x@5s", `"x" is no rank`},
		{"kill -1@5s", "-1@5s", `"-1" is no rank`},
		{"kill 2", "", "it does not say when: write kill RANK@TIME, such as kill 2@5s"},
		{"kill 2 5s", "5s", `"5s" is not expected there: it does not say when`},
		{"kill 2@", "", "something is missing"},
		{"kill 2@5", "5", `"5" is no time: write one such as 5s`},
		{"kill 2@-5s", "-5s", "is no time"},
		{"kill 2@5s for 3s", "kill 2@5s for 3s", "a kill is a moment: it has no length"},
		{"move 2@5s for 3s", "move 2@5s for 3s", "a move is a moment"},
		{"kill 2@5s 6s", "6s", `"6s" is not expected there`},
		{"stop 3@8s for", "", "something is missing: write stop RANK@TIME for TIME"},
		{"stop 3@8s for 0s", "0s", `leave out "for"`},
		{"stop 3@8s for 4s 5s", "5s", "is not expected there"},
		{"duty 1@3s", "@3s", "something is missing: write duty"},
		{"duty 1 10@3s", "10@3s", "write 1% to 99%"},
		{"duty 1 100%@3s", "100%@3s", "write 1% to 99%"},
		{"move 2 to@4s", "@4s", "something is missing"},
		{"slow X@3s", "@3s", "something is missing"},
		{"slow X 5mb@3s", "5mb@3s", "write a number and kbit, mbit or gbit"},
		{"slow X 1kbit@3s", "1kbit@3s", "from 8kbit to 400gbit"},
		{"slow X/ 5mbit@3s", "X/ 5mbit@3s", "is the name of a network"},
		{"slow X/l/m 5mbit@3s", "slow X/l/m 5mbit@3s", `"l/m" is no name of a network`},
		{"cut X|@3s", "cut X|@3s", "the name of a host is missing"},
		{"cut X|Y,X@3s", "cut X|Y,X@3s", "host X is there twice"},
		{"cut X!@3s", "cut X!@3s", `"X!" is no name of a host`},
		{"cut Zoë@3s", "cut Zoë@3s", `"Zoë" is no name of a host: those are letters, digits`},
		{"kill 1@1s; move 2 to X\xff@3s", "\xff@3s", "the byte 0xff is no UTF-8: names of hosts"},
		{"cut X|Y\xe2\x82@3s", "\xe2\x82@3s", "the byte 0xe2 is no UTF-8"},
		{"slow X/\x80 5mbit@3s", "\x80 5mbit@3s", "the byte 0x80 is no UTF-8"},
		{"random cuts=1 hosts=X,\xff every=1s", "\xff every=1s", "the byte 0xff is no UTF-8"},
		{"cut \ufffd@3s", "cut \ufffd@3s", "is no name of a host"},
		{"flood X from X@3s", "flood X from X@3s", "cannot flood itself"},
		{"random seed=1 kills=3", "random seed=1 kills=3", "every=2s"},
		{"random seed=1 every=1s", "random seed=1 every=1s", "random of nothing"},
		{"random seed=x kills=1 every=1s", "seed=x kills=1 every=1s", "a seed is a number"},
		{"random kills=1 kills=2 every=1s", "kills=2 every=1s", "kills is there twice"},
		{"random lies=1 every=1s", "lies=1 every=1s", "nothing that random takes"},
		{"random floods=1 every=1s", "random floods=1 every=1s", "hosts=X,Y"},
		{"random kills=1 hosts=X every=1s", "random kills=1 hosts=X every=1s", "there are none"},
		{"random cuts=1 hosts=X,X every=1s", "random cuts=1 hosts=X,X every=1s", "there twice"},
		{"random cuts=1 hosts=X, every=1s", "random cuts=1 hosts=X, every=1s", "name of a host is missing"},
		{"random cuts=1 hosts=X every=1s for 2s", "random cuts=1 hosts=X every=1s for 2s", "must have ended"},
		{"random kills=99999 every=1s", "random kills=99999 every=1s", "from 0 to 10000"},
	} {
		_, err := Parse(c.text)
		se, ok := errors.AsType[*SyntaxError](err)
		require.True(t, ok, "Parse(%q) = %v", c.text, err)
		require.Equal(t, c.at, c.text[se.Offset:], "where in %q: %v", c.text, err)
		require.ErrorContains(t, err, c.says, c.text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("kill 2@5s; stop 3@8s for 4s; slow X 5mbit@3s for 4s; cut X|Y@9s for 2s; flood X@12s for 10s; duty 1 10%@3s for 5s; move 2@4s")
	f.Add("random seed=3 slows=1 cuts=2 floods=1 hosts=X,Y every=2s@5s for 1s")
	f.Add("random seed=7 kills=10 stops=1 duties=2 moves=3 every=2s@5s for 1s; move 2 to Y@1h; flood X from A@1m1s; cut X/lan@0s")
	f.Fuzz(func(t *testing.T, text string) {
		first, err := Parse(text)
		if err != nil {
			se, ok := errors.AsType[*SyntaxError](err)
			if !ok || se.Offset < 0 || se.Offset > len(text) || !strings.Contains(text, se.Item) {
				t.Fatalf("Parse(%q) = %v, which is not about a place in it", text, err)
			}
			return
		}
		again, err := Parse(first.String())
		require.NoError(t, err)
		require.Equal(t, first, again)
		require.Equal(t, first.String(), again.String())
		faults, err := first.Faults(4) // an error where it names ranks that four do not have
		require.True(t, err == nil || len(faults) == 0, "%v: %v", err, faults)
		for i, x := range faults {
			require.NoError(t, x.check(), "%v", x)
			require.True(t, i == 0 || faults[i-1].Start <= x.Start, "%v", faults)
		}
	})
}

func TestFaultsRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		s    Schedule
		says string
	}{
		{"no such rank", Schedule{Kill(4)}, "kill 4@0s: the job has ranks 0 to 3"},
		{"nil", Schedule{nil}, "nil"},
		{"built wrong", Schedule{Kill(-1)}, "no rank -1"},
		{"of no kind", Schedule{Fault{}}, "is no fault"},
		{"a moment that lasts", Schedule{Move(1).For(s)}, "moment"},
		{"two rates", Schedule{Slow("X", "5mbit").At(2 * s), Slow("X/lan", "9mbit").For(3 * s)}, "begins while slow X/lan 9mbit@0s for 3s lasts"},
		{"two rates of all networks", Schedule{Slow("X/lan", "5mbit").At(2 * s), Slow("X", "9mbit")}, "begins while slow X 9mbit@0s lasts"},
		{"two rates of a network, and one of another", Schedule{Slow("X/lan", "5mbit").For(9 * s), Slow("X/san", "5mbit").At(s), Slow("X/lan", "9mbit").At(2 * s)}, "begins while slow X/lan 5mbit@0s for 9s lasts"},
		{"two partitions", Schedule{Cut("X", "Y"), Cut("Z", "W").At(s)}, "begins while cut X|Y@0s lasts"},
		{"too many", Schedule{Random{Kills: 9999, Every: s}, Random{Kills: 9999, Every: s}}, "more than 10000"},
	} {
		_, err := c.s.Faults(4)
		require.ErrorContains(t, err, c.says, c.name)
	}
	_, err := Schedule{Slow("X", "5mbit").For(2 * s), Slow("X", "9mbit").At(2 * s), Slow("Y", "5mbit"), Slow("Z/lan", "5mbit"), Slow("Z/san", "9mbit"), Stop(1), Stop(1), Cut("X", "Y"), Cut("Y").At(s)}.Faults(4)
	require.NoError(t, err)
}

func TestRandomIsOfItsSeed(t *testing.T) {
	r := Random{Seed: 7, Kills: 6, Stops: 5, Duties: 4, Moves: 3, Every: 2 * s, Start: s}
	a, err := Schedule{r}.Faults(4)
	require.NoError(t, err)
	b, _ := Schedule{r}.Faults(4)
	require.Equal(t, a, b)
	r.Seed++
	c, _ := Schedule{r}.Faults(4)
	require.NotEqual(t, a, c)
	kinds, ranks := map[Kind]int{}, map[int]bool{}
	for i, f := range a {
		kinds[f.Kind]++
		ranks[f.Rank] = true
		from := s + time.Duration(i)*2*s
		require.True(t, f.Start >= from && f.Start < from+2*s, "fault %d is %v", i, f)
		if f.Lasts() {
			require.Equal(t, s, f.Length)
		}
	}
	require.Equal(t, map[Kind]int{KindKill: 6, KindStop: 5, KindDuty: 4, KindMove: 3}, kinds)
	require.Len(t, ranks, 4)
}

// What is done to hosts ends before anything else begins to be done to them, whatever the seed.
func TestRandomFaultsOfHostsDoNotMeet(t *testing.T) {
	for seed := range uint64(50) {
		r := Random{Seed: seed, Kills: 2, Slows: 4, Cuts: 4, Floods: 4, Hosts: []string{"X", "Y"}, Every: 2 * s, Length: 2*s - ms}
		all, err := Schedule{r}.Faults(4)
		require.NoError(t, err, "seed %d", seed)
		kinds, hosts, free := map[Kind]int{}, map[string]bool{}, time.Duration(0)
		for _, f := range all {
			kinds[f.Kind]++
			if f.OfRank() {
				continue
			}
			hosts[f.Host] = true
			require.NoError(t, f.check())
			require.GreaterOrEqual(t, f.Start, free, "%v in %v", f, all)
			free = f.Start + f.Length
		}
		require.Equal(t, map[Kind]int{KindKill: 2, KindSlow: 4, KindCut: 4, KindFlood: 4}, kinds)
		require.Len(t, hosts, 2)
	}
}
