package buddy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"sync"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// A shelf has the copies of what one life of a rank has saved.
type shelf struct {
	mu      sync.Mutex // guards what follows
	file    string
	area    *checkpoint.Area
	replica *checkpoint.Replica
	has     bool // what is being brought, from another time: a pair was made anew, or an answer was lost
}

// shelfOf is where the copies of l are kept.
func (k *Keeper) shelfOf(l control.Life) (*shelf, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dir == "" || k.closed {
		return nil, errors.New("the agent is not ready for copies")
	}
	if s := k.shelves[l]; s != nil {
		return s, nil
	}
	s := &shelf{file: filepath.Join(k.dir, fmt.Sprintf("copy-%d.%d", l.Rank, l.Epoch))}
	var err error
	if s.area, err = checkpoint.Create(s.file); err != nil {
		return nil, err
	}
	s.replica = checkpoint.NewReplica(s.area)
	k.shelves[l] = s
	return s, nil
}

// keep takes copies from an agent until the connection ends.
func (k *Keeper) keep(conn *tls.Conn) error {
	c := newParcels(conn)
	var to *shelf
	var of beginning
	var failed error // of the copy that is on its way
	var said []choices
	told, some := false, false // that what was chosen there is known; and that there is such
	buf := make([]byte, pieceLen)
	for {
		p, err := c.receive()
		if err != nil {
			return err
		}
		switch {
		case p.Begin != nil:
			of = *p.Begin
			if to, failed = k.shelfOf(control.Life{Rank: of.Rank, Epoch: of.Epoch}); failed == nil {
				failed = to.begin(of)
			}
		case p.Put != nil:
			if p.Put.Bytes < 0 || p.Put.Bytes > pieceLen {
				return fmt.Errorf("a piece of %d bytes", p.Put.Bytes)
			}
			data := buf[:p.Put.Bytes]
			if _, err := io.ReadFull(c.in, data); err != nil {
				return err
			}
			if failed == nil && to != nil {
				failed = to.put(*p.Put, data)
			}
		case len(p.Commit) == len(checkpoint.Sum{}) && (to != nil || failed != nil):
			if failed == nil {
				failed = to.commit(of.Number, checkpoint.Sum(p.Commit))
			}
			answer := kept{Again: errors.Is(failed, checkpoint.ErrBase) || errors.Is(failed, checkpoint.ErrDiffers)}
			if failed != nil {
				answer.Error = failed.Error()
			} else {
				k.tell(control.FromAgent{Holds: &control.Holds{Rank: of.Rank, Epoch: of.Epoch, Number: of.Number, File: to.file}})
				if of.Base != 0 {
					k.forgetBefore(control.Life{Rank: of.Rank, Epoch: of.Epoch})
				}
			}
			if err := c.send(parcel{Kept: &answer}, nil); err != nil {
				return err
			}
			if err := c.out.Flush(); err != nil {
				return err
			}
			to = nil
		case p.Choices != nil:
			if err := p.Choices.read(c.in); err != nil {
				return err
			}
			said = append(said, *p.Choices)
		case p.Chosen != nil:
			answer := kept{}
			if err := k.hear(conn.NetConn(), said, p.Chosen.Brought); err != nil {
				answer.Error = err.Error()
			} else if p.Chosen.Brought {
				k.tell(control.FromAgent{Brought: &control.Brought{Rank: p.Chosen.Rank, Agent: p.Chosen.Agent}})
			} else if now := some || slices.ContainsFunc(said, func(c choices) bool { return c.Count > 0 }); !told || now != some {
				told, some = true, now
				k.tell(control.FromAgent{Brought: &control.Brought{Rank: p.Chosen.Rank, Agent: p.Chosen.Agent, None: !some}})
			}
			said = nil
			if err := c.send(parcel{Kept: &answer}, nil); err != nil {
				return err
			}
			if err := c.out.Flush(); err != nil {
				return err
			}
		default:
			return errors.New("a message about copies that is none")
		}
	}
}

// begin, put and commit are those of the replica. Should two connections bring the same
// snapshot, what becomes of it is whole or refused by its sum.
func (s *shelf) begin(of beginning) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.replica.Begin(of.Number, of.Lengths, of.Base)
	if s.has = errors.Is(err, checkpoint.ErrNumber) && s.area.Has(of.Number); s.has {
		return nil
	}
	return err
}

func (s *shelf) put(p piece, data []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.has {
		return nil
	}
	return s.replica.Put(p.Part, p.Off, data)
}

func (s *shelf) commit(number uint64, sum checkpoint.Sum) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.has {
		return s.replica.Commit(sum)
	}
	sums, err := s.area.Sums(number)
	if err == nil && sums.Sum() != sum {
		err = fmt.Errorf("snapshot %d is here already: %w", number, checkpoint.ErrDiffers)
	}
	return err
}

func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.area.Close()
}

// forgetBefore removes what lives of the rank before l have left here. It is called when
// a second snapshot of l has its copy: the first would not have been covered, nor the
// second saved, before the job's first agent knew of a copy of l.
func (k *Keeper) forgetBefore(l control.Life) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.forgot[l.Rank] >= l.Epoch {
		return
	}
	k.forgot[l.Rank] = l.Epoch
	for old, s := range k.shelves {
		if old.Rank == l.Rank && old.Epoch < l.Epoch {
			s.close()
			delete(k.shelves, old)
		}
	}
	for old, h := range k.heard {
		if old.Rank == l.Rank && old.Epoch < l.Epoch {
			h.d.Close()
			delete(k.heard, old)
		}
	}
	RemoveBefore(k.dir, l, "copy", "rank", "choices", "witness")
}
