package agent

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mpiv/mpiv/checkpoint"
	"github.com/mpiv/mpiv/internal/control"
)

// What one agent says to another that keeps copies of its snapshots: Begin, some Puts,
// Commit, and then it waits for Kept. Exactly one field is set, and a Put is followed by
// its bytes.
type parcel struct {
	Begin  *beginning `json:",omitempty"`
	Put    *piece     `json:",omitempty"`
	Commit []byte     `json:",omitempty"` // a checkpoint.Sum
	Kept   *kept      `json:",omitempty"`

	// Of choices: some Choices, and Chosen; then it waits for Kept, too.
	Choices *choices `json:",omitempty"` // followed by the records
	Chosen  *chosen  `json:",omitempty"`
}

type beginning struct {
	Rank    int
	Epoch   uint32
	Number  uint64
	Base    uint64
	Lengths []int64
}

type piece struct {
	Part  int
	Off   int64
	Bytes int
}

type kept struct {
	Again bool   `json:",omitempty"` // it has not what the delta is from: all is to be sent
	Error string `json:",omitempty"`
}

const (
	pieceLen    = 256 << 10
	parcelBytes = 2 << 20 // of a parcel as JSON: the lengths of 65536 parts
)

// parcels is one end of such a connection. For one goroutine.
type parcels struct {
	conn net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
}

func newParcels(c net.Conn) *parcels {
	return &parcels{c, bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)}
}

// raw is the connection below TLS.
func (c *parcels) raw() net.Conn { return c.conn.(interface{ NetConn() net.Conn }).NetConn() }

// send queues p and what follows it.
func (c *parcels) send(p parcel, data []byte) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	var head [4]byte
	binary.LittleEndian.PutUint32(head[:], uint32(len(text)))
	c.conn.SetWriteDeadline(time.Now().Add(parcelTime))
	c.out.Write(head[:]) // an error stays until Flush
	c.out.Write(text)
	_, err = c.out.Write(data)
	return err
}

// receive waits for the next.
func (c *parcels) receive() (p parcel, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return p, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > parcelBytes {
		return p, fmt.Errorf("a message of %d bytes about copies: at most %d", n, parcelBytes)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(c.in, text); err != nil {
		return p, err
	}
	return p, json.Unmarshal(text, &p)
}

// parcelTime is how long a piece may take on its way, and the end of a copy to be
// confirmed.
const parcelTime = 20 * time.Second

// A life of a rank: that which began in an epoch.
type life struct {
	rank  int
	epoch uint32
}

// A shelf has the copies of what one life of a rank has saved.
type shelf struct {
	mu      sync.Mutex // guards what follows
	file    string
	area    *checkpoint.Area
	replica *checkpoint.Replica
	has     bool // what is being brought, from another time: a pair was made anew, or an answer was lost
}

// shelfOf is where the copies of l are kept.
func (b *buddies) shelfOf(l life) (*shelf, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir == "" || b.closed {
		return nil, errors.New("the agent is not ready for copies")
	}
	if s := b.shelves[l]; s != nil {
		return s, nil
	}
	s := &shelf{file: filepath.Join(b.dir, fmt.Sprintf("copy-%d.%d", l.rank, l.epoch))}
	var err error
	if s.area, err = checkpoint.Create(s.file); err != nil {
		return nil, err
	}
	s.replica = checkpoint.NewReplica(s.area)
	b.shelves[l] = s
	return s, nil
}

// keep takes copies from an agent until the connection ends.
func (b *buddies) keep(conn *tls.Conn) error {
	c := newParcels(conn)
	var to *shelf
	var of beginning
	var failed error // of the copy that is on its way
	var said []choices
	buf := make([]byte, pieceLen)
	for {
		p, err := c.receive()
		if err != nil {
			return err
		}
		switch {
		case p.Begin != nil:
			of = *p.Begin
			if to, failed = b.shelfOf(life{of.Rank, of.Epoch}); failed == nil {
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
				b.tell(control.FromAgent{Holds: &control.Holds{Rank: of.Rank, Epoch: of.Epoch, Number: of.Number, File: to.file}})
				if of.Base != 0 {
					b.forgetBefore(life{of.Rank, of.Epoch})
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
			if err := b.hear(conn.NetConn(), said, p.Chosen.Brought); err != nil {
				answer.Error = err.Error()
			} else if p.Chosen.Brought {
				b.tell(control.FromAgent{Brought: &control.Brought{Rank: p.Chosen.Rank, Agent: p.Chosen.Agent}})
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
func (b *buddies) forgetBefore(l life) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.forgot[l.rank] >= l.epoch {
		return
	}
	b.forgot[l.rank] = l.epoch
	for old, s := range b.shelves {
		if old.rank == l.rank && old.epoch < l.epoch {
			s.close()
			delete(b.shelves, old)
		}
	}
	for old, h := range b.heard {
		if old.rank == l.rank && old.epoch < l.epoch {
			h.d.Close()
			delete(b.heard, old)
		}
	}
	removeBefore(b.dir, l, "copy", "rank", "choices", "witness")
}

// removeBefore removes files of those kinds of lives of the rank before l.
func removeBefore(dir string, l life, kinds ...string) {
	for _, kind := range kinds {
		files, _ := filepath.Glob(filepath.Join(dir, fmt.Sprintf("%s-%d.*", kind, l.rank)))
		for _, f := range files {
			epoch, err := strconv.ParseUint(f[strings.LastIndexByte(f, '.')+1:], 10, 32)
			if err == nil && uint32(epoch) < l.epoch {
				os.Remove(f)
			}
		}
	}
}
