package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/engine"
	"github.com/mpiv/mpiv/topology"
)

// A rank's choices since its last snapshot, in a file that outlives the process. Each
// life has a file of its own, which begins with what is known from the one before;
// the number of the snapshot that a choice follows is with it.
//
// Where snapshots are copied to other hosts the rank may have to go on from an older one
// than its last. So choices are forgotten only when the snapshot is covered, and a mark
// among them says where one was taken: choices are numbered anew from there.

// kindSnapshot is the Kind of a mark. Value is the snapshot's number; see markOf.
const kindSnapshot = 255

// markOf is the mark of a snapshot before which there were so many since the one before.
func markOf(number uint64, n engine.Counts) checkpoint.Determinant {
	return checkpoint.Determinant{Kind: kindSnapshot, Value: number,
		Count: n[engine.OfTasks], Seq: uint64(n[engine.OfAny])<<32 | uint64(n[engine.OfDecisions])}
}

// countsOf is what markOf was told.
func countsOf(mark checkpoint.Determinant) (n engine.Counts) {
	n[engine.OfTasks], n[engine.OfAny], n[engine.OfDecisions] = mark.Count, uint32(mark.Seq>>32), uint32(mark.Seq)
	return n
}

// choicesFile is where the choices of a life of r are.
func (p *Process) choicesFile(r topology.Rank, epoch topology.Epoch) string {
	return filepath.Join(p.dir, fmt.Sprintf("choices-%d.%d", r, epoch))
}

// witnessFile is where they are if they were made on another host, as far as this one
// knows them.
func (p *Process) witnessFile(r topology.Rank, epoch topology.Epoch) string {
	return filepath.Join(p.dir, fmt.Sprintf("witness-%d.%d", r, epoch))
}

// recording readies the record of l's choices. before is what the lives before have
// recorded; since snapshot l.number the state that the rank has is so many beyond. nil: none are recorded.
func (l *Life) recording(before []checkpoint.Determinant, done engine.Counts) (*engine.Recording, error) {
	if l.p.options.Survive != "crashes" {
		return nil, nil
	}
	file := l.p.choicesFile(l.Rank, l.epoch)
	d, err := l.p.blank.replace(file, before)
	if err != nil {
		return nil, fmt.Errorf("make room for the choices of rank %d: %w", l.Rank, err)
	}
	l.choices = d
	page := l.p.page
	if page != nil {
		page.AddFile()
		page.Record(1 + len(before)) // another host is to know that these are of this life now
	}
	record := func(c engine.Choice) {
		if page != nil {
			page.Ready()
		}
		if err := d.Append(determinantOf(c, l.number)); err != nil && !errors.Is(err, checkpoint.ErrClosed) {
			l.p.engine.Fail(fmt.Errorf("record a choice of rank %d: %w", l.Rank, err))
		}
		if page != nil {
			page.Record(1)
		}
	}
	return &engine.Recording{Record: record, Again: choicesSince(before, l.number), Done: done}, nil
}

// markChoices says that the choices from here on follow the next snapshot, which is about to be
// taken: so many were since the one before. What that one covers is forgotten, if it would
// outlive this host. No choice is recorded meanwhile.
func (l *Life) markChoices(done engine.Counts) error {
	number := l.number
	l.number++
	if l.choices == nil {
		return nil
	}
	at := l.choices.Len()
	if l.p.copied {
		if err := l.choices.Append(markOf(l.number, done)); err != nil {
			return fmt.Errorf("record a snapshot of rank %d: %w", l.Rank, err)
		}
		if l.outlives.Load() >= number {
			l.choices.Truncate(l.marked)
		}
	}
	l.marked = at
	return nil
}

// savedChoices is told that the last snapshot covers what it follows.
func (l *Life) savedChoices() {
	l.Box.Saved(func() {
		if l.choices != nil && !l.p.copied {
			l.choices.Truncate(l.marked)
		}
	})
}

// chosen is what is recorded of r by the first of its lives that came so far as to have
// a file, or to be known here.
func (p *Process) chosen(r topology.Rank, lives []uint32) ([]checkpoint.Determinant, error) {
	for _, epoch := range lives {
		own, err := readChoices(p.choicesFile(r, topology.Epoch(epoch)))
		if err != nil || own != nil {
			return own, err
		}
		heard, err := readChoices(p.witnessFile(r, topology.Epoch(epoch)))
		if err != nil || heard != nil {
			return heard, err
		}
	}
	return nil, nil
}

// readChoices is what is in a file; nil if there is none.
func readChoices(file string) ([]checkpoint.Determinant, error) {
	d, err := checkpoint.OpenDeterminants(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	all := []checkpoint.Determinant{}
	for _, rec := range d.From(0) {
		all = append(all, rec)
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return all, d.Whole() // without those behind one that was damaged the rank would choose anew
}

// choicesSince is the choices among all that follow snapshot number, numbered from there.
func choicesSince(all []checkpoint.Determinant, number uint64) (since []engine.Choice) {
	var before engine.Counts // from that snapshot to the mark passed last
	for _, rec := range all {
		switch {
		case rec.Kind == kindSnapshot && rec.Value > number:
			for s, n := range countsOf(rec) {
				before[s] += n
			}
		case rec.Kind == kindSnapshot || rec.Value < number:
		default:
			c := engine.Choice{Kind: engine.ChoiceKind(rec.Kind), Index: rec.Count, Source: topology.Rank(rec.Source), Seq: rec.Seq}
			if s, numbered := c.Kind.Series(); numbered {
				c.Index += before[s]
			}
			since = append(since, c)
		}
	}
	return since
}

// goingOn is all for a life that goes on from snapshot number: what follows the snapshot
// follows no other.
func goingOn(all []checkpoint.Determinant, number uint64) (before []checkpoint.Determinant) {
	for _, rec := range all {
		if rec.Value < number || rec.Value == number && rec.Kind == kindSnapshot {
			before = append(before, rec)
		}
	}
	before = slices.Clip(before)
	for _, c := range choicesSince(all, number) {
		before = append(before, determinantOf(c, number))
	}
	return before
}

func determinantOf(c engine.Choice, number uint64) checkpoint.Determinant {
	return checkpoint.Determinant{Kind: uint8(c.Kind), Source: int32(c.Source), Count: c.Index, Seq: c.Seq, Value: number}
}
