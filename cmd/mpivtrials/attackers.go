//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/mpiv/mpiv/chaos/lab"
)

// A flooding is the paper's attack on a host, by mpivlab flood: 200 connections that ask for a
// file of 8 MB.
type flooding struct {
	began time.Time // the host serves, and who attacks is being started
	cmd   *exec.Cmd
	tie   io.Closer
	done  chan struct{}
	said  transcript
}

// flood floods a host from host A until end, with Apache and ab, or with mpivlab itself.
func (s *stage) flood(ctx context.Context, host, with string) (*flooding, error) {
	f := &flooding{cmd: exec.CommandContext(ctx, filepath.Join(s.d.bin, "mpivlab"), "flood", "--tied", "--from", "A", "--for", "2m", "--with", with, host), done: make(chan struct{})}
	f.cmd.Env = append(os.Environ(), lab.Variable+"="+s.lab.Path())
	f.cmd.Stderr = &f.said
	in, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, err
	}
	f.tie = in
	begun := make(chan time.Time, 1)
	go func() {
		defer close(f.done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case begun <- time.Now():
			default:
			}
		}
		_ = f.cmd.Wait() // what it said is in said
	}()
	select {
	case f.began = <-begun:
		return f, nil
	case <-f.done:
	case <-time.After(10 * time.Second):
		f.end()
	}
	return nil, fmt.Errorf("the flood of %s did not begin: %s", host, f.said.text())
}

// end ends the flood, and waits for that; it says so where it had ended before. Twice is harmless.
func (f *flooding) end() (err error) {
	select {
	case <-f.done:
		err = fmt.Errorf("the flood ended before its time: %s", f.said.text())
	default:
	}
	f.tie.Close()
	<-f.done
	return err
}

// A copying is one file that goes over one connection.
type copying struct {
	stop context.CancelFunc
	wg   sync.WaitGroup
	err  error // it broke
}

const copyPort = "9009"

// copy sends so many bytes from one host to another, over TCP.
func (s *stage) copy(ctx context.Context, from, to string, bytes int64) (*copying, error) {
	at, err := s.lab.Addr(to, "lan")
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort(at.String(), copyPort)
	ln, err := s.lab.Listen(to, "tcp", address)
	if err != nil {
		return nil, err
	}
	out, err := s.lab.Dial(ctx, from, "tcp", address)
	if err != nil {
		ln.Close()
		return nil, err
	}
	in, err := ln.Accept()
	ln.Close()
	if err != nil {
		out.Close()
		return nil, err
	}
	return carry(ctx, out, in, bytes), nil
}

// carry sends so many bytes over a connection, of which it has both ends.
func carry(ctx context.Context, out, in net.Conn, bytes int64) *copying {
	c := &copying{}
	ctx, c.stop = context.WithCancel(ctx)
	hangUp := context.AfterFunc(ctx, func() { out.Close(); in.Close() })
	c.wg.Go(func() {
		defer out.Close()
		block := make([]byte, 64<<10)
		for sent := int64(0); sent < bytes; {
			n, err := out.Write(block[:min(int64(len(block)), bytes-sent)])
			if err != nil {
				return // who reads says it
			}
			sent += int64(n)
		}
	})
	c.wg.Go(func() {
		defer hangUp()
		defer in.Close()
		n, err := io.Copy(io.Discard, in)
		if n != bytes && ctx.Err() == nil {
			c.err = fmt.Errorf("the copy broke after %d of %d bytes: %w", n, bytes, errors.Join(err, io.ErrUnexpectedEOF))
		}
	})
	return c
}

// end ends it now, and says so where it broke before. Twice is harmless.
func (c *copying) end() error {
	c.stop()
	c.wg.Wait()
	return c.err
}
