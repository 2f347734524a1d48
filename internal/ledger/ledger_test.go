package ledger

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func job() Entry {
	return Entry{Job: &Job{Name: "j", Plan: json.RawMessage(`{"n":3}`), Hosts: []string{"a", "b", "c"}, Processes: []Added{
		{Host: 0, Ranks: []int{0}}, {Host: 1, Ranks: []int{1}}, {Host: 2, Ranks: []int{2}}, {Host: 1, Slot: 1}, {Host: 2, Slot: 1},
	}}}
}

// stateOf applies all, which must follow each other.
func stateOf(t *testing.T, all ...Entry) *State {
	t.Helper()
	s := new(State)
	for _, e := range all {
		require.NoError(t, s.Apply(e), "%v", e)
	}
	return s
}

func TestRanksComeAndGo(t *testing.T) {
	s := stateOf(t, job(), Entry{Started: &Started{Copied: true}},
		Entry{Moving: &Moving{Rank: 0, From: 0, To: 3, Epoch: 2}},
		Entry{Came: &Came{Epoch: 2}},
		Entry{MoveEnded: &MoveEnded{Epoch: 2}},
		Entry{Moving: &Moving{Rank: 1, From: 1, To: 4, Epoch: 3}},
		Entry{Void: &Void{Epoch: 3}},
		Entry{HostLost: &HostLost{Host: 2}},
		Entry{Recovered: &Recovered{Epoch: 4, Lost: []int{2, 4}, Ranks: []Revived{{Rank: 2, Process: 0, From: Version{1, 7}, File: "f"}}}},
	)
	require.Equal(t, uint32(4), s.Epoch())
	require.Equal(t, []int{3, 1, 0}, []int{s.ProcessOf(0), s.ProcessOf(1), s.ProcessOf(2)})
	require.Equal(t, []Kind{Moved, Voided, Recovery}, []Kind{s.Change(2).Kind, s.Change(3).Kind, s.Change(4).Kind})
	require.Nil(t, s.Change(1))
	require.Nil(t, s.Change(5))
	require.Equal(t, []uint32{1, 2}, s.Lives(0))
	require.Equal(t, []uint32{1}, s.Lives(1))
	require.Equal(t, []uint32{1, 4}, s.Lives(2))
	require.True(t, s.Processes[2].Gone && s.Processes[4].Gone)
	require.True(t, s.Started && s.Copied)
}

// Of several ranks in a process the others stay when one moves; and of a host that the job began with and that is
// lost, they are still to go on elsewhere.
func TestRanksThatShareAProcess(t *testing.T) {
	j := Entry{Job: &Job{Name: "j", Hosts: []string{"a", "b"}, Processes: []Added{{Host: 0, Ranks: []int{0, 1, 2}}, {Host: 1}}}}
	s := stateOf(t, j, Entry{Moving: &Moving{Rank: 1, From: 0, To: 1, Epoch: 2}}, Entry{Came: &Came{Epoch: 2}}, Entry{HostLost: &HostLost{Host: 0}})
	require.Equal(t, []int{0, 2}, s.Processes[0].Ranks)
	require.Equal(t, []int{1}, s.Processes[1].Ranks)
	require.False(t, s.Processes[0].Gone)
}

// A host that is being drained is drained by the next head, too, if it was cordoned meanwhile.
func TestACordonEndsNoDrain(t *testing.T) {
	order := func(op string) Entry { return Entry{Order: &Order{op, "a"}} }
	require.Equal(t, []Order{{"drain", "a"}}, stateOf(t, job(), order("drain"), order("cordon")).Orders)
	require.Equal(t, []Order{{"drain", "a"}}, stateOf(t, job(), order("cordon"), order("drain")).Orders)
	require.Equal(t, []Order{{"cordon", "a"}}, stateOf(t, job(), order("drain"), order("uncordon"), order("cordon")).Orders)
	require.Empty(t, stateOf(t, job(), order("cordon"), order("uncordon")).Orders)
}

func TestHostsAreAdded(t *testing.T) {
	add := func(name string) Entry { return Entry{HostAdded: &HostAdded{name, json.RawMessage(`{"s":2}`)}} }
	s := stateOf(t, job(), Entry{Started: &Started{}},
		add("d"), Entry{Added: &Added{Host: 3}}, Entry{Joined: &Joined{Host: 3, Agent: json.RawMessage(`{"c":1}`)}},
		add("e"), Entry{Added: &Added{Host: 4}}, Entry{HostLost: &HostLost{Host: 4}},
		Entry{Moving: &Moving{Rank: 2, From: 2, To: 5, Epoch: 2}}, Entry{Came: &Came{Epoch: 2}},
		Entry{HostLost: &HostLost{Host: 3}}, add("d"),
	)
	require.Equal(t, 5, s.ProcessOf(2))
	require.False(t, s.Processes[5].Gone, "its rank goes on elsewhere first")
	require.True(t, s.Processes[6].Gone, "it never took part")
	require.Equal(t, []bool{false, false, false, true, true, false}, []bool{s.Hosts[0].Lost, s.Hosts[1].Lost, s.Hosts[2].Lost, s.Hosts[3].Lost, s.Hosts[4].Lost, s.Hosts[5].Lost})
	again := new(State)
	require.NoError(t, again.Restore(s.Snapshot()))
	require.Equal(t, string(s.Snapshot()), string(again.Snapshot()))
}

// Of verdicts the first counts, of what is covered the newest: heads may say either again, and late.
func TestWhatIsSaidAgain(t *testing.T) {
	covered := func(epoch uint32, number uint64) Entry {
		return Entry{Covered: &Covered{Rank: 1, Version: Version{epoch, number}}}
	}
	s := stateOf(t, job(), covered(2, 1), covered(1, 9), covered(2, 0),
		Entry{Verdict: &Verdict{Code: 3, Text: "first"}}, Entry{Verdict: &Verdict{Code: 4, Text: "then"}})
	require.Equal(t, Version{2, 1}, s.Covered[1])
	require.Equal(t, "first", s.Verdict.Text)
}

// What waits is done in the order in which it was said, also what is said by what is being done.
func TestWhatWaitsKeepsItsOrder(t *testing.T) {
	p := NewPen(stateOf(t, job()))
	n, err := p.Write(Entry{Started: &Started{}})
	require.NoError(t, err)
	var did []string
	do := func(what string) func() { return func() { did = append(did, what) } }
	p.Then(func() { p.Then(do("c")); do("a")() })
	p.Then(do("b"))
	require.Empty(t, did)
	p.Agreed(n)
	p.Then(do("d"))
	require.Equal(t, []string{"a", "b", "c", "d"}, did)
}

// What is agreed on stays so, and what waited for it is done once, also if that makes more be agreed on.
func TestWhatWaitedIsDoneOnce(t *testing.T) {
	p := NewPen(stateOf(t, job()))
	first, second := p.Again(), p.Again()
	did := 0
	p.Then(func() { did++; p.Agreed(second) })
	p.Agreed(second)
	require.Equal(t, 1, did)
	p.Agreed(first)
	require.False(t, p.Waits())
}

func TestWhatCannotFollowIsRefused(t *testing.T) {
	moving := Entry{Moving: &Moving{Rank: 0, From: 0, To: 3, Epoch: 2}}
	for _, c := range []struct {
		name   string
		before []Entry
		then   Entry
		says   string
	}{
		{"nothing", nil, Entry{}, "says nothing"},
		{"a second job", nil, job(), "a job already"},
		{"a host that is none", nil, Entry{HostLost: &HostLost{Host: 3}}, "no host 3"},
		{"a rank that is elsewhere", nil, Entry{Moving: &Moving{Rank: 0, From: 1, To: 3, Epoch: 2}}, "rank 0 is not in process 1"},
		{"a map out of turn", nil, Entry{Moving: &Moving{Rank: 0, From: 0, To: 3, Epoch: 3}}, "cannot follow"},
		{"a process that has a rank", nil, Entry{Moving: &Moving{Rank: 0, From: 0, To: 1, Epoch: 2}}, "process 1 takes no rank"},
		{"two ranks to one process", []Entry{moving}, Entry{Moving: &Moving{Rank: 1, From: 1, To: 3, Epoch: 3}}, "process 3 is to take rank 0"},
		{"a rank that moves twice", []Entry{moving}, Entry{Moving: &Moving{Rank: 0, From: 0, To: 4, Epoch: 3}}, "rank 0 is being moved"},
		{"a rank whose move has not ended", []Entry{moving, {Came: &Came{Epoch: 2}}}, Entry{Moving: &Moving{Rank: 0, From: 3, To: 4, Epoch: 3}}, "rank 0 is being moved"},
		{"void when it has come", []Entry{moving, {Came: &Came{Epoch: 2}}}, Entry{Void: &Void{Epoch: 2}}, "is known: moved"},
		{"come when it is void", []Entry{moving, {Void: &Void{Epoch: 2}}}, Entry{Came: &Came{Epoch: 2}}, "no move that goes on"},
		{"a rank that lives goes on elsewhere", nil, Entry{Recovered: &Recovered{Epoch: 2, Lost: []int{1}, Ranks: []Revived{{Rank: 0, Process: 3}, {Rank: 1, Process: 4}}}}, "rank 0 is in no process that is lost"},
		{"a rank is left behind", nil, Entry{Recovered: &Recovered{Epoch: 2, Lost: []int{0}}}, "rank 0 of process 0 is left behind"},
		{"one of several is left behind", nil, Entry{Recovered: &Recovered{Epoch: 2, Lost: []int{0, 1}, Ranks: []Revived{{Rank: 0, Process: 3}}}}, "rank 1 of process 1 is left behind"},
		{"a process that is lost takes a rank", nil, Entry{Recovered: &Recovered{Epoch: 2, Lost: []int{1, 3}, Ranks: []Revived{{Rank: 1, Process: 3}}}}, "process 3 takes no rank"},
		{"a process that is added with ranks", nil, Entry{Added: &Added{Host: 0, Ranks: []int{0}}}, "has no ranks"},
		{"a condemned process takes a rank", []Entry{{Condemned: &Condemned{Process: 3}}}, moving, "process 3 takes no rank"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := stateOf(t, append([]Entry{job()}, c.before...)...)
			before := s.Snapshot()
			require.ErrorContains(t, s.Apply(c.then), c.says)
			require.Equal(t, string(before), string(s.Snapshot()), "what is refused changes nothing")
		})
	}
	require.ErrorIs(t, new(State).Apply(moving), ErrJob)
}

// Whatever is offered, in whatever order: each rank is in one process that is not gone, and
// a ledger that is restored goes on as the one it was taken of.
func TestAnyEntries(t *testing.T) {
	taken := map[Kind]int{}
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		s := stateOf(t, job())
		twin := stateOf(t, job())
		for range 150 {
			e := someEntry(r, s)
			text := e.String()
			var again Entry
			require.NoError(t, json.Unmarshal([]byte(text), &again))
			require.Equal(t, s.Apply(e), twin.Apply(again), "seed %d: %s", seed, text)
			if r.IntN(10) == 0 {
				restored := new(State)
				require.NoError(t, restored.Restore(twin.Snapshot()))
				twin = restored
			}
			require.Equal(t, string(s.Snapshot()), string(twin.Snapshot()), "seed %d: %s", seed, text)
			where := map[int]int{}
			for i, p := range s.Processes {
				require.False(t, p.Gone && len(p.Ranks) > 0, "seed %d: process %d is gone and has ranks", seed, i)
				for _, rank := range p.Ranks {
					where[rank]++
				}
			}
			require.Equal(t, map[int]int{0: 1, 1: 1, 2: 1}, where, "seed %d: %s", seed, text)
		}
		for _, c := range s.Changes {
			taken[c.Kind]++
		}
	}
	for _, k := range []Kind{Moved, Voided, Recovery} {
		require.Greater(t, taken[k], 10, "%s", k)
	}
}

// someEntry is one that may well follow.
func someEntry(r *rand.Rand, s *State) Entry {
	rank, p, epoch := r.IntN(3), r.IntN(len(s.Processes)), s.Epoch()+uint32(r.IntN(2))
	switch r.IntN(11) {
	case 0:
		return Entry{Added: &Added{Host: r.IntN(3)}}
	case 1, 2:
		return Entry{Moving: &Moving{Rank: rank, From: s.ProcessOf(rank), To: p, Epoch: epoch}}
	case 3, 4:
		return Entry{Came: &Came{Epoch: epoch}}
	case 5:
		return Entry{Void: &Void{Epoch: epoch}}
	case 6:
		return Entry{MoveEnded: &MoveEnded{Epoch: epoch}}
	case 7:
		return Entry{Covered: &Covered{Rank: rank, Version: Version{epoch, uint64(r.IntN(9))}}}
	case 8:
		return Entry{Order: &Order{Op: []string{"drain", "cordon", "uncordon"}[r.IntN(3)], Host: "a"}}
	case 9:
		return Entry{Interrupted: &Interrupted{Signal: 2}}
	}
	lost := s.ProcessOf(rank)
	e := Recovered{Epoch: epoch, Lost: []int{lost}}
	for _, x := range s.Processes[lost].Ranks {
		e.Ranks = append(e.Ranks, Revived{Rank: x, Process: p})
	}
	return Entry{Recovered: &e}
}

// FuzzParse: what parses prints what parses to the same, and no entry breaks a ledger.
func FuzzParse(f *testing.F) {
	for _, e := range []Entry{job(), {Moving: &Moving{Rank: 1, From: 1, To: 3, Epoch: 2}}, {Recovered: &Recovered{Epoch: 2, Lost: []int{0}, Ranks: []Revived{{Rank: 0, Process: 3}}}}, {Verdict: &Verdict{Code: 3, Text: "x"}}} {
		f.Add([]byte(e.String()))
	}
	f.Add([]byte(`{"Came":{"Epoch":4294967295}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var e, again Entry
		if json.Unmarshal(text, &e) != nil {
			return
		}
		require.NoError(t, json.Unmarshal([]byte(e.String()), &again))
		require.Equal(t, e.String(), again.String())
		for _, s := range []*State{new(State), stateOf(t, job())} {
			before := slices.Clone(s.Snapshot())
			if s.Apply(e) != nil {
				require.Equal(t, string(before), string(s.Snapshot()))
			}
			require.NoError(t, new(State).Restore(s.Snapshot()))
		}
	})
}
