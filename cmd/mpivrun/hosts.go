package main

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// A host is where ranks may run.
type host struct {
	Name  string
	Slots int // processes that it takes; 0 means: not said
}

// String is h as --host takes it.
func (h host) String() string {
	if h.Slots == 0 {
		return h.Name
	}
	return h.Name + ":" + strconv.Itoa(h.Slots)
}

const maxSlots = 1 << 20

// parseHosts parses "a:2,b".
func parseHosts(list string) ([]host, error) {
	var hosts []host
	for word := range strings.SplitSeq(list, ",") {
		h, err := parseHost(word)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// parseHost parses "a", "a:2".
func parseHost(word string) (host, error) {
	name, slots, counted := strings.Cut(word, ":")
	h := host{Name: name}
	if name == "" {
		return h, errors.New("a host has no name")
	}
	if i := strings.IndexFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
	}); i >= 0 {
		return h, fmt.Errorf("host %q: a name is letters, digits, dots and dashes", name)
	}
	if counted {
		var err error
		if h.Slots, err = number(slots, 1, maxSlots); err != nil {
			return h, fmt.Errorf("slots of host %s: %w", name, err)
		}
	}
	return h, nil
}

// parseHostfile parses a line for each host, "h", "h:2" or "h slots=2"; the
// rest of a line after # is a comment.
func parseHostfile(text string) ([]host, error) {
	var hosts []host
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		h, err := parseHost(words[0])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			if key != "slots" {
				return nil, fmt.Errorf("line %d: %q is not known here; write HOST slots=N", n, w)
			}
			if h.Slots != 0 {
				return nil, fmt.Errorf("line %d: the slots of %s are given twice", n, h.Name)
			}
			if h.Slots, err = number(value, 1, maxSlots); err != nil {
				return nil, fmt.Errorf("line %d: slots: %w", n, err)
			}
		}
		hosts = append(hosts, h)
	}
	if len(hosts) == 0 {
		return nil, errors.New("it names no host")
	}
	return hosts, nil
}

// formatHostfile is hosts as a hostfile.
func formatHostfile(hosts []host) string {
	var b strings.Builder
	for _, h := range hosts {
		b.WriteString(h.Name)
		if h.Slots > 0 {
			fmt.Fprintf(&b, " slots=%d", h.Slots)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// isLocal is true if name is a name or address of this host, called self.
func isLocal(name, self string) bool {
	short := func(s string) string { s, _, _ = strings.Cut(s, "."); return s }
	if name == "localhost" || name == self {
		return true
	}
	if ip := net.ParseIP(name); ip != nil {
		if ip.IsLoopback() {
			return true
		}
		addrs, _ := net.InterfaceAddrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
				return true
			}
		}
		return false
	}
	// One of the two may be the other with its domain.
	return short(name) == short(self) && (!strings.Contains(name, ".") || !strings.Contains(self, "."))
}
