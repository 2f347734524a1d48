package crew

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mpiv/mpiv/internal/control"
)

// A process that does not read is asked no more, and told all the same where ranks are.
func TestALinkKeepsWhatMustBeKnown(t *testing.T) {
	l := newLink()
	asked := 0
	for l.send(control.Message{Ask: &control.Ask{ID: uint64(asked)}}) {
		asked++
	}
	require.Equal(t, linkQueue, asked)
	var places []uint32
	for epoch := range uint32(2 * linkQueue) {
		require.True(t, l.send(control.Message{Place: &control.Place{Epoch: epoch}}))
		require.False(t, l.send(control.Message{Ping: &control.Ping{}}))
		places = append(places, epoch)
	}
	<-l.due
	var told []uint32
	for i, m := range l.take() {
		if i < asked {
			require.Equal(t, uint64(i), m.Ask.ID)
			continue
		}
		told = append(told, m.Place.Epoch)
	}
	require.Equal(t, places, told)
	require.True(t, l.send(control.Message{Ping: &control.Ping{}}), "it reads again")
}

// None of that is told again.
func TestWhatMustBeKnown(t *testing.T) {
	for _, m := range []control.Message{
		{Start: &control.Start{}}, {Meet: &control.Meet{}}, {Place: &control.Place{}}, {Adopt: &control.Adopt{}},
		{Depart: &control.Depart{}}, {Covered: &control.Covered{}}, {Dead: &control.Dead{}},
	} {
		require.True(t, mustKnow(m), "%+v", m)
	}
}
