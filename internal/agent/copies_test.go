package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/patient"
)

// A saver is a rank that saves what it is told to be, and waits until it is covered. It
// goes on elsewhere when its host is lost, and finishes when so many were (envLosses).
const envLosses = "MPIV_TEST_LOSSES"

func init() {
	members["save"] = func(m *member) { savers(m, 3) }
	members["save nothing"] = func(m *member) { savers(m, 0) }
}

type saver struct {
	*member
	rank   int
	epoch  uint32
	number uint64
	area   *checkpoint.Area
	state  []byte
}

func savers(m *member, times int) {
	dir := filepath.Dir(os.Getenv(control.EnvSocket))
	losses, _ := strconv.Atoi(os.Getenv(envLosses))
	m.join()
	s := saver{member: m, rank: -1, epoch: m.start.Epoch}
	begin := func(rank int, state []byte) {
		s.rank, s.state = rank, state
		var err error
		if s.area, err = checkpoint.Create(filepath.Join(dir, fmt.Sprintf("rank-%d.%d", rank, s.epoch))); err != nil {
			panic(err)
		}
	}
	if r := m.ranks(); len(r) > 0 {
		begin(r[0], nil)
		for range times {
			s.save()
		}
		fmt.Printf("rank %d ready, agent %d\n", s.rank, os.Getppid())
	}
	for {
		msg, err := m.conn.Receive()
		switch {
		case err != nil:
			os.Exit(9)
		case msg.Stop != nil:
			return
		case msg.Adopt != nil:
			state := []byte("nothing")
			if msg.Adopt.Snapshot != "" {
				area, err := checkpoint.Open(msg.Adopt.Snapshot)
				if err != nil {
					panic(err)
				}
				snap, err := area.Latest()
				if err != nil {
					panic(err)
				}
				state = bytes.Clone(bytes.TrimRight(snap.Parts[0], "."))
			}
			s.epoch = msg.Adopt.Epoch
			begin(msg.Adopt.Rank, state)
			fmt.Printf("rank %d goes on from %s\n", s.rank, state)
			if times > 0 {
				s.save()
			}
			fmt.Printf("rank %d ready, agent %d\n", s.rank, os.Getppid())
			msg.Place = &msg.Adopt.Place
		}
		if msg.Place != nil && s.rank >= 0 && int(msg.Place.Epoch) > losses {
			if times > 0 {
				s.save()
			}
			m.send(control.Message{Finished: &control.Finished{Ranks: []int{s.rank}}})
		}
	}
}

// save waits until what it saves is covered.
func (s *saver) save() {
	s.number++
	s.state = fmt.Appendf(s.state, "<rank %d, %d.%d>", s.rank, s.epoch, s.number)
	long := append(bytes.Clone(s.state), bytes.Repeat([]byte{'.'}, 300_000)...) // some chunks, of which most stay
	if err := errors.Join(s.area.Begin(s.number), s.area.End(long)); err != nil {
		panic(err)
	}
	s.send(control.Message{Saved: &control.Saved{Rank: s.rank, Epoch: s.epoch, Number: s.number, Bytes: int64(len(long)),
		File: filepath.Join(filepath.Dir(os.Getenv(control.EnvSocket)), fmt.Sprintf("rank-%d.%d", s.rank, s.epoch))}})
	for {
		msg, err := s.conn.Receive()
		if err != nil {
			os.Exit(9)
		}
		if c := msg.Covered; c != nil && c.Rank == s.rank && c.Epoch == s.epoch && c.Number >= s.number {
			return
		}
	}
}

// lossy is a job of a rank on each of hosts "here", "b" and so on, that loses some.
func lossy(t *testing.T, do string, hosts, spares, losses int) (Job, *buffer, *buffer) {
	j, out, errs := jobOf(t, hosts, do)
	elsewhere(t, &j, []string{"b", "c", "d"}[:hosts-1]...)
	j.Hosts = append([]Host{{Name: "here", Here: true}}, j.Hosts...)
	j.ByNode, j.Spares, j.Options.Survive = true, spares, "crashes"
	j.Silence = 10 * time.Second // what is killed is heard to be
	j.Programs[0].Env = append(j.Programs[0].Env, envLosses+"="+strconv.Itoa(losses))
	return j, out, errs
}

// lose kills the agent of the host that has a rank.
func lose(t *testing.T, out *buffer, rank int) {
	t.Helper()
	text := out.String()
	i := strings.LastIndex(text, fmt.Sprintf("rank %d ready, agent ", rank))
	require.GreaterOrEqual(t, i, 0, "rank %d has not said where it is: %s", rank, text)
	var agent int
	_, err := fmt.Sscanf(text[i:], fmt.Sprintf("rank %d ready, agent %%d", rank), &agent)
	require.NoError(t, err)
	require.NotEqual(t, os.Getpid(), agent)
	require.NoError(t, syscall.Kill(agent, syscall.SIGKILL))
}

func TestHostLost(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		do            string
		hosts, spares int
		from, says    string
	}{
		{"the copy is where a spare is", "save", 3, 3, "rank 1 goes on from <rank 1, 1.1><rank 1, 1.2><rank 1, 1.3>\n", "rank 1 goes on from snapshot 3 in process 5 on host c"},
		{"the copy is sent to where a spare is", "save", 3, 1, "rank 1 goes on from <rank 1, 1.1><rank 1, 1.2><rank 1, 1.3>\n", "rank 1 goes on from snapshot 3 in process 3 on host here"},
		{"nothing was saved", "save nothing", 3, 1, "rank 1 goes on from nothing\n", "rank 1 goes on from the beginning"},
		{"one host is left", "save", 2, 2, "rank 1 goes on from <rank 1, 1.1><rank 1, 1.2><rank 1, 1.3>\n", "host here: no other host can keep copies"},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, out, errs := lossy(t, c.do, c.hosts, c.spares, 1)
			a, err := Start(j)
			require.NoError(t, err)
			out.await(t, "ready", c.hosts)
			lose(t, out, 1)
			require.Zero(t, a.Wait(), "%s", errs)
			require.Contains(t, out.String(), c.from)
			require.Contains(t, errs.String(), "host b: its agent has ended, and with it rank")
			require.Contains(t, errs.String(), c.says)
		})
	}
}

// One host after the other is lost: what goes on elsewhere has copies, too.
func TestHostsLostInTurn(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 3, 2, 2)
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready", 3)
	lose(t, out, 1)
	out.await(t, "ready", 4)
	lose(t, out, 2)
	require.Zero(t, a.Wait(), "%s", errs)
	require.Contains(t, out.String(), "rank 1 goes on from <rank 1, 1.1><rank 1, 1.2><rank 1, 1.3>\n")
	require.Contains(t, out.String(), "rank 2 goes on from <rank 2, 1.1><rank 2, 1.2><rank 2, 1.3>\n")
}

// The hosts that have the state of a rank are lost before another has a copy.
func TestHostAndBuddyLost(t *testing.T) {
	t.Parallel()
	j, out, errs := lossy(t, "save", 4, 4, 1)
	a, err := Start(j)
	require.NoError(t, err)
	out.await(t, "ready", 4)
	a.post(func() {
		for _, h := range []*host{a.hosts[2], a.hosts[1]} {
			h.place.(*remote).end(patient.Silent(a.job.Silence))
			a.hostLost(h, patient.Silent(a.job.Silence))
		}
	})
	require.Equal(t, 1, a.Wait(), "%s", errs)
	require.Contains(t, errs.String(), "every host that had the state of rank 1 is lost")
}
