package buddy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// choices are some of a life of a rank, in order, as they are in its file.
type choices struct {
	Rank   int
	Epoch  uint32
	Oldest uint64 // what is before is covered
	First  uint64 // number of the first
	Count  int
	all    []checkpoint.Determinant
}

// chosen ends them.
type chosen struct {
	Brought bool `json:",omitempty"` // it is all that Agent knows of those of Rank; otherwise they are those that were made at Agent
	Rank    int
	Agent   int
}

const (
	determinantLen = 25
	choicesMost    = 1 << 20 // in one parcel
)

// bytes is how the records follow the parcel.
func (c *choices) bytes() []byte {
	out := make([]byte, 0, len(c.all)*determinantLen)
	for _, d := range c.all {
		out = append(out, d.Kind)
		out = binary.LittleEndian.AppendUint32(out, uint32(d.Source))
		out = binary.LittleEndian.AppendUint32(out, d.Count)
		out = binary.LittleEndian.AppendUint64(out, d.Seq)
		out = binary.LittleEndian.AppendUint64(out, d.Value)
	}
	return out
}

// read reads them.
func (c *choices) read(in *bufio.Reader) error {
	if c.Count < 0 || c.Count > choicesMost || c.Rank < 0 || c.Oldest > c.First {
		return fmt.Errorf("%d choices of rank %d: at most %d, and not before they were made", c.Count, c.Rank, choicesMost)
	}
	var b [determinantLen]byte
	for range c.Count {
		if _, err := io.ReadFull(in, b[:]); err != nil {
			return err
		}
		c.all = append(c.all, checkpoint.Determinant{
			Kind: b[0], Source: int32(binary.LittleEndian.Uint32(b[1:])), Count: binary.LittleEndian.Uint32(b[5:]),
			Seq: binary.LittleEndian.Uint64(b[9:]), Value: binary.LittleEndian.Uint64(b[17:]),
		})
	}
	return nil
}

// choicesOf is what is in d from number next on.
func choicesOf(l control.Life, d *checkpoint.Determinants, next uint64) (choices, error) {
	c := choices{Rank: l.Rank, Epoch: l.Epoch, Oldest: d.First()}
	c.First = max(next, c.Oldest)
	for i, rec := range d.From(c.First) {
		if len(c.all) == 0 {
			c.First = i
		}
		c.all = append(c.all, rec)
	}
	return c, d.Err()
}

// testify sends choices and waits until they are kept.
func (c *parcels) testify(all []choices, end chosen) error {
	for i := range all {
		x := all[i]
		for len(x.all) > choicesMost {
			part := x
			part.all, part.Count = x.all[:choicesMost], choicesMost
			if err := c.send(parcel{Choices: &part}, part.bytes()); err != nil {
				return err
			}
			x.First, x.all = x.First+choicesMost, x.all[choicesMost:]
		}
		x.Count = len(x.all)
		if err := c.send(parcel{Choices: &x}, x.bytes()); err != nil {
			return err
		}
	}
	if err := c.send(parcel{Chosen: &end}, nil); err != nil {
		return err
	}
	if err := c.out.Flush(); err != nil {
		return err
	}
	c.conn.SetReadDeadline(time.Now().Add(carryTime))
	answer, err := c.receive()
	switch {
	case err != nil:
		return err
	case answer.Kept == nil:
		return errors.New("it did not say what has become of the choices")
	case answer.Kept.Error != "":
		return errors.New(answer.Kept.Error)
	}
	return nil
}
