// Package ganglia reports readings to Ganglia's gmond, and reads what a gmond
// knows, so that sites that have it see jobs beside everything else.
package ganglia

import (
	"context"
	"encoding/binary"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"time"
	"unicode/utf8"
)

// A Metric is one number about a host.
type Metric struct {
	Name   string // at most 255 bytes, one word
	Value  float64
	Units  string        // such as bytes/sec
	Group  string        // a heading in Ganglia's pages; may be empty
	Every  time.Duration // how often it is sent at most; zero means a minute
	Forget time.Duration // gmond drops it after so long without; zero means an hour

	// Host is the metric's, as "ADDRESS:NAME". Empty: whose address the packet has.
	Host string
}

// A Reporter sends metrics to one gmond over UDP, in the format of Ganglia 3.1 and later. It
// is for one goroutine.
type Reporter struct {
	conn net.Conn
	told map[string]time.Time // metrics that gmond has been told the nature of
}

// Again is how often the nature of a metric is said again: a gmond that was restarted
// has forgotten it.
const Again = time.Minute

// Dial makes a reporter to a gmond's UDP channel, such as "127.0.0.1:8649". ctx is for
// finding the address of a name.
func Dial(ctx context.Context, address string) (*Reporter, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return nil, fmt.Errorf("reach gmond: %w", err)
	}
	return &Reporter{conn, map[string]time.Time{}}, nil
}

// Close ends the reporter.
func (r *Reporter) Close() error { return r.conn.Close() }

// Report sends a metric. No error does not mean that it arrived.
func (r *Reporter) Report(now time.Time, m Metric) error {
	if err := m.check(); err != nil {
		return fmt.Errorf("report to gmond: metric %q: %w", m.Name, err)
	}
	key := m.Host + "\x00" + m.Name
	if last, ok := r.told[key]; !ok || now.Sub(last) >= Again {
		if _, err := r.conn.Write(m.nature()); err != nil {
			return fmt.Errorf("report to gmond: %w", err)
		}
		r.told[key] = now
	}
	if _, err := r.conn.Write(m.value()); err != nil {
		return fmt.Errorf("report to gmond: %w", err)
	}
	return nil
}

func (m Metric) check() error {
	if m.Name == "" {
		return errors.New("it has no name")
	}
	for _, text := range []string{m.Name, m.Units, m.Group, m.Host} {
		if len(text) > 255 {
			return errors.New("a text is longer than 255 bytes")
		}
		for _, c := range []byte(text) {
			if c < ' ' || c > '~' || c == '"' || c == '<' || c == '>' || c == '&' {
				return fmt.Errorf("%q holds what gmond's XML cannot", text)
			}
		}
	}
	if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
		return fmt.Errorf("its value is %v", m.Value)
	}
	return nil
}

// Kinds of packets and the slope "both", from Ganglia's gm_protocol.x.
const (
	packetNature = 128
	packetString = 133
	slopeBoth    = 3
)

// nature is the packet that says what a metric is.
func (m Metric) nature() []byte {
	every, forget := m.Every, m.Forget
	if every == 0 {
		every = time.Minute
	}
	if forget == 0 {
		forget = time.Hour
	}
	p := m.begin(packetNature)
	p = text(p, "double")
	p = text(p, m.Name)
	p = text(p, m.Units)
	p = number(p, slopeBoth)
	p = number(p, uint32(max(1, every/time.Second)))
	p = number(p, uint32(max(1, forget/time.Second)))
	if m.Group == "" {
		return number(p, 0)
	}
	p = number(p, 1)
	return text(text(p, "GROUP"), m.Group)
}

// value is the packet that carries the value, as a string, which is what gmetric does.
func (m Metric) value() []byte {
	p := m.begin(packetString)
	p = text(p, "%s")
	return text(p, strconv.FormatFloat(m.Value, 'g', -1, 64))
}

func (m Metric) begin(kind uint32) []byte {
	p := number(nil, kind)
	p = text(p, m.Host)
	p = text(p, m.Name)
	if m.Host == "" {
		return number(p, 0)
	}
	return number(p, 1)
}

// number and text are XDR (RFC 4506).
func number(p []byte, n uint32) []byte { return binary.BigEndian.AppendUint32(p, n) }

func text(p []byte, s string) []byte {
	p = append(number(p, uint32(len(s))), s...)
	return append(p, make([]byte, -len(s)&3)...)
}

// Read reads the metrics of all hosts from what a gmond writes to who connects to its
// TCP channel. Those whose value is no number are left out.
func Read(r io.Reader) ([]Metric, error) {
	d := xml.NewDecoder(io.LimitReader(r, 64<<20))
	d.CharsetReader = func(name string, in io.Reader) (io.Reader, error) { return latin1{in}, nil }
	var all []Metric
	host := ""
	for whole := false; ; {
		token, err := d.Token()
		if err == io.EOF && whole {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read from gmond: %w", err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		a := map[string]string{}
		for _, x := range start.Attr {
			a[x.Name.Local] = x.Value
		}
		switch start.Name.Local {
		case "GANGLIA_XML":
			whole = true
		case "HOST":
			host = a["IP"] + ":" + a["NAME"]
		case "METRIC":
			if v, err := strconv.ParseFloat(a["VAL"], 64); err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) {
				all = append(all, Metric{Name: a["NAME"], Value: v, Units: a["UNITS"], Host: host})
			}
		}
	}
}

// latin1 is ISO-8859-1, which gmond says it writes, as UTF-8.
type latin1 struct{ in io.Reader }

func (l latin1) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	raw := make([]byte, len(p)/2)
	n, err := l.in.Read(raw)
	out := p[:0]
	for _, c := range raw[:n] {
		out = utf8.AppendRune(out, rune(c))
	}
	return len(out), err
}
