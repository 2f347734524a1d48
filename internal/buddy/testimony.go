package buddy

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/alarm"
	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/internal/witness"
)

// A message that leaves a host waits until the choices on which it may hang are known on
// another. The agent sends them to its buddy as soon as a message waits, over a connection
// of their own: a snapshot in the same one would hold everybody up.
//
// What is sent at a time has no effect without its causes: all choices, of all ranks of the
// host, up to a moment. Who goes on from it does not wait for a message that nobody sends.

// A target is who is to know them, and since which change of buddies.
type target struct {
	to   control.Buddy
	turn uint64 // 0: none was told yet
}

// idle is how long choices for which no message waits are not sent on.
const idle = 100 * time.Millisecond

// testify sends this host's choices to its buddy until Close.
func (k *Keeper) testify(page *witness.Page) {
	w := &testimony{k: k, page: page, files: map[string]*deed{}}
	defer w.end()
	k.wg.Go(func() {
		tick := alarm.NewTicker(idle)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				page.Ring()
			case <-k.ctx.Done():
				return
			}
		}
	})
	for page.Sleep() {
		k.mu.Lock()
		to, gaveUp := k.chosen, k.gaveUp
		k.mu.Unlock()
		w.turnTo(to)
		switch {
		case to.turn == gaveUp: // or nobody was named yet
		case len(to.to.Addrs) == 0:
			page.Witness(witness.Alone)
		case !w.told || page.Recorded() != page.Witnessed():
			w.tell()
		}
	}
}

// A testimony is what the goroutine of testify has.
type testimony struct {
	k      *Keeper
	page   *witness.Page
	to     target
	line   *parcels // nil: none
	files  map[string]*deed
	looked uint64    // Files of the page when they were looked for
	told   bool      // the buddy knows what there was when it became one
	failed time.Time // to tell it was tried in vain since then; zero: it was not
}

// A deed is a file of choices of this host.
type deed struct {
	control.Life
	d    *checkpoint.Determinants
	next uint64 // what is before is known to the buddy
	some bool   // the buddy knows of the file
}

func (w *testimony) end() {
	w.hangUp()
	for _, s := range w.files {
		s.d.Close()
	}
}

func (w *testimony) hangUp() {
	if w.line != nil {
		w.k.mu.Lock()
		w.k.telling = nil
		w.k.mu.Unlock()
		w.k.dismiss(w.line.raw())
		w.line = nil
	}
}

// turnTo is told who the buddy is.
func (w *testimony) turnTo(to target) {
	if w.to.turn == to.turn {
		return
	}
	w.hangUp()
	w.to, w.failed = to, time.Time{}
	for _, s := range w.files {
		s.next, s.some = 0, false
	}
	w.told = false
	if w.page.Witnessed() == witness.Alone {
		w.page.Witness(w.page.Recorded()) // nobody has waited for these
	}
}

// tell has the buddy know all.
func (w *testimony) tell() {
	n, err := w.tellAll()
	if err == nil {
		w.failed, w.told = time.Time{}, true
		w.page.Witness(n)
		return
	}
	w.hangUp()
	select {
	case <-time.After(20 * time.Millisecond): // whoever waits would wake this at once
	case <-w.k.ctx.Done():
	}
	switch now := time.Now(); {
	case w.k.ctx.Err() != nil:
	case w.failed.IsZero():
		w.failed = now
	case now.Sub(w.failed) > carryTime:
		w.k.mu.Lock()
		w.k.gaveUp = w.to.turn
		w.k.mu.Unlock()
		w.k.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: -1, Agent: w.to.to.Agent, Reason: err.Error()}})
	}
}

// errStale: there is another buddy.
var errStale = errors.New("it is not told any more")

func (w *testimony) tellAll() (recorded uint64, err error) {
	if w.line == nil {
		conn, err := w.k.callFor(w.to.to)
		if err != nil {
			return 0, err
		}
		w.line = conn
		w.k.mu.Lock()
		stale := w.k.chosen.turn != w.to.turn
		w.k.telling = conn.raw()
		w.k.mu.Unlock()
		if stale {
			return 0, errStale
		}
	}
	recorded, all, err := w.gather()
	if err != nil {
		return 0, err
	}
	if err := w.line.testify(all, chosen{Rank: -1, Agent: w.k.identity.Name().Index}); err != nil {
		return 0, err
	}
	for i := range all {
		s := w.files[w.k.choicesFile(control.Life{Rank: all[i].Rank, Epoch: all[i].Epoch})]
		s.next, s.some = all[i].First+uint64(len(all[i].all)), true
	}
	return recorded, nil
}

// gather is what the buddy does not know: of all files, up to a moment. It is such when
// nobody has recorded a choice while it was read.
func (w *testimony) gather() (recorded uint64, all []choices, err error) {
	defer w.page.Still(false)
	for tries := 1; ; tries++ {
		w.page.Still(tries > 3)
		recorded = w.page.Recorded()
		if err := w.look(); err != nil {
			return 0, nil, err
		}
		all = all[:0]
		for _, s := range w.files {
			c, err := choicesOf(s.Life, s.d, s.next)
			if err != nil {
				return 0, nil, err
			}
			if len(c.all) > 0 || !s.some {
				all = append(all, c)
			}
		}
		if w.page.Recorded() == recorded {
			return recorded, all, nil
		}
		if w.k.ctx.Err() != nil {
			return 0, nil, w.k.ctx.Err()
		}
	}
}

// look opens the files that are new, and forgets those that were removed.
func (w *testimony) look() error {
	n := w.page.Files()
	if n == w.looked {
		return nil
	}
	names, err := filepath.Glob(filepath.Join(w.k.dir, "choices-*"))
	if err != nil {
		return err
	}
	for _, name := range names {
		l, ok := lifeOf(name)
		if !ok || w.files[name] != nil {
			continue
		}
		d, err := checkpoint.OpenDeterminants(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		w.files[name] = &deed{Life: l, d: d}
	}
	for name, s := range w.files {
		if !slices.Contains(names, name) {
			s.d.Close()
			delete(w.files, name)
		}
	}
	w.looked = n
	return nil
}

// awaitWitness waits until all choices up to now are known to the buddy. What hangs on those
// of neighbours must not outlive them: a snapshot, and a rank's choices where it goes on elsewhere.
func (k *Keeper) awaitWitness() error {
	k.mu.Lock()
	page := k.page
	k.mu.Unlock()
	if page == nil {
		return nil
	}
	for n, since := page.Recorded(), time.Now(); page.Witnessed() < n; {
		page.Wake()
		if time.Since(since) > carryTime {
			return errors.New("the choices of the ranks could not be sent")
		}
		select {
		case <-time.After(time.Millisecond):
		case <-k.ctx.Done():
			return k.ctx.Err()
		}
	}
	return nil
}
