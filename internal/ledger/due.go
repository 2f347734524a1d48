package ledger

import "slices"

// Heard is what a process was told of maps.
type Heard struct {
	Start uint32   // of this epoch, and of all since without a gap
	Maps  []uint32 // of these beyond
	Leave []uint32 // to let a rank go, by the maps of these
}

// A Due is something that a process is still to be told: the map of an epoch, or, Leave, to
// let a rank go by it.
type Due struct {
	Epoch uint32
	Leave bool
	*Change
}

// Due is all that process p is to be told, which has heard h, in the order of maps.
func (s *State) Due(p int, h Heard) (all []Due) {
	for epoch := h.Start + 1; epoch <= s.Epoch(); epoch++ {
		c := s.Change(epoch)
		switch {
		case c == nil: // of a Start that was none
		case c.Kind != Open && !slices.Contains(h.Maps, epoch):
			all = append(all, Due{epoch, false, c})
		case c.Kind == Open && c.Move.From == p && !slices.Contains(h.Leave, epoch):
			all = append(all, Due{epoch, true, c})
		}
	}
	return all
}
