package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/mpiv/mpiv/internal/identity"
)

// streamWord makes this command one end of a bare stream of crypto/tls, which
// shows what the library can do between two hosts without messages.
const streamWord = "tls-stream"

// stream is the contender: test bw with one connection, each write a message.
func stream(self string) contender {
	return contender{
		id: "stream" + tls13, name: "crypto/tls alone", only: []string{"bw"},
		share:   func(setting) int { return 1 },
		command: func(s setting) ([]string, []string) { return append([]string{self, streamWord}, s.flags(1)...), nil },
	}
}

// runStream is this command as a stream: it starts its other end on host Y.
func runStream(args []string) error {
	if len(args) == 1 && args[0] == "serve" {
		return serveStream()
	}
	f := flag.NewFlagSet(streamWord, flag.ContinueOnError)
	sizes := f.String("s", "", "message sizes")
	iters := f.Int("i", 100, "windows of 64 messages")
	warmup := f.Int("x", 10, "windows before the clock starts")
	if err := f.Parse(args); err != nil {
		return err
	}
	list, err := parseSizes(*sizes)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command("mpivlab", "exec", "Y", self, streamWord, "serve")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer cmd.Wait()
	defer in.Close()
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("the other end: %w", err)
	}
	config, err := streamConfig()
	if err != nil {
		return err
	}
	conn, err := tls.Dial("tcp", net.JoinHostPort("10.1.0.2", strings.TrimSpace(port)), config)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, size := range list {
		n, x := *iters, *warmup
		if size > large { // as osu.c does
			n, x = max(1, n/25), x/25
		}
		rate, err := pour(conn, size, x, n)
		if err != nil {
			return err
		}
		fmt.Printf("%d %.2f\n", size, rate)
	}
	return nil
}

const windowMessages = 64

// pour sends windows of messages and returns the bandwidth in MB/s.
func pour(conn io.ReadWriter, size, warmup, windows int) (float64, error) {
	data, reply := make([]byte, size), make([]byte, 1)
	var start time.Time
	for i := range warmup + windows {
		if i == warmup {
			start = time.Now()
		}
		if _, err := fmt.Fprintf(conn, "%09d\n", size*windowMessages); err != nil {
			return 0, err
		}
		for range windowMessages {
			if _, err := conn.Write(data); err != nil {
				return 0, err
			}
		}
		if _, err := io.ReadFull(conn, reply); err != nil {
			return 0, err
		}
	}
	return float64(size) * windowMessages * float64(windows) / time.Since(start).Seconds() / 1e6, nil
}

// serveStream is the end that reads, until its standard input ends.
func serveStream() error {
	config, err := streamConfig()
	if err != nil {
		return err
	}
	ln, err := tls.Listen("tcp", "10.1.0.2:0", config)
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	fmt.Println(port)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	conn, err := ln.Accept()
	if err != nil {
		return err
	}
	buf, head := make([]byte, 1<<20), make([]byte, 10)
	for {
		if _, err := io.ReadFull(conn, head); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var n int
		if _, err := fmt.Sscanf(string(head), "%d\n", &n); err != nil {
			return err
		}
		for n > 0 {
			k, err := conn.Read(buf[:min(n, len(buf))])
			if err != nil {
				return err
			}
			n -= k
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
	}
}

// streamConfig is TLS as mpiv's processes speak it, but for the check of who the
// other is: each end makes a certificate of its own.
func streamConfig() (*tls.Config, error) {
	a, err := identity.NewAuthority("stream")
	if err != nil {
		return nil, err
	}
	c, err := a.Issue(identity.Process, 0)
	if err != nil {
		return nil, err
	}
	id, err := c.Open()
	if err != nil {
		return nil, err
	}
	config := id.TLS()
	config.VerifyConnection = nil
	return config, nil
}
