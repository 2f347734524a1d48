package leader

import (
	"fmt"
)

// A Kind is what is the matter with a suspect.
type Kind string

const (
	Crash   Kind = "crash"
	Hang    Kind = "hang"
	CutOff  Kind = "cut"
	Starve  Kind = "starved"
	Slow    Kind = "slow link"
	Flood   Kind = "flood"
	Program Kind = "program" // its own doing: nothing to remedy
	Order   Kind = "order"   // the operator wants it
)

// A Verdict is a kind, and in words what speaks for it.
type Verdict struct {
	Kind    Kind
	Reasons []string
}

// A Fall is a breach, as a verdict needs it.
type Fall struct {
	Link           Link
	Promised, Seen float64
}

// left is how much of what was promised is still delivered.
func left(falls []Fall) float64 {
	var promised, seen float64
	for _, f := range falls {
		promised, seen = promised+f.Promised, seen+f.Seen
	}
	if promised <= 0 {
		return 1
	}
	return min(1, seen/promised)
}

// What counts as load.
const (
	pressed   = 0.5  // of the time ranks wait for a core
	throttled = 0.25 // of the time
	held      = 0.75 // of the time: a quota that leaves next to nothing
	taken     = 0.25 // of the cores, by others
	foreign   = 0.25 // of what was promised, in traffic that is not the job's
	full      = 0.9  // of the cores, by the job
	rose      = 0.25 // of the cores, above what the job usually takes; or of the time ranks wait for one, above the usual
)

// starving says whether a host's readings show that its ranks want for CPU
// because of somebody else, and the reasons.
func starving(r HostReading) (reasons []string) {
	if r.Cores <= 0 || r.wants() < pressed && r.Throttled < throttled {
		return nil
	}
	if r.Throttled >= throttled {
		reasons = append(reasons, fmt.Sprintf("a quota holds its ranks back %.0f %% of the time", 100*r.Throttled))
	}
	if r.Others >= taken*r.Cores {
		reasons = append(reasons, fmt.Sprintf("others take %.1f of its %.0f cores", r.Others, r.Cores))
	}
	if r.Steal >= taken*r.Cores {
		reasons = append(reasons, fmt.Sprintf("the hypervisor takes %.1f of its %.0f cores", r.Steal, r.Cores))
	}
	return reasons
}

// flooded says whether a host's readings show traffic that is not the job's, against what
// its links promised.
func flooded(r HostReading, promised float64) (reasons []string) {
	if promised <= 0 {
		return nil
	}
	if r.ForeignOut >= foreign*promised {
		reasons = append(reasons, fmt.Sprintf("it sends %s that are not the job's", rate(r.ForeignOut)))
	}
	if r.ForeignIn >= foreign*promised {
		reasons = append(reasons, fmt.Sprintf("it receives %s that are not the job's", rate(r.ForeignIn)))
	}
	return reasons
}

// Judge says what is the matter with a suspect. falls are those that it explains; readings
// and usual are by host, where there are any, usual being the cores that the job takes
// in normal times.
func Judge(s Suspect, falls []Fall, readings map[string]HostReading, usual map[string]float64) Verdict {
	most := 0.0
	for _, f := range falls {
		most = max(most, f.Promised)
	}
	hosts := []string{s.Host}
	if s.Host == "" {
		hosts = []string{s.Link.From, s.Link.To}
	}
	fell := fmt.Sprintf("%d of its links deliver %.0f %% of what they promised", len(falls), 100*left(falls))
	switch {
	case len(falls) > 0 && most <= 0:
		fell = "nothing gets through, and what would is not known yet"
	case s.Host == "":
		fell = fmt.Sprintf("it delivers %.0f %% of what it promised", 100*left(falls))
	}
	for _, h := range hosts {
		r := readings[h]
		if s.Host != "" {
			if why := flooded(r, most); why != nil {
				return Verdict{Flood, append(why, fell)}
			}
		}
		if why := starving(r); why != nil {
			if len(falls) > 0 {
				why = append(why, fell)
			}
			return Verdict{Starve, why}
		}
	}
	for _, h := range hosts {
		r := readings[h]
		if r.Cores > 0 && r.Busy >= full*r.Cores && r.Busy-usual[h] >= rose*r.Cores {
			return Verdict{Program, []string{fell, fmt.Sprintf("the job's own ranks take %.1f of the %.0f cores of %s, %.1f usually", r.Busy, r.Cores, h, usual[h])}}
		}
	}
	return Verdict{Slow, []string{fell, "nothing else runs there that is known"}}
}
