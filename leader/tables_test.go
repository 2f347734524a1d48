package leader

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func links(text string) (all []Link) {
	for w := range strings.FieldsSeq(text) {
		from, rest, _ := strings.Cut(w, "→")
		to, network, _ := strings.Cut(rest, "@")
		all = append(all, Link{from, to, network})
	}
	return all
}

func texts(all []Suspect) (out []string) {
	for _, s := range all {
		out = append(out, s.String())
	}
	return out
}

func TestBlame(t *testing.T) {
	out := func(h string) Port { return Port{h, "", true} }
	in := func(h string) Port { return Port{h, "", false} }
	tests := []struct {
		name, fell   string
		fine         []Port
		odd, starved []string
		want         string
	}{
		{name: "nothing", want: ""},
		{name: "one link", fell: "X→Y", want: "link X→Y"},
		{name: "one link of a host with foreign traffic", fell: "X→Y", odd: []string{"Y"}, want: "host Y, inwards"},
		{name: "two links out of one host", fell: "X→Y X→Z", want: "host X, outwards"},
		{name: "two links out, a third is fine", fell: "X→Y X→Z", fine: []Port{out("X"), in("W")}, want: "link X→Y, link X→Z"},
		{name: "what is fine inwards says nothing of outwards", fell: "X→Y X→Z", fine: []Port{in("X"), out("Y")}, want: "host X, outwards"},
		{name: "both directions of one host", fell: "X→Y X→Z Y→X Z→X", want: "host X"},
		{name: "a host between its source and its sink", fell: "Y→X X→W", want: "host X"},
		{name: "between them, and what it sends elsewhere is fine", fell: "Y→X X→W", fine: []Port{out("X"), in("Z")}, want: "link Y→X, link X→W"},
		{name: "two links that share no host", fell: "Y→X Z→W", want: "link Y→X, link Z→W"},
		{name: "two hosts apart", fell: "A→B A→C D→E D→F", want: "host A, outwards; host D, outwards"},
		{name: "a host and a link elsewhere", fell: "A→B A→C D→E", want: "host A, outwards; link D→E"},
		{name: "two directions of one link", fell: "A→B B→A", want: "link A→B, link B→A"},
		{name: "a starved host explains its links", fell: "X→Y Z→X A→B", starved: []string{"X"}, want: "host X; link A→B"},
		{name: "one network of a host", fell: "X→Y@lan X→Z@lan", fine: []Port{{"X", "san", true}}, want: "host X on lan, outwards"},
		{name: "two networks are two suspects", fell: "X→Y@lan X→Z@san", want: "link X→Y lan, link X→Z san"},
		{name: "the odd one of two that explain as much", fell: "X→Y", odd: []string{"Y", "Q"}, want: "host Y, inwards"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Blame(Evidence{Fell: links(tt.fell), Fine: tt.fine, Odd: tt.odd, Starved: tt.starved})
			var want []string
			if tt.want != "" {
				for w := range strings.SplitSeq(strings.ReplaceAll(tt.want, ", link", "; link"), "; ") {
					want = append(want, w)
				}
			}
			require.ElementsMatch(t, want, texts(got))
		})
	}
}

// TestBlameIsSmallAndWhole compares the greedy search with the exact one, on all that both can do.
func TestBlameIsSmallAndWhole(t *testing.T) {
	hosts := []string{"A", "B", "C", "D"}
	var all []Link
	for _, a := range hosts {
		for _, b := range hosts {
			if a != b {
				all = append(all, Link{From: a, To: b})
			}
		}
	}
	smaller := 0
	for bits := range 1 << len(all) {
		var ev Evidence
		for i, l := range all {
			if bits>>i&1 == 1 {
				ev.Fell = append(ev.Fell, l)
			}
		}
		alone := eligible(ev, ev.Fell)
		able := suspectable{alone, whole(ev, ev.Fell, alone)}
		best, quick := exact(ev.Fell, able), greedy(ev.Fell, able)
		for _, set := range [][]element{best, quick} {
			for _, l := range ev.Fell {
				hit := false
				for _, e := range set {
					hit = hit || e.hits(l)
				}
				require.True(t, hit, "%v does not explain %v of %v", set, l, ev.Fell)
			}
		}
		require.LessOrEqual(t, len(best), len(quick), "%v", ev.Fell)
		if len(best) < len(quick) {
			smaller++
		}
	}
	t.Logf("the exact set is smaller in %d of %d cases", smaller, 1<<len(all))
}

func TestJudge(t *testing.T) {
	host := Suspect{Host: "X", Out: true}
	link := Suspect{Link: Link{From: "X", To: "Y"}}
	fall := []Fall{{Link{From: "X", To: "Y"}, 10e6, 1e6}}
	tests := []struct {
		name    string
		suspect Suspect
		falls   []Fall
		reading HostReading
		usual   float64
		want    Kind
		why     string
	}{
		{"nothing is known", host, fall, HostReading{}, 0, Slow, "nothing else"},
		{"a link", link, fall, HostReading{}, 0, Slow, "it delivers 10 %"},
		{"foreign traffic", host, fall, HostReading{Cores: 2, ForeignOut: 8e6}, 0, Flood, "it sends 8 MB/s"},
		{"a little foreign traffic", host, fall, HostReading{Cores: 2, ForeignIn: 1e6}, 0, Slow, ""},
		{"a flood, and a busy job", host, fall, HostReading{Cores: 2, Busy: 2, ForeignIn: 8e6}, 0, Flood, "it receives"},
		{"others take the cores", host, fall, HostReading{Cores: 2, Busy: 0.5, Others: 1.5, Pressure: 0.8}, 0, Starve, "others take 1.5"},
		{"others are there, and nobody waits", host, fall, HostReading{Cores: 2, Busy: 0.5, Others: 1.5}, 0, Slow, ""},
		{"stolen", host, nil, HostReading{Cores: 2, Steal: 1, Pressure: 0.8}, 0, Starve, "hypervisor"},
		{"a quota", host, fall, HostReading{Cores: 2, Throttled: 0.5}, 0, Starve, "quota"},
		{"the job's own ranks", host, fall, HostReading{Cores: 2, Busy: 2, Pressure: 0.9}, 1, Program, "1.0 usually"},
		{"as busy as ever", host, fall, HostReading{Cores: 2, Busy: 2}, 2, Slow, ""},
		{"a link whose end is starved", link, fall, HostReading{Cores: 2, Others: 2, Pressure: 0.8}, 0, Starve, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := Judge(tt.suspect, tt.falls, map[string]HostReading{"X": tt.reading}, map[string]float64{"X": tt.usual})
			require.Equal(t, tt.want, v.Kind, "%q", v.Reasons)
			require.Contains(t, strings.Join(v.Reasons, "; "), tt.why)
		})
	}
}

func TestWeigh(t *testing.T) {
	nothing := Option{What: "nothing"}
	tests := []struct {
		name    string
		options []Option
		want    string
		why     string
	}{
		{"the cheapest that is nearly as good", []Option{nothing, {What: "path", Benefit: 40, Surely: 40, Cost: 1}, {What: "move", Benefit: 50, Surely: 50, Cost: 1}}, "path", "cheapest"},
		{"not if it is much worse", []Option{nothing, {What: "path", Benefit: 10, Surely: 10, Cost: 1}, {What: "move", Benefit: 50, Surely: 50, Cost: 1}}, "move", "cheapest"},
		{"nor if it perhaps is", []Option{nothing, {What: "one", Benefit: 40, Surely: 2, Cost: 1}, {What: "all", Benefit: 50, Surely: 50, Cost: 2}}, "all", "cheapest"},
		{"what may bring much, where nothing surely does", []Option{nothing, {What: "one", Benefit: 30, Surely: 2, Cost: 1}, {What: "all", Benefit: 40, Surely: 3, Cost: 2}}, "all", "as much"},
		{"what does not pay is out", []Option{nothing, {What: "path", Benefit: 3, Surely: 3, Cost: 2}, {What: "move", Benefit: 5, Surely: 5, Cost: 4}}, "nothing", "no remedy would pay"},
		{"what is refused is out", []Option{nothing, {What: "path", Refused: "a"}, {What: "move", Refused: "b"}}, "nothing", "b"},
		{"what cannot be done is no reason where something does not pay", []Option{nothing, {What: "path", Refused: "a"}, {What: "move", Benefit: 5, Cost: 4}}, "nothing", "pay"},
		{"nothing is to be had", []Option{nothing, {What: "path"}}, "nothing", "pay"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why := Weigh(tt.options)
			require.Equal(t, tt.want, got.What)
			require.Contains(t, why, tt.why)
		})
	}
}

func TestWhatComesBackWithAPartOfTheTraffic(t *testing.T) {
	for _, tt := range []struct {
		why                      string
		left, share, most, least float64
	}{
		{"half of the capacity is enough for the other half", 0.5, 0.5, 1, 1},
		{"a tenth serves the other half at twice the pace", 0.1, 0.5, 0.5, 0.1 / 0.9},
		{"nothing is left for the others", 0, 0.9, 0.9, 0},
		{"there are no others", 0, 1, 1, 1},
		{"nothing was lost", 1, 0.5, 1, 1},
	} {
		most, least := relief(tt.left, tt.share)
		require.InDelta(t, tt.most, most, 1e-9, tt.why)
		require.InDelta(t, tt.least, least, 1e-9, tt.why)
	}
}

func TestChoose(t *testing.T) {
	a := Candidate{Host: "a", Trusted: true, Room: 1}
	with := func(f func(c *Candidate)) Candidate { c := a; c.Host = "b"; f(&c); return c }
	tests := []struct {
		name  string
		other Candidate
		must  bool
		want  string
	}{
		{"the first of equals", with(func(c *Candidate) {}), false, "a"},
		{"where its data goes", with(func(c *Candidate) { c.ToThere = 1 }), false, "b"},
		{"where it goes before where it comes from", with(func(c *Candidate) { c.FromThere = 9 }), false, "b"},
		{"not where there is no core", with(func(c *Candidate) { c.ToThere, c.Crowded = 1, true }), false, "a"},
		{"not where there is no memory", with(func(c *Candidate) { c.ToThere, c.NoMemory = 1, true }), true, "a"},
		{"not to a host that is not trusted", with(func(c *Candidate) { c.ToThere, c.Trusted = 1, false }), false, "a"},
		{"not into quarantine", with(func(c *Candidate) { c.ToThere, c.Quarantined = 1, true }), true, "a"},
		{"where there is more room", with(func(c *Candidate) { c.Room = 2 }), false, "b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, all := range [][]Candidate{{a, tt.other}, {tt.other, a}} {
				c, _, ok := Choose(all, tt.must)
				require.True(t, ok)
				require.Equal(t, tt.want, c.Host)
			}
		})
	}
	for _, tt := range []struct {
		c    Candidate
		must bool
		ok   bool
		why  string
	}{
		{with(func(c *Candidate) { c.Trusted = false }), false, true, ""},
		{with(func(c *Candidate) { c.Quarantined = true }), true, true, ""},
		{with(func(c *Candidate) { c.Quarantined = true }), false, false, "quarantine"},
		{with(func(c *Candidate) { c.NoMemory = true }), true, false, "memory"},
	} {
		_, why, ok := Choose([]Candidate{tt.c}, tt.must)
		require.Equal(t, tt.ok, ok, "%+v must %v", tt.c, tt.must)
		require.Contains(t, why, tt.why)
	}
	_, why, ok := Choose(nil, true)
	require.False(t, ok)
	require.Contains(t, why, "room")
}

func TestQuarantine(t *testing.T) {
	var q quarantine
	const first, most = quarantineFirst, quarantineMost
	now := start
	for _, want := range []time.Duration{first, 2 * first, 4 * first, 8 * first, 16 * first, most, most} {
		require.True(t, q.blame(now, "flood"))
		require.Equal(t, want, q.until.Sub(now))
		require.False(t, q.blame(now.Add(want-1), "flood"), "blamed twice for one thing")
		require.True(t, q.holds(now.Add(want-1)))
		require.False(t, q.holds(now.Add(want)))
		now = q.until
	}
	require.True(t, q.blame(now.Add(most), "flood"))
	require.Equal(t, first, q.until.Sub(now.Add(most)), "a good host's past is not forgotten")
}

func TestWindow(t *testing.T) {
	var w window
	w.add(start)
	w.add(start.Add(time.Second))
	require.Equal(t, 2, w.count(start.Add(59*time.Second)))
	require.Equal(t, 1, w.count(start.Add(time.Minute)))
	require.Equal(t, 0, w.count(start.Add(2*time.Minute)))
}
