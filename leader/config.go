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
	Level          Level // Zero means Moves.
	MovesPerMinute int   // of living ranks, tried or done. Zero means 30.
}

func (c Config) withDefaults() Config {
	if c.Level == "" {
		c.Level = Moves
	}
	if c.MovesPerMinute == 0 {
		c.MovesPerMinute = 30
	}
	return c
}

const (
	gatherFor = 300 * time.Millisecond // from the first breach to the blame
	recheck   = time.Second            // between looks at breaches that last

	horizon      = time.Minute           // over which a remedy must pay
	pays         = 2                     // times its cost a remedy must bring
	standstill   = 50 * time.Millisecond // what a move costs beside carrying state
	unknownRate  = 50e6                  // bytes by the second of a link of which nothing is known
	measureAfter = 5 * time.Second       // the end of a remedy, what it brought is told

	coolDown        = 30 * time.Second // between two moves of a living rank
	retryAfter      = 5 * time.Second  // a move that was undone
	quarantineFirst = 30 * time.Second // of a host that is blamed for the first time
	quarantineMost  = 10 * time.Minute // it doubles up to this

	patience = 10 * time.Second // for somewhere to recover a lost rank
)
