// Package topology says where each rank runs: immutable maps from ranks to
// places, numbered by epoch. It decides nothing and does no I/O.
package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
)

// A Rank is a virtual process, 0 … Size()-1 in its world. It survives moves.
type Rank int32

// A Place is one process: the slot-th on its host.
type Place struct {
	Host string
	Slot int
}

func (p Place) String() string { return fmt.Sprintf("%s/%d", p.Host, p.Slot) }

func (p Place) compare(q Place) int {
	return cmp.Or(cmp.Compare(p.Host, q.Host), cmp.Compare(p.Slot, q.Slot))
}

// A Move takes a rank from one place to another.
type Move struct {
	Rank     Rank
	From, To Place
}

func (m Move) String() string { return fmt.Sprintf("rank %d: %v → %v", m.Rank, m.From, m.To) }

// An Epoch numbers maps. The first map of a job has epoch 1; 0 is no map.
type Epoch uint32

// What Apply refuses, for errors.Is.
var (
	ErrNoRank = errors.New("no such rank in the map")
	ErrStale  = errors.New("the rank is not where the move expects it")
	ErrTwice  = errors.New("the rank is moved twice at once")
)

// A Map holds the place of every rank. It is never edited: a new assignment is
// a new Map with the next epoch. The zero Map has no ranks.
type Map struct {
	epoch  Epoch
	places []Place // by rank
}

// New is the first map of a job, epoch 1: places[r] is where rank r runs. It
// keeps its own copy of places.
func New(places []Place) *Map { return &Map{epoch: 1, places: slices.Clone(places)} }

// Epoch is the number of the map.
func (m *Map) Epoch() Epoch { return m.epoch }

// Size is the number of ranks.
func (m *Map) Size() int { return len(m.places) }

// Place is where r runs; false if the map has no such rank.
func (m *Map) Place(r Rank) (Place, bool) {
	if r < 0 || int(r) >= len(m.places) {
		return Place{}, false
	}
	return m.places[r], true
}

// Places is every place that holds a rank, ordered by host and slot.
func (m *Map) Places() []Place {
	all := slices.Clone(m.places)
	slices.SortFunc(all, Place.compare)
	return slices.Compact(all)
}

// Apply is the map after moves, of the next epoch. All moves happen or none:
// the error says which one cannot, and wraps ErrNoRank, ErrStale or ErrTwice.
func (m *Map) Apply(moves ...Move) (*Map, error) {
	next := &Map{epoch: m.epoch + 1, places: slices.Clone(m.places)}
	moved := make(map[Rank]bool, len(moves))
	for _, mv := range moves {
		at, ok := m.Place(mv.Rank)
		switch {
		case !ok:
			return nil, fmt.Errorf("apply %v: %w (size %d)", mv, ErrNoRank, m.Size())
		case at != mv.From:
			return nil, fmt.Errorf("apply %v: it is at %v: %w", mv, at, ErrStale)
		case moved[mv.Rank]:
			return nil, fmt.Errorf("apply %v: %w", mv, ErrTwice)
		}
		moved[mv.Rank] = true
		next.places[mv.Rank] = mv.To
	}
	return next, nil
}
