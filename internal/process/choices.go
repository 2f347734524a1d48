package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A rank's choices since its last snapshot, in a file that outlives the process. Each
// life has a file of its own, which begins with what is known from the one before;
// the number of the snapshot that a choice follows is with it.

// choicesFile is where the choices of a life of r are.
func (p *Process) choicesFile(r topology.Rank, epoch topology.Epoch) string {
	return filepath.Join(p.dir, fmt.Sprintf("choices-%d.%d", r, epoch))
}

// recordChoices begins to record l's choices. again is those since snapshot l.number,
// of which the state that the rank has is posts and polls beyond.
func (l *Life) recordChoices(again []engine.Choice, posts, polls uint32) error {
	if l.p.options.Survive != "crashes" {
		return nil
	}
	file := l.p.choicesFile(l.Rank, l.epoch)
	d, err := checkpoint.CreateDeterminants(file + ".new")
	if err != nil {
		return fmt.Errorf("make room for the choices of rank %d: %w", l.Rank, err)
	}
	for _, c := range again {
		if err := d.Append(determinantOf(c, l.number)); err != nil {
			d.Close()
			return err
		}
	}
	if err := os.Rename(file+".new", file); err != nil { // whole, or not there
		d.Close()
		return err
	}
	l.choices = d
	l.Box.Record(func(c engine.Choice) {
		if err := d.Append(determinantOf(c, l.number)); err != nil && !errors.Is(err, checkpoint.ErrClosed) {
			l.p.engine.Fail(fmt.Errorf("record a choice of rank %d: %w", l.Rank, err))
		}
	}, again, posts, polls)
	return nil
}

// savedChoices is told that a snapshot covers all choices so far.
func (l *Life) savedChoices() {
	l.Box.Saved()
	if l.choices != nil {
		l.choices.Truncate(l.choices.Len())
	}
}

// chosen is r's choices since snapshot number, which the first of its lives has that
// came so far as to have a file.
func (p *Process) chosen(r topology.Rank, lives []uint32, number uint64) ([]engine.Choice, error) {
	for _, epoch := range lives {
		d, err := checkpoint.OpenDeterminants(p.choicesFile(r, topology.Epoch(epoch)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer d.Close()
		return choicesIn(d, number), d.Err()
	}
	return nil, nil
}

func choicesIn(d *checkpoint.Determinants, number uint64) (all []engine.Choice) {
	for _, rec := range d.From(0) {
		if rec.Value == number {
			all = append(all, engine.Choice{Kind: engine.ChoiceKind(rec.Kind), Index: rec.Count, Source: topology.Rank(rec.Source), Seq: rec.Seq})
		}
	}
	return all
}

func determinantOf(c engine.Choice, number uint64) checkpoint.Determinant {
	return checkpoint.Determinant{Kind: uint8(c.Kind), Source: int32(c.Source), Count: c.Index, Seq: c.Seq, Value: number}
}
