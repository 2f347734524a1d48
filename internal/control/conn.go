package control

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
)

// maxLine is the longest message that is read unless Limit says otherwise, in
// bytes: the Start of a job of a hundred thousand processes.
const maxLine = 64 << 20

// A Conn sends and receives messages of one type. Send may be called by any
// goroutine, Receive by one.
type Conn[M any] struct {
	conn  net.Conn
	in    *bufio.Reader
	limit int // of a line's bytes

	mu  sync.Mutex // guards enc
	enc *json.Encoder
}

// NewConn speaks over c, which Close closes.
func NewConn[M any](c net.Conn) *Conn[M] {
	return &Conn[M]{conn: c, in: bufio.NewReader(c), limit: maxLine, enc: json.NewEncoder(c)}
}

// Limit bounds the messages that Receive takes to n bytes. It is called before
// Receive.
func (c *Conn[M]) Limit(n int) { c.limit = n }

// Dial connects a process to its agent at path.
func Dial(path string) (*Conn[Message], error) {
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("connect to the agent: %w", err)
	}
	return NewConn[Message](c), nil
}

// Send writes m.
func (c *Conn[M]) Send(m M) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.enc.Encode(m)
}

// Receive waits for the next message. After the peer or Close has ended the
// connection the error is io.EOF or wraps net.ErrClosed.
func (c *Conn[M]) Receive() (m M, err error) {
	line, err := c.line()
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return m, fmt.Errorf("a message that is none: %w", err)
	}
	return m, nil
}

// line is the next line; it is valid until the next call.
func (c *Conn[M]) line() ([]byte, error) {
	line, err := c.in.ReadSlice('\n')
	if !errors.Is(err, bufio.ErrBufferFull) {
		return line, err
	}
	long := append([]byte(nil), line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if line, err = c.in.ReadSlice('\n'); len(long)+len(line) > c.limit {
			return nil, fmt.Errorf("a message of more than %d bytes", c.limit)
		}
		long = append(long, line...)
	}
	return long, err
}

// Close ends the connection and wakes Receive.
func (c *Conn[M]) Close() error { return c.conn.Close() }
