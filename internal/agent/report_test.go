package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/patient"
	"github.com/mpiv/mpiv/mpiv"
)

// Jobs of level "report": programs that go on without the ranks they lose.

func init() {
	for name, p := range map[string]lessening{
		"lessen":                             {},
		"lessen, and 1 dies in Agree":        {inAgree: 1},
		"lessen, and 0 dies in Agree":        {inAgree: 0, leader: true},
		"lessen, and 2 dies in Shrink":       {inShrink: 2},
		"lessen, and 1 exits with 3":         {exits: 1, code: 3},
		"lessen, and 1 leaves":               {exits: 1},
		"lessen, and 1 returns an error":     {fails: 1},
		"lessen, and all die":                {all: true},
		"lessen, though nobody knows how to": {naive: true},
	} {
		members[name] = func(*member) { mpiv.Main(p.run) }
	}
}

// lessening is a program that adds up numbers which its ranks share, turn by turn, and
// goes on with fewer ranks when some are lost.
type lessening struct {
	inAgree, inShrink, exits, fails int // ranks that die, or end, somewhere; 0: none
	code                            int
	leader                          bool // inAgree may be 0
	all, naive                      bool
}

const lessenTurns, lessenShares = 150, 12

func (p lessening) run(ctx context.Context, world *mpiv.Comm) error {
	fmt.Printf("rank %d begins in turn 0\n", world.Rank())
	me, c, total := world.Rank(), world, uint64(0)
	for turn := 0; turn < lessenTurns; {
		at20 := turn == 20
		switch {
		case at20 && p.all:
			dieIn(0)
			select {}
		case at20 && p.exits > 0 && p.exits == me:
			os.Exit(p.code)
		case at20 && p.fails > 0 && p.fails == me:
			return errors.New("the matrix is singular")
		case at20 && p.inShrink > 0 && me == 1:
			dieIn(0)
			select {}
		}
		sum := []uint64{0}
		for s := c.Rank(); s < lessenShares; s += c.Size() {
			sum[0] += shareOf(turn, s)
		}
		err := mpiv.Allreduce(ctx, c, sum, sum, mpiv.Sum)
		if err != nil && (p.naive || !lostOne(err)) {
			return err
		}
		ok := uint64(1)
		if err != nil {
			ok = 0
			if err := c.Revoke(ctx); err != nil {
				return err
			}
		}
		if at20 && (p.inAgree > 0 || p.leader) && me == p.inAgree {
			dieIn(100 * time.Microsecond)
		}
		flag, err := c.Agree(ctx, ok)
		if err != nil && (p.naive || !lostOne(err)) {
			return err
		}
		if flag == 1 {
			total += sum[0]
			turn++
		}
		if flag == 1 && err == nil {
			time.Sleep(2 * time.Millisecond)
			continue
		}
		if p.inShrink > 0 && me == p.inShrink {
			dieIn(100 * time.Microsecond)
		}
		if c, err = c.Shrink(ctx); err != nil {
			return err
		}
	}
	if c.Rank() == 0 {
		fmt.Printf("result %x of %d ranks\n", total, c.Size())
	}
	return nil
}

func shareOf(turn, s int) uint64 { return uint64(turn*lessenShares+s+1) * 0x9E3779B97F4A7C15 }

func lostOne(err error) bool {
	return errors.Is(err, mpiv.ErrProcFailed) || errors.Is(err, mpiv.ErrRevoked)
}

// dieIn kills this process, after a while.
func dieIn(d time.Duration) {
	go func() {
		time.Sleep(d)
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
}

// lessened is what so many of the ranks print at the end.
func lessened(left int) string {
	total := uint64(0)
	for turn := range lessenTurns {
		for s := range lessenShares {
			total += shareOf(turn, s)
		}
	}
	return fmt.Sprintf("result %x of %d ranks\n", total, left)
}

// signalNow sends a signal to the processes of ranks, at once.
func (tr *trial) signalNow(sig syscall.Signal, ranks ...int) {
	tr.in(func() {
		for _, r := range ranks {
			require.NoError(tr, syscall.Kill(tr.processOf(r).pid, sig))
		}
	})
}

func TestSurvivorsAreTold(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		ranks int
		do    string
		kills [][]int // one after the other, each at once
		left  int
		says  []string
	}{
		{"nothing happens", 3, "lessen", nil, 3, nil},
		{"one is killed", 4, "lessen", [][]int{{1}}, 3, []string{"rank 1 on host here was killed by signal 9", "the other ranks are told"}},
		{"the first is killed", 4, "lessen", [][]int{{0}}, 3, []string{"rank 0 on host here was killed"}},
		{"two are killed at once", 5, "lessen", [][]int{{0, 3}}, 3, []string{"rank 0 on", "rank 3 on"}},
		{"two are, and then two more", 6, "lessen", [][]int{{0, 1}, {2, 4}}, 2, nil},
		{"only one is left", 3, "lessen", [][]int{{0, 2}}, 1, nil},
		{"one dies in Agree", 4, "lessen, and 1 dies in Agree", nil, 3, []string{"rank 1 on"}},
		{"the leader dies in Agree", 4, "lessen, and 0 dies in Agree", nil, 3, []string{"rank 0 on"}},
		{"one dies in Shrink after another", 5, "lessen, and 2 dies in Shrink", nil, 3, []string{"rank 1 on", "rank 2 on"}},
		{"one exits with a code", 3, "lessen, and 1 exits with 3", nil, 2, []string{"exited with code 3; the other ranks are told"}},
		{"one exits and has not finished", 3, "lessen, and 1 leaves", nil, 2, []string{"exited with code 0; the other ranks are told"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := try(t, c.ranks, 0, "report", c.do)
			for _, ranks := range c.kills {
				time.Sleep(50 * time.Millisecond)
				tr.signalNow(syscall.SIGKILL, ranks...)
			}
			require.Zero(t, tr.Wait(), "said %s", tr.errs)
			require.Equal(t, 1, strings.Count(tr.out.String(), "result "), "printed %s", tr.out)
			require.Contains(t, tr.out.String(), lessened(c.left))
			for _, s := range c.says {
				require.Contains(t, tr.errs.String(), s)
			}
			failed := 0
			for _, p := range tr.news.state.Processes {
				failed += len(p.Failed)
			}
			require.Equal(t, c.ranks-c.left, failed, "ranks that failed, by the events")
		})
	}
}

// A process that hangs while others run is failed, too.
func TestSurvivorsOfAHang(t *testing.T) {
	t.Parallel()
	tr := try(t, 3, 0, "report", "lessen")
	tr.signalNow(syscall.SIGSTOP, 1)
	require.Zero(t, tr.Wait(), "said %s", tr.errs)
	require.Contains(t, tr.out.String(), lessened(2))
	require.Contains(t, tr.errs.String(), "it hangs; the other ranks are told")
}

// Ranks that share a process fail together.
func TestSurvivorsShareProcesses(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 6, "lessen")
	j.RanksPerProcess, j.Options.Survive = 2, "report"
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "begins in turn 0", 6)
	tr := &trial{t, a, j, out, errs}
	tr.signalNow(syscall.SIGKILL, 3)
	require.Zero(t, tr.Wait(), "said %s", errs)
	require.Contains(t, out.String(), lessened(4))
	require.Contains(t, errs.String(), "ranks 2-3 on host here were killed")
}

func TestReportedJobsThatFail(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, do string
		code     int
		says     string
	}{
		{"a rank returns an error", "lessen, and 1 returns an error", 1, "rank 1: the matrix is singular"},
		{"no rank is left", "lessen, and all die", 137, "was killed by signal 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := try(t, 3, 0, "report", c.do)
			require.Equal(t, c.code, tr.Wait(), "said %s", tr.errs)
			require.Contains(t, tr.errs.String(), c.says)
		})
	}
	t.Run("the program does not expect failures", func(t *testing.T) {
		tr := try(t, 3, 0, "report", "lessen, though nobody knows how to")
		tr.signalNow(syscall.SIGKILL, 1)
		require.Equal(t, 1, tr.Wait(), "said %s", tr.errs)
		require.Contains(t, tr.errs.String(), "rank 1 on host here was killed by signal 9")
		require.Contains(t, tr.errs.String(), "the process of the peer has failed")
	})
}

// The ranks of a host that is lost have failed, and those on others go on.
func TestSurvivorsOfAHost(t *testing.T) {
	t.Parallel()
	j, out, errs := jobOf(t, 4, "lessen")
	j.Options.Survive = "report"
	elsewhere(t, &j, "there")
	j.Hosts = append([]Host{{Name: "here", Slots: 2, Here: true}}, j.Hosts...)
	j.Hosts[1].Slots = 2
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "begins in turn 0", 4)
	tr := &trial{t, a, j, out, errs}
	tr.in(func() {
		for _, h := range a.hosts {
			if r, ok := h.place.(*remote); ok {
				r.end(patient.Silent(a.job.Silence))
				a.hostLost(h, patient.Silent(a.job.Silence))
			}
		}
	})
	require.Zero(t, tr.Wait(), "said %s", errs)
	require.Contains(t, out.String(), lessened(2))
	require.Contains(t, errs.String(), "host there: nothing was heard of its agent for 900ms")
	var lost bool
	for _, h := range a.news.state.Hosts {
		lost = lost || h.Lost
	}
	require.True(t, lost)
	require.NotEqual(t, events.PhaseRunning, a.news.state.Phase)
}

// Who was declared dead is told of nobody's death, or it could agree on something alone before it is killed.
func TestTheDeadAreToldNothing(t *testing.T) {
	a, n := surviving(1, 1, 1)
	a.job.Options.Survive, a.toldStart = "report", true
	a.declare(verdict{text: "gone"}, a.processes[0])
	a.declare(verdict{text: "gone"}, a.processes[1])
	require.Empty(t, n.sent[0])
	require.Equal(t, []int{0}, n.sent[1][0].Dead.Processes)
	require.Len(t, n.sent[1], 1)
	require.Equal(t, []int{1}, n.sent[2][1].Dead.Processes)
}
