package leader

import (
	"cmp"
	"slices"
)

// A Candidate is a host as a place for one rank. It is well and has room.
type Candidate struct {
	Host        string
	Trusted     bool
	Quarantined bool
	Crowded     bool // a rank more than it has cores for
	NoMemory    bool // less is free than the rank's state
	Room        int  // for how many ranks
	ToThere     float64
	FromThere   float64 // bytes by the second that go from the rank to the host, and back
}

// Choose is the best place: where most of the rank's data goes (the rule of "Method
// for Task Migration in Grid Environments", section 2.3), among those that have a core
// and the memory for it. Untrusted hosts come after all others, and so, for a rank that must
// go somewhere, do those in quarantine; for one that need not they do not come at all. Otherwise equal hosts
// are taken by room and by name. False: there is none, and why says so.
func Choose(all []Candidate, must bool) (c Candidate, why string, ok bool) {
	fit := slices.DeleteFunc(slices.Clone(all), func(c Candidate) bool { return c.NoMemory || c.Quarantined && !must })
	if len(fit) == 0 {
		switch {
		case len(all) == 0:
			return c, "no other host that is well has room", false
		case slices.ContainsFunc(all, func(c Candidate) bool { return !c.NoMemory }):
			return c, "the only hosts that have room are in quarantine", false
		}
		return c, "no host that has room has the memory", false
	}
	return slices.MinFunc(fit, func(a, b Candidate) int {
		return cmp.Or(
			before(!a.Quarantined, !b.Quarantined),
			before(a.Trusted, b.Trusted),
			before(!a.Crowded, !b.Crowded),
			cmp.Compare(b.ToThere, a.ToThere),
			cmp.Compare(b.FromThere, a.FromThere),
			cmp.Compare(b.Room, a.Room),
			cmp.Compare(a.Host, b.Host))
	}), "", true
}

func before(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
