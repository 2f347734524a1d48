package replica

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/patient"
)

// led follows the agent of a number.
type led struct{ id raft.ServerID }

func (led) CurrentTerm() uint64 { return 7 }
func (l led) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	return raft.ServerAddress(l.id + "@x"), l.id
}

// talking is a speech for whom agent 2 is heard over a connection.
func talking() (*speech, *patient.Conn) {
	ear := &patient.Conn{}
	ear.At.Set(time.Now())
	return &speech{NetworkTransport: &raft.NetworkTransport{}, silence: time.Second, ear: func(agent int) *patient.Conn {
		if agent == 2 {
			return ear
		}
		return nil
	}}, ear
}

// What the head's agents say to each other anyway is what raft takes as the answers to its signs of life.
func TestSignsOfLifeAreAnswers(t *testing.T) {
	for name, speaks := range map[string]time.Duration{"after a while": 300 * time.Millisecond, "never": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ear := talking()
				time.Sleep(time.Millisecond)
				if speaks > 0 {
					time.AfterFunc(speaks, func() { ear.At.Set(time.Now()) })
				}
				begun := time.Now()
				var answer raft.AppendEntriesResponse
				err := s.AppendEntries("2", "2@x", &raft.AppendEntriesRequest{Term: 7}, &answer)
				took := time.Since(begun)
				if speaks == 0 {
					var quiet patient.Silent
					require.ErrorAs(t, err, &quiet)
					require.InDelta(t, s.silence, took, float64(s.silence/10))
					return
				}
				require.NoError(t, err)
				require.True(t, answer.Success)
				require.EqualValues(t, 7, answer.Term)
				require.InDelta(t, speaks, took, float64(s.silence/10))
			})
		})
	}
}

// A voter's raft hears of its leader when its agent does, and of nobody else.
func TestSignsOfLifeAreRelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, ear := talking()
		var told []*raft.AppendEntriesRequest
		s.beat = func(rpc raft.RPC) {
			rpc.Respond(nil, nil)
			told = append(told, rpc.Command.(*raft.AppendEntriesRequest))
		}
		s.relay(led{"3"})
		s.relay(led{""})
		require.Empty(t, told, "it is not the leader that is heard")
		s.relay(led{"2"})
		require.Len(t, told, 1)
		require.EqualValues(t, 7, told[0].Term)
		require.Equal(t, "2@x", string(told[0].Addr))
		require.Empty(t, told[0].Entries)
		time.Sleep(100 * time.Millisecond)
		s.relay(led{"2"})
		require.Len(t, told, 1, "nothing was heard since")
		ear.At.Set(time.Now().Add(1))
		s.relay(led{"2"})
		require.Len(t, told, 2)
		time.Sleep(100 * time.Millisecond)
		ear.Answered.Set(time.Now())
		s.relay(led{"2"})
		require.Len(t, told, 3, "it answered over another connection")
	})
}
