// Package chaos has faults to order: which, when and for how long, as text or built
// in Go; what was done when; and jobs under mpivrun that they are done to.
//
//	mpivrun -n 4 --spares 2 --chaos 'kill 2@5s; stop 3@8s for 4s' ./prog
//
//	func TestMyProgramSurvives(t *testing.T) {
//		r, err := chaos.Run(t.Context(), chaos.Job{
//			Args:     []string{"-n", "4", "--spares", "2", "./prog"},
//			Schedule: chaos.Schedule{chaos.Kill(2).At(5 * time.Second), chaos.Stop(3).At(8 * time.Second).For(4 * time.Second)},
//		})
//		…
//	}
package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Kind is what a fault does.
type Kind string

// The kinds. Those that name a rank are done to the process that has the rank at that
// moment, and so to all ranks there; the others are done to hosts of a lab.
const (
	KindKill  Kind = "kill"  // kill -9
	KindStop  Kind = "stop"  // it stands still: SIGSTOP
	KindDuty  Kind = "duty"  // it runs for a share of the time only
	KindMove  Kind = "move"  // the rank goes to a spare process
	KindSlow  Kind = "slow"  // the cables of a host get another rate
	KindCut   Kind = "cut"   // the cables of a host are pulled, or groups of hosts cannot reach each other
	KindFlood Kind = "flood" // a host is asked for large files, by many at once
)

// A Fault is one thing to do, once. Make one with [Kill], [Stop] and so on.
type Fault struct {
	Kind     Kind
	Rank     int           // kill, stop, duty, move
	Percent  int           // duty: of the time in which it runs, 1 to 99
	Host     string        // slow, cut, flood: whose. Move: where to; empty: wherever there is a spare process
	Network  string        // slow, cut: of the cable. Empty: all of the host
	Rate     string        // slow: such as 5mbit
	Groups   [][]string    // cut: hosts that reach their own group only; then Host is empty
	Attacker string        // flood: from which host. Empty: one on which the job has no process
	Start    time.Duration // after the job's ranks have started
	Length   time.Duration // zero: until the job ends, and of a flood for ten minutes at most. Kill and move have none
}

// Kill kills the process that has the rank.
func Kill(rank int) Fault { return Fault{Kind: KindKill, Rank: rank} }

// Stop has the process that has the rank stand still. Where ranks survive crashes, one that
// is stopped for longer than half a second is hung, and its ranks go on elsewhere.
func Stop(rank int) Fault { return Fault{Kind: KindStop, Rank: rank} }

// Duty has the process that has the rank run for so many percent of the time only,
// in turns of a tenth of a second.
func Duty(rank, percent int) Fault { return Fault{Kind: KindDuty, Rank: rank, Percent: percent} }

// Move moves the rank to a spare process; see [Fault.To].
func Move(rank int) Fault { return Fault{Kind: KindMove, Rank: rank} }

// Slow gives the cables of a host another rate, such as "5mbit", both ways. The host
// may be HOST/NETWORK: then it is that cable only.
func Slow(host, rate string) Fault {
	f := Fault{Kind: KindSlow, Rate: rate}
	f.Host, f.Network, _ = strings.Cut(host, "/")
	return f
}

// Cut has groups of hosts reach nobody of the other groups, in silence. A group is a
// host, or several with commas between. With a single group, which is HOST or
// HOST/NETWORK, the cables of that host are pulled.
func Cut(groups ...string) Fault {
	f := Fault{Kind: KindCut}
	if len(groups) == 1 {
		f.Host, f.Network, _ = strings.Cut(groups[0], "/")
		return f
	}
	for _, g := range groups {
		f.Groups = append(f.Groups, strings.Split(g, ","))
	}
	return f
}

// Flood has a host serve a file of 8 MB to 200 connections at once; see [Fault.From].
func Flood(host string) Fault { return Fault{Kind: KindFlood, Host: host} }

// At is f, begun that long after the job's ranks have started.
func (f Fault) At(start time.Duration) Fault { f.Start = start; return f }

// For is f, undone after that long. Without it a fault lasts until the job ends.
func (f Fault) For(length time.Duration) Fault { f.Length = length; return f }

// To is f, a move, to a host.
func (f Fault) To(host string) Fault { f.Host = host; return f }

// From is f, a flood, from a host.
func (f Fault) From(host string) Fault { f.Attacker = host; return f }

// OfRank tells whether f is done to a rank, and not to hosts of a lab.
func (f Fault) OfRank() bool {
	return slices.Contains([]Kind{KindKill, KindStop, KindDuty, KindMove}, f.Kind)
}

// Lasts tells whether f is a state that ends, and not a moment.
func (f Fault) Lasts() bool { return f.Kind != KindKill && f.Kind != KindMove }

// What is f without its times: "duty 1 10%".
func (f Fault) What() string {
	words := string(f.Kind) + " "
	switch f.Kind {
	case KindKill, KindStop:
		return words + strconv.Itoa(f.Rank)
	case KindDuty:
		return fmt.Sprintf("%s%d %d%%", words, f.Rank, f.Percent)
	case KindMove:
		return words + strconv.Itoa(f.Rank) + after(" to ", f.Host)
	case KindSlow:
		return words + f.Host + after("/", f.Network) + " " + f.Rate
	case KindFlood:
		return words + f.Host + after(" from ", f.Attacker)
	case KindCut:
		if len(f.Groups) == 0 {
			return words + f.Host + after("/", f.Network)
		}
		groups := make([]string, len(f.Groups))
		for i, g := range f.Groups {
			groups[i] = strings.Join(g, ",")
		}
		return words + strings.Join(groups, "|")
	}
	return words
}

// after is name behind lead; nothing if there is no name.
func after(lead, name string) string {
	if name == "" {
		return ""
	}
	return lead + name
}

// String is f as [Parse] takes it.
func (f Fault) String() string {
	s := f.What() + "@" + spell(f.Start)
	if f.Length != 0 {
		s += " for " + spell(f.Length)
	}
	return s
}

// spell is d without the zeros that Duration.String adds: 2m, not 2m0s.
func spell(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Bounds of what a schedule may say.
const (
	maxRank = 1<<20 - 1
	longest = 1000 * time.Hour
	most    = 10_000 // faults
)

// check is what is wrong with f by itself.
func (f Fault) check() error {
	switch f.Kind {
	case KindKill, KindStop, KindDuty, KindMove:
		if f.Rank < 0 || f.Rank > maxRank {
			return fmt.Errorf("there is no rank %d: ranks count from 0", f.Rank)
		}
	case KindSlow, KindFlood, KindCut:
	default:
		return fmt.Errorf("%q is no fault: there are kill, stop, duty, move, slow, cut, flood and random", f.Kind)
	}
	if f.Kind == KindDuty && (f.Percent < 1 || f.Percent > 99) {
		return fmt.Errorf("a duty of %d%%: it must be from 1%% to 99%%", f.Percent)
	}
	if f.Kind == KindSlow {
		if err := checkRate(f.Rate); err != nil {
			return err
		}
	}
	if err := f.checkHosts(); err != nil {
		return err
	}
	switch {
	case f.Start < 0 || f.Start > longest:
		return fmt.Errorf("it begins at %v: that must be from 0 to %v", f.Start, longest)
	case f.Length < 0 || f.Length > longest:
		return fmt.Errorf("it lasts %v: that must be more than 0 and at most %v", f.Length, longest)
	case f.Length != 0 && !f.Lasts():
		return fmt.Errorf("a %s is a moment: it has no length", f.Kind)
	}
	return nil
}

func (f Fault) checkHosts() error {
	if len(f.Groups) > 0 {
		if f.Kind != KindCut || f.Host != "" || len(f.Groups) < 2 {
			return errors.New("groups of hosts are for a cut, which has two or more, or one host")
		}
		seen := map[string]bool{}
		for _, h := range slices.Concat(f.Groups...) {
			if err := checkName("host", h); err != nil {
				return err
			}
			if seen[h] {
				return fmt.Errorf("host %s is there twice: a host is on one side of a cut", h)
			}
			seen[h] = true
		}
		return nil
	}
	names := []struct{ what, name string }{{"host", f.Host}, {"network", f.Network}, {"host", f.Attacker}}
	for i, n := range names {
		if n.name == "" && (i > 0 || f.OfRank()) {
			continue
		}
		if err := checkName(n.what, n.name); err != nil {
			return err
		}
	}
	if f.Kind == KindFlood && f.Attacker == f.Host {
		return fmt.Errorf("host %s cannot flood itself: say from which other host", f.Host)
	}
	return nil
}

func checkName(what, name string) error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	if name == "" {
		return fmt.Errorf("the name of a %s is missing", what)
	}
	if i := strings.IndexFunc(name, func(r rune) bool { return !plain(r) }); i >= 0 || len(name) > 255 {
		return fmt.Errorf("%q is no name of a %s: those are letters, digits, dots, dashes and underscores, 255 at most", name, what)
	}
	return nil
}

// checkRate refuses what a lab would.
func checkRate(rate string) error {
	for unit, bits := range map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9} {
		digits, ok := strings.CutSuffix(rate, unit)
		if !ok || strings.Trim(digits, "0123456789.") != "" {
			continue
		}
		if n, err := strconv.ParseFloat(digits, 64); err == nil {
			if n *= bits; n < 8e3 || n > 400e9 {
				return fmt.Errorf("rate %s: it must be from 8kbit to 400gbit", rate)
			}
			return nil
		}
	}
	return fmt.Errorf("rate %q: write a number and kbit, mbit or gbit, such as 5mbit", rate)
}
