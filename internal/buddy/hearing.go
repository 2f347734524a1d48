package buddy

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// A hearing is what is known here of the choices of a life on another host.
type hearing struct {
	d    *checkpoint.Determinants
	base uint64 // number that its first has in the other file
}

// end is the number of the next.
func (h *hearing) end() uint64 { return h.base + h.d.Len() }

// An end is that of a rank's lives up to one: what they choose from then on counts for nobody.
type end struct {
	epoch uint32
	until time.Time // who tells of it is refused
}

// closeBook hears no more of choices of a life.
func (k *Keeper) closeBook(c control.Close) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.Epoch >= k.ends[c.Rank].epoch {
		k.ends[c.Rank] = end{c.Epoch, time.Now().Add(c.For)}
	}
}

// hear keeps what came over a connection: all of it, or nothing if that was given up. What
// was brought has been heard before, by another agent.
func (k *Keeper) hear(from net.Conn, said []choices, brought bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, welcome := k.guests[from]; !welcome || k.closed || k.dir == "" {
		return errors.New("the agent is not ready for choices")
	}
	for _, c := range said {
		if e := k.ends[c.Rank]; c.Epoch <= e.epoch && !brought {
			if time.Now().Before(e.until) {
				return fmt.Errorf("rank %d goes on elsewhere: nothing that it chooses here counts", c.Rank)
			}
			continue
		}
		if err := k.hearOf(c); err != nil {
			return err
		}
	}
	return nil
}

func (k *Keeper) hearOf(c choices) error {
	l := control.Life{Rank: c.Rank, Epoch: c.Epoch}
	if c.Epoch < k.forgot[c.Rank] {
		return nil
	}
	h := k.heard[l]
	if h == nil || c.First > h.end() { // what ends before h begins is old
		file := filepath.Join(k.dir, fmt.Sprintf("witness-%d.%d", c.Rank, c.Epoch))
		d, err := checkpoint.ReplaceDeterminants(file, c.all)
		if err != nil {
			return err
		}
		if h != nil {
			h.d.Close()
		}
		k.heard[l] = &hearing{d, c.First}
		return nil
	}
	for i, rec := range c.all {
		if c.First+uint64(i) == h.end() {
			if err := h.d.Append(rec); err != nil {
				return err
			}
		}
	}
	if c.Oldest > h.base {
		return h.d.Truncate(c.Oldest - h.base)
	}
	return nil
}

// Hearsay is of whose choices, made on other hosts, something is known here, in no order.
func (k *Keeper) Hearsay() []control.Life {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.heard))
}
