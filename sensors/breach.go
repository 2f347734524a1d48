package sensors

import (
	"fmt"
	"time"
)

// A Breach is a link that delivers less than its contract, sustained; or, with Ended
// set, one that does so no longer.
type Breach struct {
	At    time.Time // when it became sure enough to say, or was last looked at
	Since time.Time // when it began, as far as readings tell
	Ended time.Time // zero while it lasts

	Link     Link
	Size     SizeClass
	Promised float64 // the contract's rate in bytes a second; of a threshold, that; 0: none yet, and it hangs
	Least    float64 // what is tolerated; a breach is less than this
	ByHand   bool    // Promised is a threshold
	Seen     float64 // the delivery rate since Since

	Evidence Evidence

	// Sure is the probability that this is no chance, were one reading in 3600 the
	// beginning of a real fall. It says nothing of the cause.
	Sure float64
}

// An Evidence is what else is known when a link breaches. It is for who
// looks for the cause; a breach does not depend on it.
//
// A slow network has longer round trips, or none; busy programs behind it do not lengthen
// them. A receiver that is slow for want of processor time has a host that is busy, throttled
// or under pressure, and the other direction suffers as well. A cut or flooded link
// leaves the hosts' processors idle; a flood shows in foreign traffic.
type Evidence struct {
	Readings int           // what the judgement rests on
	Busy     time.Duration // and for how long something was outstanding in them
	Stalled  time.Duration // for how long nothing at all has arrived of what is outstanding

	RTT, UsualRTT time.Duration // lately, and by contract; 0: not known
	Opposite      float64       // lately, the rate of the other direction over its promise; 0: not known
	From, To      HostState     // of the last 3 s; the zero value: not known

	Doubt string // the promise's, when it may not be the norm
}

// String is a sentence for people.
func (b Breach) String() string {
	if !b.Ended.IsZero() {
		return fmt.Sprintf("%v %v: recovered after %v, %s", b.Link, b.Size, b.Ended.Sub(b.Since).Round(100*time.Millisecond), bytesPerSecond(b.Seen))
	}
	e := b.Evidence
	text := fmt.Sprintf("%v %v: %s for %v where %s are promised and %s tolerated", b.Link, b.Size, bytesPerSecond(b.Seen),
		b.At.Sub(b.Since).Round(10*time.Millisecond), bytesPerSecond(b.Promised), bytesPerSecond(b.Least))
	switch {
	case b.ByHand:
		text = fmt.Sprintf("%v %v: %s for %v where %s are demanded", b.Link, b.Size, bytesPerSecond(b.Seen), b.At.Sub(b.Since).Round(10*time.Millisecond), bytesPerSecond(b.Promised))
	case b.Promised == 0:
		text = fmt.Sprintf("%v %v: it hangs, and nothing is promised yet", b.Link, b.Size)
	}
	if e.Stalled > 0 {
		text += fmt.Sprintf("; nothing arrived for %v", e.Stalled.Round(10*time.Millisecond))
	}
	if e.RTT > 0 && e.UsualRTT > 0 {
		text += fmt.Sprintf("; round trip %v, usually %v", e.RTT.Round(10*time.Microsecond), e.UsualRTT.Round(10*time.Microsecond))
	}
	if e.Opposite > 0 {
		text += fmt.Sprintf("; the other direction at %.0f %%", 100*e.Opposite)
	}
	for _, h := range []struct {
		name  string
		state HostState
	}{{b.Link.From, e.From}, {b.Link.To, e.To}} {
		if !h.state.At.IsZero() {
			text += fmt.Sprintf("; %s: %v", h.name, h.state)
		}
	}
	if e.Doubt != "" {
		text += "; the contract is in doubt: " + e.Doubt
	}
	return text
}

// A Note is what a Watch has to say beside breaches.
type Note struct {
	At   time.Time
	Kind NoteKind
	Link Link
	Size SizeClass
	Text string // for people
}

// A NoteKind is what a note is about.
type NoteKind uint8

const (
	Learned NoteKind = iota // a promise is known
	Raised                  // a link delivers far more than promised: the promise is learned anew
	Doubted                 // a promise may not be the norm
	Held                    // learning waits: something is wrong now
	Full                    // there are more links than are watched
)

func (k NoteKind) String() string {
	return [...]string{"learned", "raised", "doubted", "held", "full"}[k]
}
