package buddy

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/identity"
	"github.com/mpiv/mpiv/internal/witness"
)

// A neighbour is the Keeper of one agent, with a directory of the job, and what it tells
// the first agent.
type neighbour struct {
	*Keeper
	index int
	told  chan control.FromAgent
	page  *witness.Page // as its processes have it
}

func neighbours(t *testing.T, n int) (all []*neighbour) {
	authority, err := identity.NewAuthority("job")
	require.NoError(t, err)
	for i := range n {
		issued, err := authority.Issue(identity.Agent, i)
		require.NoError(t, err)
		own, err := issued.Open()
		require.NoError(t, err)
		x := &neighbour{index: i, told: make(chan control.FromAgent, 100)}
		x.Keeper, err = Listen(own, func(m control.FromAgent) { x.told <- m })
		require.NoError(t, err)
		t.Cleanup(x.Keeper.Close)
		dir := t.TempDir()
		require.NoError(t, x.Home(dir))
		x.page, err = witness.Open(dir)
		require.NoError(t, err)
		t.Cleanup(func() { x.page.Close() })
		all = append(all, x)
	}
	return all
}

func (n *neighbour) asBuddy() control.Buddy {
	return control.Buddy{Agent: n.index, Addrs: []string{net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port()))}}
}

// file begins the choices of a life on n's host.
func (n *neighbour) file(t *testing.T, rank, epoch int) *checkpoint.Determinants {
	d, err := checkpoint.CreateDeterminants(filepath.Join(n.dir, fmt.Sprintf("choices-%d.%d", rank, epoch)))
	require.NoError(t, err)
	t.Cleanup(func() { d.Close() })
	n.page.AddFile()
	n.page.Record(1)
	return d
}

// choose records choices from to before end.
func (n *neighbour) choose(t *testing.T, d *checkpoint.Determinants, from, end uint64) {
	for i := from; i < end; i++ {
		require.NoError(t, d.Append(checkpoint.Determinant{Kind: 1, Source: -1, Count: 7, Seq: i, Value: 1 << 60}))
		n.page.Record(1)
	}
}

// witnessed waits until all is known to another host.
func (n *neighbour) witnessed(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		n.page.Wake()
		return n.page.Witnessed() >= n.page.Recorded()
	}, 20*time.Second, time.Millisecond)
}

// brought waits until n has told that an agent has brought choices of a rank, or, where that is -1, all that it has.
func (n *neighbour) brought(t *testing.T, rank, agent int) {
	t.Helper()
	for {
		select {
		case m := <-n.told:
			if m.Brought != nil && (m.Brought.Rank < 0) == (rank < 0) {
				require.Equal(t, control.Brought{Rank: rank, Agent: agent}, *m.Brought)
				return
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the first agent is not told")
		}
	}
}

// knows requires that n knows choices from to before end of a life on another host.
func (n *neighbour) knows(t *testing.T, rank, epoch int, from, end uint64) {
	t.Helper()
	d, err := checkpoint.OpenDeterminants(filepath.Join(n.dir, fmt.Sprintf("witness-%d.%d", rank, epoch)))
	require.NoError(t, err)
	defer d.Close()
	next := from
	for _, rec := range d.From(0) {
		require.Equal(t, checkpoint.Determinant{Kind: 1, Source: -1, Count: 7, Seq: next, Value: 1 << 60}, rec)
		next++
	}
	require.Equal(t, end, next)
}

// That nothing was chosen is told, and that something was as soon as it is known.
func TestNothingIsChosen(t *testing.T) {
	n := neighbours(t, 2)
	a, b := n[0], n[1]
	d := a.file(t, 0, 1)
	a.meet(b.asBuddy())
	a.page.Wake()
	for i, none := range []bool{true, false} {
		if i > 0 {
			a.choose(t, d, 0, 1)
			a.witnessed(t)
		}
		m := <-b.told
		require.NotNil(t, m.Brought)
		require.Equal(t, control.Brought{Rank: -1, None: none}, *m.Brought)
	}
	a.choose(t, d, 1, 10)
	a.witnessed(t)
	require.Empty(t, b.told, "it is told once")
}

// A process that was killed in the midst of Wake, when it had not rung yet, does not keep the agent asleep.
func TestWhoDiesWakingKeepsNobodyAsleep(t *testing.T) {
	n := neighbours(t, 2)
	a, b := n[0], n[1]
	d := a.file(t, 0, 1)
	a.meet(b.asBuddy())
	a.witnessed(t)
	f, err := os.OpenFile(filepath.Join(a.dir, "witness"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer f.Close()
	const asleepAt = 256
	word := make([]byte, 8)
	require.Eventually(t, func() bool {
		_, err := f.ReadAt(word, asleepAt)
		require.NoError(t, err)
		return word[0] == 1
	}, 20*time.Second, time.Millisecond, "it does not fall asleep")
	_, err = f.WriteAt(make([]byte, 8), asleepAt)
	require.NoError(t, err)
	a.choose(t, d, 0, 10)
	a.witnessed(t)
}

func TestChoicesAreWitnessed(t *testing.T) {
	n := neighbours(t, 3)
	a, b, c := n[0], n[1], n[2]
	first, second := a.file(t, 0, 1), a.file(t, 1, 1)
	a.choose(t, first, 0, 10)
	require.Less(t, a.page.Witnessed(), a.page.Recorded(), "nobody was named")
	a.meet(b.asBuddy())
	a.witnessed(t)
	b.brought(t, -1, 0)
	b.knows(t, 0, 1, 0, 10)
	b.knows(t, 1, 1, 0, 0)
	for i := uint64(0); i < 50; i++ {
		a.choose(t, second, i, i+1)
		a.choose(t, first, 10+i, 11+i)
		a.witnessed(t)
		b.knows(t, 1, 1, 0, i+1)
		b.knows(t, 0, 1, 0, 11+i)
	}

	require.NoError(t, first.Truncate(40)) // a snapshot is covered
	a.choose(t, first, 60, 70)
	a.witnessed(t)
	b.knows(t, 0, 1, 40, 70)

	// Another buddy is told all, and only then does anything leave.
	b.Close()
	a.choose(t, second, 50, 60)
	a.page.Wake()
	time.Sleep(20 * time.Millisecond)
	require.Less(t, a.page.Witnessed(), a.page.Recorded(), "nobody can know it")
	a.meet(c.asBuddy())
	a.witnessed(t)
	c.brought(t, -1, 0)
	c.knows(t, 0, 1, 40, 70)
	c.knows(t, 1, 1, 0, 60)

	// Nobody is left, so nobody is waited for; and then there is somebody.
	a.meet(control.Buddy{})
	require.Eventually(t, func() bool { a.page.Wake(); return a.page.Witnessed() == witness.Alone }, 20*time.Second, time.Millisecond)
	a.choose(t, second, 60, 61)
	a.meet(c.asBuddy())
	a.choose(t, second, 61, 62)
	require.Eventually(t, func() bool { a.page.Wake(); return a.page.Witnessed() == a.page.Recorded() }, 20*time.Second, time.Millisecond)
	a.witnessed(t)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.heard[control.Life{Rank: 1, Epoch: 1}].end() == 62
	}, 20*time.Second, time.Millisecond)
}

// A buddy that cannot be told is said to be none.
func TestChoicesThatCannotBeSent(t *testing.T) {
	t.Parallel()
	n := neighbours(t, 2)
	a, b := n[0], n[1]
	to := b.asBuddy()
	b.Close()
	a.file(t, 0, 1)
	a.meet(to)
	select {
	case m := <-a.told:
		require.NotNil(t, m.Uncopied)
		require.Equal(t, 1, m.Uncopied.Agent)
		require.Equal(t, -1, m.Uncopied.Rank)
	case <-time.After(30 * time.Second):
		t.Fatal("the first agent is not told")
	}
	require.Less(t, a.page.Witnessed(), a.page.Recorded())
}

// Choices are brought to where a rank goes on, from its host and from its buddy, and the
// more complete ones count.
func TestChoicesAreBrought(t *testing.T) {
	n := neighbours(t, 3)
	a, b, c := n[0], n[1], n[2]
	d := a.file(t, 3, 5)
	a.choose(t, d, 0, 30)
	require.NoError(t, d.Truncate(10))
	a.meet(b.asBuddy())
	a.witnessed(t)
	b.Do(control.ToAgent{Copy: &control.Copy{Rank: 3, Epoch: 5, To: c.asBuddy()}})
	c.brought(t, 3, 1)
	c.knows(t, 3, 5, 10, 30)
	require.NoError(t, d.Truncate(20))
	a.choose(t, d, 30, 40)
	a.Do(control.ToAgent{Copy: &control.Copy{Rank: 3, Epoch: 5, To: c.asBuddy()}})
	c.brought(t, 3, 0)
	c.knows(t, 3, 5, 20, 40)
	b.Do(control.ToAgent{Copy: &control.Copy{Rank: 3, Epoch: 6, To: c.asBuddy()}}) // of later lives nothing is known, and that is said
	c.brought(t, 3, 1)
}

// What a rank chose may hang on what its neighbours did, so it goes elsewhere when that is known
// elsewhere, too.
func TestChoicesAreBroughtAfterWhatTheyHangOn(t *testing.T) {
	n := neighbours(t, 3)
	a, b, c := n[0], n[1], n[2]
	first, second := a.file(t, 3, 5), a.file(t, 4, 5)
	a.meet(b.asBuddy())
	a.witnessed(t)
	b.mu.Lock() // it hears nothing
	a.choose(t, first, 0, 1)
	a.choose(t, second, 0, 1)
	a.Do(control.ToAgent{Copy: &control.Copy{Rank: 4, Epoch: 5, To: c.asBuddy()}})
	select {
	case m := <-c.told:
		b.mu.Unlock()
		t.Fatalf("told %+v", m)
	case <-time.After(100 * time.Millisecond):
	}
	b.mu.Unlock()
	c.brought(t, 4, 0)
	require.GreaterOrEqual(t, a.page.Witnessed(), a.page.Recorded())
	b.knows(t, 3, 5, 0, 1)
	c.knows(t, 4, 5, 0, 1)
}

// A host has had other buddies before, who bring what they know of, too. That is old, and comes
// before or after the rest.
func TestChoicesAreBroughtByFormerBuddies(t *testing.T) {
	for _, last := range []string{"the former", "the newest", "the rank goes on at the newest"} {
		t.Run(last, func(t *testing.T) {
			n := neighbours(t, 5)
			home, former, next, newest, other := n[0], n[1], n[2], n[3], n[4]
			d := home.file(t, 0, 1)
			home.choose(t, d, 0, 30)
			home.meet(former.asBuddy())
			home.witnessed(t)
			home.meet(next.asBuddy())
			home.choose(t, d, 30, 60)
			home.witnessed(t)
			require.NoError(t, d.Truncate(50)) // a snapshot is covered
			home.choose(t, d, 60, 61)
			home.witnessed(t)
			home.meet(newest.asBuddy())
			home.choose(t, d, 61, 70)
			home.witnessed(t)
			home.Close()
			bring := func(from, to *neighbour) {
				from.Do(control.ToAgent{Copy: &control.Copy{Rank: 0, Epoch: 1, To: to.asBuddy()}})
				to.brought(t, 0, from.index)
			}
			switch last {
			case "the former":
				bring(newest, other)
				bring(former, other)
			case "the newest":
				bring(former, other)
				bring(newest, other)
			default:
				other = newest
				bring(former, other)
			}
			bring(next, other)
			other.knows(t, 0, 1, 50, 70)
		})
	}
}

// Of an agent that is refused nothing counts any more.
func TestChoicesOfAFencedAgent(t *testing.T) {
	n := neighbours(t, 2)
	a, b := n[0], n[1]
	d := a.file(t, 0, 1)
	a.meet(b.asBuddy())
	a.witnessed(t)
	b.fence(0)
	a.choose(t, d, 0, 5)
	a.page.Wake()
	time.Sleep(100 * time.Millisecond)
	require.Less(t, a.page.Witnessed(), a.page.Recorded())
	b.knows(t, 0, 1, 0, 0)
}

// A buddy that does not answer is waited for no longer once there is another.
func TestChoicesOfASlowBuddyGoElsewhere(t *testing.T) {
	n := neighbours(t, 3)
	a, b, c := n[0], n[1], n[2]
	file := a.file(t, 0, 1)
	a.meet(b.asBuddy())
	a.witnessed(t)
	b.mu.Lock() // it hears nothing
	defer b.mu.Unlock()
	a.choose(t, file, 0, 10)
	a.page.Wake()
	time.Sleep(50 * time.Millisecond)
	require.Less(t, a.page.Witnessed(), a.page.Recorded())
	since := time.Now()
	a.meet(c.asBuddy())
	a.witnessed(t)
	require.Less(t, time.Since(since), carryTime, "for so long the first would be waited for")
	c.knows(t, 0, 1, 0, 10)
}

// A rank goes on elsewhere before its process has ended: what that chooses from then on is not
// witnessed, so that nothing that hangs on it leaves the host. What was chosen before is brought.
func TestChoicesOfARankThatGoesOnElsewhere(t *testing.T) {
	n := neighbours(t, 3)
	a, b, c := n[0], n[1], n[2]
	file := a.file(t, 4, 2)
	a.meet(b.asBuddy())
	a.choose(t, file, 0, 10)
	a.witnessed(t)
	closed := control.Close{Rank: 4, Epoch: 2, For: time.Minute}
	b.Do(control.ToAgent{Close: &closed})
	before := a.page.Witnessed()
	a.choose(t, file, 10, 15)
	a.page.Wake()
	time.Sleep(100 * time.Millisecond)
	require.Equal(t, before, a.page.Witnessed())
	b.knows(t, 4, 2, 0, 10)

	c.Do(control.ToAgent{Close: &closed}) // it may have been the buddy before
	b.Do(control.ToAgent{Copy: &control.Copy{Rank: 4, Epoch: 1, To: c.asBuddy()}})
	require.Equal(t, &control.Brought{Rank: 4, Agent: 1}, (<-c.told).Brought)
	c.knows(t, 4, 2, 0, 10)

	// The process has ended. The next life may have come to the same host.
	b.Do(control.ToAgent{Close: &control.Close{Rank: 4, Epoch: 2}})
	next := a.file(t, 4, 3)
	a.choose(t, next, 0, 5)
	a.witnessed(t)
	b.knows(t, 4, 2, 0, 10)
	b.knows(t, 4, 3, 0, 5)
}

// What is told at a time is all that was chosen up to a moment, though ranks go on choosing: nothing without what it
// may hang on, and no more is said to be known than is.
func TestWhatIsGatheredIsOfOneMoment(t *testing.T) {
	a := neighbours(t, 1)[0]
	ranks := []*checkpoint.Determinants{a.file(t, 0, 1), a.file(t, 1, 1)}
	done := make(chan error)
	go func() {
		var err error
		for n := 0; n < 4000 && err == nil; n++ { // by turns: each hangs on the one before
			a.page.Ready()
			err = ranks[n%2].Append(checkpoint.Determinant{Kind: 1})
			a.page.Record(1)
		}
		done <- err
	}()
	w := &testimony{k: a.Keeper, page: a.Keeper.page, files: map[string]*deed{}}
	defer w.end()
	for over := false; !over; {
		select {
		case err := <-done:
			require.NoError(t, err)
			over = true
		default:
		}
		recorded, all, err := w.gather()
		require.NoError(t, err)
		var n [2]int
		for _, c := range all {
			n[c.Rank] = len(c.all)
		}
		require.Contains(t, []int{0, 1}, n[0]-n[1], "of rank 0 and of rank 1: %v", n)
		require.LessOrEqual(t, recorded, uint64(len(ranks)+n[0]+n[1]), "a file counts as one")
	}
}
