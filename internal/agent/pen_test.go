package agent

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/events"
	"github.com/mpiv/mpiv/internal/ledger"
)

// pipeless is a subscriber's connection that nothing comes of.
type pipeless struct{}

func (pipeless) Write(p []byte) (int, error)      { return len(p), nil }
func (pipeless) SetWriteDeadline(time.Time) error { return nil }

// What a head says of the job waits as long as what it decided is not agreed on, and is said
// by nobody if another leads by then.
func TestWhatIsSaidIsAgreedOn(t *testing.T) {
	for name, agreed := range map[string]bool{"agreed": true, "deposed": false} {
		t.Run(name, func(t *testing.T) {
			var errs buffer
			a := newAgent(Job{})
			a.speaker = newSpeaker(&stream{screen: new(screen), w: &errs})
			state := new(ledger.State)
			require.NoError(t, state.Apply(ledger.Entry{Job: &ledger.Job{Name: "j", Hosts: []string{"x", "y"}, Processes: []ledger.Added{{Host: 1, Ranks: []int{0}}}}}))
			a.pen = &pen{Pen: ledger.NewPen(state), queue: newBacklog[writing]()}
			a.emit(events.Event{Kind: events.JobStarted, Job: &events.Job{Name: "j", Hosts: []string{"x", "y"}, Ranks: 1, Processes: []events.Placed{{Host: "y", Ranks: []int{0}}}}})

			early := &subscriber{out: pipeless{}}
			a.subscribe(early)
			a.record(ledger.Entry{HostLost: &ledger.HostLost{Host: 1}})
			a.emit(events.Event{Kind: events.HostLost, Host: "y", Text: "host y is lost"})
			a.warn("host y is lost")
			late := &subscriber{out: pipeless{}}
			first := a.subscribe(late)
			require.Equal(t, events.HostLost, first[len(first)-1].Kind, "how it stands is answered at once")
			require.Empty(t, early.queue)

			if agreed {
				a.wasAgreed(1)
				require.Equal(t, events.HostLost, (<-early.queue).Kind)
			} else {
				a.depose(errors.New("another leads"))
				a.wasAgreed(1)
				require.Empty(t, early.queue)
			}
			require.Empty(t, late.queue, "it has been told")
			a.speaker.close()
			if agreed {
				require.Contains(t, errs.String(), "host y is lost")
			} else {
				require.Empty(t, errs.String())
			}
		})
	}
}
