package sensors

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Link is one direction between two hosts over one network.
type Link struct {
	From    string `json:"from"` // names of hosts
	To      string `json:"to"`
	Network string `json:"network"` // its name or class; empty where there is one
}

// Back is the other direction.
func (l Link) Back() Link { return Link{l.To, l.From, l.Network} }

// String is "X>Y" or "X>Y@lan".
func (l Link) String() string {
	if l.Network == "" {
		return l.From + ">" + l.To
	}
	return l.From + ">" + l.To + "@" + l.Network
}

func (l Link) compare(m Link) int {
	return cmp.Or(cmp.Compare(l.From, m.From), cmp.Compare(l.To, m.To), cmp.Compare(l.Network, m.Network))
}

// A SizeClass is how long messages are. What a link delivers depends on it, so each
// class has a contract of its own.
type SizeClass uint8

const (
	Small  SizeClass = iota // up to 8 KiB: the round trip counts
	Middle                  // shorter than 64 KiB
	Large                   // 64 KiB and more: the bandwidth counts
)

var sizes = []string{"small", "middle", "large"}

// ClassOf is the class of a message of n bytes.
func ClassOf(n int) SizeClass {
	switch {
	case n <= 8<<10:
		return Small
	case n < 64<<10:
		return Middle
	}
	return Large
}

func (c SizeClass) String() string {
	if int(c) < len(sizes) {
		return sizes[c]
	}
	return fmt.Sprintf("size class %d", uint8(c))
}

// ParseSizeClass is the inverse of String.
func ParseSizeClass(text string) (SizeClass, error) {
	if i := slices.Index(sizes, text); i >= 0 {
		return SizeClass(i), nil
	}
	return 0, fmt.Errorf("%q is no class of message sizes: want one of %v", text, sizes)
}

// MarshalText and UnmarshalText are for JSON.
func (c SizeClass) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *SizeClass) UnmarshalText(text []byte) (err error) {
	*c, err = ParseSizeClass(string(text))
	return err
}

// A Reading is what one link did in an interval, for messages of one size class.
// Five to ten a second are what the tests' figures hold for.
type Reading struct {
	At   time.Time     // the end of the interval
	Over time.Duration // its length
	Link Link
	Size SizeClass

	Bytes   uint64        // acknowledged in it, counted as they are, not when a message ends
	Busy    time.Duration // of Over, for how long something was outstanding; Bytes/Busy is the delivery rate
	Pending uint64        // outstanding at its end

	// Limited: while Busy the path had as much to carry as it takes, most of the
	// time. It is false when the sending program gave too little (short messages
	// one by one, too) and when the receiving one did not take what had arrived:
	// its window was closed. A send that hangs with the window open is limited.
	Limited bool

	// Standing: it was limited, or a queue stood on the way there or back. What is promised
	// may be learned from that; it is no sign that something is wrong, as it may be
	// the answers that wait.
	Standing bool

	RTT time.Duration // 0: not known
}

const fewBytes = 16 << 10

// sound returns r with what is out of bounds put right; false if it tells nothing.
func (r Reading) sound() (Reading, bool) {
	if r.Over <= 0 || r.Size > Large {
		return r, false
	}
	if r.Busy <= 0 && r.Pending > 0 {
		r.Busy = r.Over
	}
	r.Busy = min(r.Busy, r.Over)
	// A few short messages and a pause between them look like a slow path.
	if r.Size == Small && 0 < r.Bytes && r.Bytes < fewBytes {
		r.Limited, r.Standing = false, false
	}
	r.RTT = max(r.RTT, 0)
	return r, r.Busy > 0 && (r.Bytes > 0 || r.Pending > 0)
}

// A HostState is what is known of a host when one of its links is judged. Shares are
// 0 to 1, and -1 where they are not known. The zero value knows nothing.
type HostState struct {
	At        time.Time
	CPU       float64 // share of all its processors that is busy
	Steal     float64 // share that its hypervisor gave to others
	Throttled float64 // share of the time in which a quota held the job up
	Pressure  float64 // share of the time in which some task waited for a processor

	ForeignIn  float64 // bytes a second that it receives and are not this job's
	ForeignOut float64 // and that it sends

	Flooded bool // foreign traffic is far above what is usual
}

func (h HostState) String() string {
	if h.At.IsZero() {
		return "not known"
	}
	text := ""
	for _, s := range []struct {
		name  string
		share float64
	}{{"cpu", h.CPU}, {"steal", h.Steal}, {"throttled", h.Throttled}, {"pressure", h.Pressure}} {
		if s.share >= 0 {
			text += fmt.Sprintf("%s %.0f %%, ", s.name, 100*s.share)
		}
	}
	text += "foreign " + bytesPerSecond(h.ForeignIn+h.ForeignOut)
	if h.Flooded {
		text += ", flooded"
	}
	return text
}
