package misuse

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// took is how long jobs went on after their mistake was complete.
var took durations

type durations struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

func (d *durations) add(one time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

// print says what was measured.
func (d *durations) print() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return
	}
	slices.Sort(d.all)
	late := 0
	for _, x := range d.all {
		if x > time.Second {
			late++
		}
	}
	at := func(p int) time.Duration { return d.all[(len(d.all)-1)*p/100].Round(time.Millisecond) }
	fmt.Printf("from mistake to end of job, %d jobs: median %v, 90%% within %v, longest %v; %d took more than 1s\n",
		len(d.all), at(50), at(90), at(100), late)
}
