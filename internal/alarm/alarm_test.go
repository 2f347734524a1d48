package alarm

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// An alarm that is put off does not go off; later it does, once.
func TestAnAlarmIsPutOff(t *testing.T) {
	isPutOff(t)
	synctest.Test(t, isPutOff)
}

func isPutOff(t *testing.T) {
	const soon = 200 * time.Millisecond
	a := New()
	began := time.Now()
	for time.Since(began) < 2*soon {
		a.Set(soon)
		select {
		case <-a.C:
			require.GreaterOrEqual(t, time.Since(began), soon, "before its time") // who sets it was held up
		case <-time.After(time.Millisecond):
		}
	}
	last := time.Now()
	a.Set(soon)
	select {
	case <-a.C: // of before
	default:
	}
	<-a.C
	require.GreaterOrEqual(t, time.Since(last), soon)
	last = time.Now()
	a.Set(soon)
	a.Unset()
	late := time.Since(last) >= soon // who unset it was held up
	select {
	case <-a.C:
		require.True(t, late, "it went off, though it was unset")
	case <-time.After(2 * soon):
	}
	a.Set(0) // at once
	<-a.C
	a.Close()
}

// One that calls a function calls it once for each time that it was set.
func TestAnAlarmCalls(t *testing.T) {
	calls := func(t *testing.T) {
		const soon = 20 * time.Millisecond
		called := make(chan time.Time, 10)
		a := NewFunc(func() { called <- time.Now() })
		for range 3 {
			began := time.Now()
			a.Set(soon)
			require.GreaterOrEqual(t, (<-called).Sub(began), soon)
		}
		a.Close()
		require.Empty(t, called)
	}
	calls(t)
	synctest.Test(t, calls)
}

// Tickers of one period go off together, whenever they were made.
func TestTickersGoOffTogether(t *testing.T) {
	const period, late = 100 * time.Millisecond, 50 * time.Millisecond
	a := NewTicker(period)
	<-a.C
	time.Sleep(period / 3)
	b := NewTicker(time.Hour)
	b.Reset(period)
	together := 0
	for range 5 {
		if apart := (<-a.C).Sub(<-b.C).Abs(); apart < late {
			together++
		}
	}
	require.NotZero(t, together)
	require.Len(t, beats.of, 1)
	b.Reset(time.Hour)
	a.Stop()
	b.Stop()
	b.Stop()
	require.Empty(t, beats.of)
}

// It is known when they do.
func TestUntil(t *testing.T) {
	const period = 100 * time.Millisecond
	tick := NewTicker(period)
	defer tick.Stop()
	<-tick.C
	for range 3 {
		began, d := time.Now(), Until(period)
		require.LessOrEqual(t, d, period)
		at := <-tick.C
		for at.Before(began) {
			at = <-tick.C
		}
		require.GreaterOrEqual(t, at.Sub(began), d, "they went off before")
	}
}

// Where time is virtual so are its tickers.
func TestTickersWhereTimeIsVirtual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tick := NewTicker(time.Hour)
		defer tick.Stop()
		began := time.Now()
		require.Equal(t, time.Hour, (<-tick.C).Sub(began))
		tick.Reset(time.Minute)
		require.Equal(t, time.Minute, Until(time.Minute))
		require.Equal(t, time.Hour+time.Minute, (<-tick.C).Sub(began))
	})
}
