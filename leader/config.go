package leader

import "time"

// A Level is what a job is to survive, mpivrun's --survive. At the others ranks do not move, and
// there is nothing to decide.
type Level string

const (
	Moves   Level = "moves"   // other paths, and moves of living ranks
	Crashes Level = "crashes" // also the death of processes and hosts
)

// A Config of a Machine. Its zero value works.
type Config struct {
	Level Level // Zero means Moves.

	Gather  time.Duration // from the first breach to the blame. Zero means 300 ms.
	Recheck time.Duration // between looks at breaches that last. Zero means 1 s.

	Horizon    time.Duration // over which a remedy must pay. Zero means 60 s.
	Pays       float64       // how many times its cost it must bring. Zero means 2.
	Standstill time.Duration // what a move costs beside carrying state. Zero means 50 ms.
	Rate       float64       // bytes by the second of a link of which nothing is known. Zero means 50e6.
	Measure    time.Duration // from the end of a remedy until what it brought is told. Zero means 5 s.

	MovesPerMinute int           // of living ranks, tried or done. Zero means 30.
	CoolDown       time.Duration // between two moves of a living rank. Zero means 30 s.
	Retry          time.Duration // after a move that was undone. Zero means 5 s.
	Quarantine     time.Duration // of a host that is blamed for the first time. Zero means 30 s.
	QuarantineMost time.Duration // it doubles up to this. Zero means 10 min.

	Patience time.Duration // for somewhere to recover a lost rank. Zero means 10 s.
}

func (c Config) withDefaults() Config {
	duration := func(d *time.Duration, def time.Duration) {
		if *d == 0 {
			*d = def
		}
	}
	duration(&c.Gather, 300*time.Millisecond)
	duration(&c.Recheck, time.Second)
	duration(&c.Horizon, time.Minute)
	duration(&c.Standstill, 50*time.Millisecond)
	duration(&c.Measure, 5*time.Second)
	duration(&c.CoolDown, 30*time.Second)
	duration(&c.Retry, 5*time.Second)
	duration(&c.Quarantine, 30*time.Second)
	duration(&c.QuarantineMost, 10*time.Minute)
	duration(&c.Patience, 10*time.Second)
	if c.MovesPerMinute == 0 {
		c.MovesPerMinute = 30
	}
	if c.Level == "" {
		c.Level = Moves
	}
	if c.Pays == 0 {
		c.Pays = 2
	}
	if c.Rate == 0 {
		c.Rate = 50e6
	}
	return c
}
