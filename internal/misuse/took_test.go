package misuse

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// took is how long after its mistake was complete a job was explained.
var took durations

type durations struct {
	mu        sync.Mutex                  // guards what follows
	deadlocks []time.Duration             // found by asking all ranks, twice
	errors    []time.Duration             // found by one rank, or by its end
	names     []string                    // of programs, in the order in which they ended first
	of        map[[2]string]time.Duration // by program and way
}

func (d *durations) add(program, way string, one time.Duration, said string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.of == nil {
		d.of = map[[2]string]time.Duration{}
	}
	if !slices.Contains(d.names, program) {
		d.names = append(d.names, program)
	}
	d.of[[2]string{program, way}] = one
	if strings.Contains(said, "deadlock in job") {
		d.deadlocks = append(d.deadlocks, one)
	} else {
		d.errors = append(d.errors, one)
	}
}

// print says what was measured.
func (d *durations) print() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, kind := range []struct {
		name string
		all  []time.Duration
	}{{"deadlocks", d.deadlocks}, {"errors", d.errors}} {
		if len(kind.all) == 0 {
			continue
		}
		slices.Sort(kind.all)
		late := 0
		for _, x := range kind.all {
			if x > time.Second {
				late++
			}
		}
		at := func(p int) time.Duration { return kind.all[(len(kind.all)-1)*p/100].Round(time.Millisecond) }
		fmt.Printf("from mistake to explanation, %s in %d jobs: median %v, 90%% within %v, longest %v; %d took more than 1s\n",
			kind.name, len(kind.all), at(50), at(90), at(100), late)
	}
}

// write writes what was measured to a file, as a table with a row for each program.
func (d *durations) write(path string) error {
	if path == "" {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, `# How soon a mistake is explained

Made by `+"`make misuses`"+`: milliseconds from when the mistake was complete (the last rank had begun, or finished) until mpivrun began to say
what is wrong, and at which line; 0 also where it began before. One job after another, %d cores, load average at the end %s. The bar is 1000.

| the program |`, runtime.NumCPU(), load())
	for _, w := range ways {
		fmt.Fprintf(&b, " %s |", w.name)
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(ways)) + "\n")
	longest := time.Duration(0)
	for _, name := range d.names {
		fmt.Fprintf(&b, "| %s |", name)
		for _, w := range ways {
			if one, ok := d.of[[2]string{name, w.name}]; ok {
				fmt.Fprintf(&b, " %d |", max(one, 0).Milliseconds())
				longest = max(longest, one)
			} else {
				b.WriteString(" not explained |")
			}
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "\n%d programs; the longest took %d.\n", len(d.names), longest.Milliseconds())
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// load is the load average of the last minute, where the system tells it.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
