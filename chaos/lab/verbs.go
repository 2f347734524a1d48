//go:build linux

package lab

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// A verb is something that a lab does when another process asks for it.
type verb struct {
	name     string
	args     string // as help shows them
	min, max int    // how many
	read     func(args []string) (deed, error)
}

// A deed is what a verb and its arguments mean; it returns what there is to print.
type deed func(l *Lab) (string, error)

const anyNumber = 1 << 10

var verbs = []verb{
	{"show", "", 0, 0, func([]string) (deed, error) { return func(l *Lab) (string, error) { return l.show(), nil }, nil }},
	{"hostfile", "[SLOTS]", 0, 1, func(args []string) (deed, error) {
		slots := 1
		if len(args) > 0 {
			var err error
			if slots, err = strconv.Atoi(args[0]); err != nil || slots < 1 {
				return nil, fmt.Errorf("%q slots: write a number from 1 on", args[0])
			}
		}
		return func(l *Lab) (string, error) { return l.Hostfile(slots), nil }, nil
	}},
	{"cut", "HOST NETWORK", 2, 2, func(args []string) (deed, error) {
		return silent(func(l *Lab) error { return l.Cut(args[0], args[1]) })
	}},
	{"heal", "[HOST NETWORK]", 0, 2, func(args []string) (deed, error) {
		if len(args) == 0 {
			return silent((*Lab).HealAll)
		}
		if len(args) == 1 {
			return nil, fmt.Errorf("heal: say which network of %s, or nothing to heal all", args[0])
		}
		return silent(func(l *Lab) error { return l.Heal(args[0], args[1]) })
	}},
	{"rate", "HOST NETWORK RATE", 3, 3, func(args []string) (deed, error) {
		r, err := ParseRate(args[2])
		if err != nil {
			return nil, err
		}
		return silent(func(l *Lab) error { return l.SetRate(args[0], args[1], r) })
	}},
	{"impair", "HOST NETWORK DELAY [LOSS% [SEED]]", 3, 5, func(args []string) (deed, error) {
		i, err := parseImpairment(args[2:])
		if err != nil {
			return nil, err
		}
		return silent(func(l *Lab) error { return l.Impair(args[0], args[1], i) })
	}},
	{"partition", "[A,B C,D …]", 0, anyNumber, func(args []string) (deed, error) {
		if len(args) == 1 {
			return nil, fmt.Errorf("partition: %s alone is parted from nobody: write two groups or more, or none to end it", args[0])
		}
		var groups [][]string
		for _, a := range args {
			groups = append(groups, strings.Split(a, ","))
		}
		return silent(func(l *Lab) error { return l.Partition(groups...) })
	}},
	{"stop", "HOST", 1, 1, sends(syscall.SIGSTOP)},
	{"continue", "HOST", 1, 1, sends(syscall.SIGCONT)},
	{"kill", "HOST", 1, 1, sends(syscall.SIGKILL)},
	{"throttle", "HOST RUN STOP", 2, 3, func(args []string) (deed, error) {
		var times [2]time.Duration
		given := args[1:]
		if len(given) == 1 && given[0] == "off" {
			given = nil
		} else if len(given) != 2 {
			return nil, fmt.Errorf("throttle: write how long to run and how long to stop, such as 10ms 90ms, or off")
		}
		for i, a := range given {
			var err error
			if times[i], err = time.ParseDuration(a); err != nil {
				return nil, fmt.Errorf("%q: write a time such as 90ms", a)
			}
		}
		return silent(func(l *Lab) error { return l.Throttle(args[0], times[0], times[1]) })
	}},
	{"cpu", "HOST CORES", 2, 2, func(args []string) (deed, error) {
		cores, err := strconv.ParseFloat(args[1], 64)
		if err != nil {
			return nil, fmt.Errorf("%q cores: write a number such as 0.5, or 0 for no limit", args[1])
		}
		return silent(func(l *Lab) error { return l.LimitCPU(args[0], cores) })
	}},
}

// silent is a deed that prints nothing.
func silent(do func(l *Lab) error) (deed, error) {
	return func(l *Lab) (string, error) { return "", do(l) }, nil
}

func sends(sig syscall.Signal) func(args []string) (deed, error) {
	return func(args []string) (deed, error) {
		return silent(func(l *Lab) error { return l.Signal(args[0], sig) })
	}
}

// Check is nil if words are what a lab can be asked, be it that it has no such host or
// network: what [Control] takes.
func Check(words ...string) error {
	_, err := read(words)
	return err
}

// read is what words mean.
func read(words []string) (deed, error) {
	if len(words) == 0 {
		return nil, errors.New("no question")
	}
	name, args := words[0], words[1:]
	i := slices.IndexFunc(verbs, func(v verb) bool { return v.name == name })
	if i < 0 {
		return nil, fmt.Errorf("%q is nothing that a lab does", name)
	}
	if v := verbs[i]; len(args) < v.min || len(args) > v.max {
		return nil, fmt.Errorf("usage: %s", strings.TrimSpace(name+" "+v.args))
	}
	return verbs[i].read(args)
}

// do does what words say and returns what there is to print.
func (l *Lab) do(words []string) (string, error) {
	deed, err := read(words)
	if err != nil {
		return "", err
	}
	return deed(l)
}

// parseImpairment parses "20ms 1% 7".
func parseImpairment(words []string) (i Impairment, err error) {
	if words[0] != "0" {
		if i.Delay, err = time.ParseDuration(words[0]); err != nil {
			return i, fmt.Errorf("delay %q: write a time such as 20ms, or 0", words[0])
		}
	}
	if len(words) > 1 {
		percent, err := strconv.ParseFloat(strings.TrimSuffix(words[1], "%"), 64)
		if err != nil || !strings.HasSuffix(words[1], "%") {
			return i, fmt.Errorf("loss %q: write a share such as 1%%", words[1])
		}
		i.Loss = percent / 100
	}
	if len(words) > 2 {
		if i.Seed, err = strconv.ParseUint(words[2], 10, 64); err != nil {
			return i, fmt.Errorf("seed %q: write a number", words[2])
		}
	}
	return i, nil
}

// show describes the lab as it is now, a line for each link.
func (l *Lab) show() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "HOST\tNETWORK\tADDRESS\tRATE\tSTATE")
	for _, n := range l.all() {
		for _, c := range n.links {
			var state []string
			if c.cut {
				state = append(state, "cut")
			}
			if c.slow != (Impairment{}) {
				state = append(state, "impaired "+c.slow.String())
			}
			if l.duty[n] != nil {
				state = append(state, "throttled")
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%v\t%s\n", n.name, c.network.Name, c.addr.Addr(), c.rate, strings.Join(state, ", "))
		}
	}
	_ = t.Flush() // into memory
	for i, g := range l.groups {
		if i == 0 {
			b.WriteString("partition:")
		}
		b.WriteString(" " + strings.Join(g, ","))
		if i == len(l.groups)-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
