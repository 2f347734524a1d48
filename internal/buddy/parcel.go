package buddy

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"time"
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
