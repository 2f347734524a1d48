package chaos

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// A Random is faults of which a seed says in which order they come, to which ranks or hosts
// and when: one in each span of Every. The same Random and number of ranks give the same faults.
type Random struct {
	Seed                        uint64
	Kills, Stops, Duties, Moves int           // how many of each
	Slows, Cuts, Floods         int           // of those that are done to hosts of a lab
	Hosts                       []string      // to which they are done. None unless there are such.
	Every                       time.Duration // one fault begins in each span of that length
	Length                      time.Duration // of all but kills and moves. Zero means half of Every.
	Start                       time.Duration // of the first span
}

// Rates to which a random fault slows a cable, in kbit.
const (
	slowLeast = 1_000
	slowMost  = 20_000
)

// OfHosts tells whether some of its faults are done to hosts of a lab.
func (r Random) OfHosts() bool { return r.Slows+r.Cuts+r.Floods > 0 }

func (r Random) counts() []struct {
	name string
	n    int
	make func(rank int, dice *rand.Rand) Fault
} {
	host := func(dice *rand.Rand) string { return r.Hosts[dice.IntN(len(r.Hosts))] }
	return []struct {
		name string
		n    int
		make func(rank int, dice *rand.Rand) Fault
	}{
		{"kills", r.Kills, func(rank int, _ *rand.Rand) Fault { return Kill(rank) }},
		{"stops", r.Stops, func(rank int, _ *rand.Rand) Fault { return Stop(rank).For(r.length()) }},
		{"duties", r.Duties, func(rank int, dice *rand.Rand) Fault { return Duty(rank, 5+dice.IntN(46)).For(r.length()) }},
		{"moves", r.Moves, func(rank int, _ *rand.Rand) Fault { return Move(rank) }},
		{"slows", r.Slows, func(_ int, dice *rand.Rand) Fault {
			return Slow(host(dice), strconv.Itoa(slowLeast+dice.IntN(slowMost-slowLeast+1))+"kbit").For(r.length())
		}},
		{"cuts", r.Cuts, func(_ int, dice *rand.Rand) Fault { return Cut(host(dice)).For(r.length()) }},
		{"floods", r.Floods, func(_ int, dice *rand.Rand) Fault { return Flood(host(dice)).For(r.length()) }},
	}
}

func (r Random) length() time.Duration {
	if r.Length == 0 {
		return r.Every / 2
	}
	return r.Length
}

// String is r as [Parse] takes it.
func (r Random) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "random seed=%d", r.Seed)
	for _, c := range r.counts() {
		if c.n != 0 {
			fmt.Fprintf(&b, " %s=%d", c.name, c.n)
		}
	}
	if len(r.Hosts) > 0 {
		b.WriteString(" hosts=" + strings.Join(r.Hosts, ","))
	}
	b.WriteString(" every=" + spell(r.Every))
	if r.Start != 0 {
		b.WriteString("@" + spell(r.Start))
	}
	if r.Length != 0 {
		b.WriteString(" for " + spell(r.Length))
	}
	return b.String()
}

func (r Random) check() error {
	total := 0
	for _, c := range r.counts() {
		if c.n < 0 || c.n > most {
			return fmt.Errorf("%s=%d: it must be from 0 to %d", c.name, c.n, most)
		}
		total += c.n
	}
	if err := r.checkHosts(); err != nil {
		return err
	}
	switch {
	case total == 0:
		return errors.New("random of nothing: say how many of which, such as kills=10")
	case total > most:
		return fmt.Errorf("%d faults are more than %d", total, most)
	case r.Every < time.Millisecond || r.Every > time.Hour:
		return fmt.Errorf("every=%v: say how far faults are apart, from 1ms to 1h, such as every=2s", r.Every)
	case r.Start < 0 || r.Start > longest:
		return fmt.Errorf("it begins at %v: that must be from 0 to %v", r.Start, longest)
	case r.Length < 0 || r.Length > longest:
		return fmt.Errorf("they last %v: that must be more than 0 and at most %v", r.Length, longest)
	case r.OfHosts() && r.Length > r.Every:
		return fmt.Errorf("they last %v and are %v apart: what is done to hosts must have ended when the next begins", r.Length, r.Every)
	}
	return nil
}

func (r Random) checkHosts() error {
	switch {
	case r.OfHosts() && len(r.Hosts) == 0:
		return errors.New("it does not say to which hosts slows, cuts and floods are done: write such as hosts=X,Y")
	case !r.OfHosts() && len(r.Hosts) > 0:
		return errors.New("hosts are for slows, cuts and floods, and there are none")
	}
	seen := map[string]bool{}
	for _, h := range r.Hosts {
		if err := checkName("host", h); err != nil {
			return err
		}
		if seen[h] {
			return fmt.Errorf("host %s is there twice", h)
		}
		seen[h] = true
	}
	return nil
}

func (r Random) faults(ranks int) []Fault {
	dice := rand.New(rand.NewPCG(r.Seed, 0))
	var all []Fault
	for _, c := range r.counts() {
		for range c.n {
			all = append(all, c.make(dice.IntN(max(ranks, 1)), dice))
		}
	}
	dice.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i := range all {
		room := r.Every
		if !all[i].OfRank() {
			room = r.Every - r.length() + time.Millisecond // it ends before the next begins
		}
		in := time.Duration(dice.Int64N(int64(room / time.Millisecond)))
		all[i].Start = r.Start + time.Duration(i)*r.Every + in*time.Millisecond
	}
	return all
}
