package misuse

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// took is how long after its mistake was complete a job was explained.
var took durations

type durations struct {
	mu        sync.Mutex      // guards what follows
	deadlocks []time.Duration // found by asking all ranks, twice
	errors    []time.Duration // found by one rank, or by its end
}

func (d *durations) add(one time.Duration, said string) {
	d.mu.Lock()
	defer d.mu.Unlock()
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
