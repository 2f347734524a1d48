package buddy

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// bring has another agent know all that is known here of the choices of a rank.
func (k *Keeper) bring(c control.Copy) {
	var err error
	for since := time.Now(); time.Since(since) < carryTime; {
		if err = k.bringOnce(c); err == nil || k.ctx.Err() != nil {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-k.ctx.Done():
			return
		}
	}
	k.tell(control.FromAgent{Uncopied: &control.Uncopied{Rank: c.Rank, Agent: c.To.Agent, Reason: err.Error()}})
}

func (k *Keeper) bringOnce(c control.Copy) error {
	var all []choices
	own := false // some were made here
	for _, kind := range []string{"choices", "witness"} {
		names, _ := filepath.Glob(filepath.Join(k.dir, fmt.Sprintf("%s-%d.*", kind, c.Rank)))
		for _, name := range names {
			l, ok := lifeOf(name)
			if !ok || l.Epoch < c.Epoch {
				continue
			}
			d, err := checkpoint.OpenDeterminants(name)
			if err != nil {
				continue // it was removed meanwhile, or is about to be made
			}
			part, err := choicesOf(l, d, 0)
			d.Close()
			if err != nil {
				return err
			}
			if kind == "witness" {
				k.mu.Lock()
				if h := k.heard[l]; h != nil {
					part.First, part.Oldest = part.First+h.base, part.Oldest+h.base
				}
				k.mu.Unlock()
			}
			all = append(all, part)
			own = own || kind == "choices"
		}
	}
	if own { // they hang on those of the rank's neighbours here, and must not outlive them
		if err := k.awaitWitness(); err != nil {
			return err
		}
	}
	line, err := k.callFor(c.To)
	if err != nil {
		return err
	}
	defer k.dismiss(line.raw())
	return line.testify(all, chosen{Brought: true, Rank: c.Rank, Agent: k.identity.Name().Index})
}
