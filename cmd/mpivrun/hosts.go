package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/mpiv/mpiv/internal/control"
	"github.com/mpiv/mpiv/topology"
)

// A host is where ranks may run, as it was written.
type host struct {
	Name       string // may begin with USER@
	Slots      int    // processes that it takes; 0 means: not said
	MaxSlots   int    // that it takes however they are dealt out; 0 means any number
	Networks   []control.Network
	Distrusted bool
}

// String is h as --host takes it: without its labels.
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

// parseHost parses "a", "a:2", "me@a:2".
func parseHost(word string) (host, error) {
	name, slots, counted := strings.Cut(word, ":")
	h := host{Name: name}
	if name == "" {
		return h, errors.New("a host has no name")
	}
	user, place, with := strings.Cut(name, "@")
	if !with {
		user, place = "u", name
	}
	for _, part := range []string{user, place} {
		if part == "" || part[0] == '-' || strings.ContainsFunc(part, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
		}) {
			return h, fmt.Errorf("host %q: a name is letters, digits, dots and dashes, and may follow USER@", name)
		}
	}
	if counted {
		var err error
		if h.Slots, err = number(slots, 1, maxSlots); err != nil {
			return h, fmt.Errorf("slots of host %s: %w", name, err)
		}
	}
	return h, nil
}

// parseHostfile parses a line for each host, "h", "h:2" or "h slots=2", with
// labels after that; the rest of a line after # is a comment.
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
		given := map[string]bool{"slots": h.Slots != 0}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			if key == "max-slots" {
				key = "max_slots"
			}
			if given[key] {
				return nil, fmt.Errorf("line %d: the %s of %s are given twice", n, key, h.Name)
			}
			given[key] = true
			if err := h.label(key, value); err != nil {
				return nil, fmt.Errorf("line %d: %w", n, err)
			}
		}
		if h.MaxSlots > 0 && h.MaxSlots < h.Slots {
			return nil, fmt.Errorf("line %d: %s has %d slots, more than its max_slots", n, h.Name, h.Slots)
		}
		hosts = append(hosts, h)
	}
	if len(hosts) == 0 {
		return nil, errors.New("it names no host")
	}
	return hosts, nil
}

// label takes one word of a hostfile's line.
func (h *host) label(key, value string) (err error) {
	switch key {
	case "slots":
		h.Slots, err = number(value, 1, maxSlots)
	case "max_slots":
		h.MaxSlots, err = number(value, 1, maxSlots)
	case "trust":
		if value != "yes" && value != "no" {
			return errors.New("trust: want yes or no")
		}
		h.Distrusted = value == "no"
	case "san", "lan", "wan":
		class, _ := topology.ParseClass(key)
		for text := range strings.SplitSeq(value, ",") {
			addr, err := netip.ParseAddr(text)
			if err != nil || addr.IsUnspecified() || addr.Zone() != "" {
				return fmt.Errorf("%s: want the host's IP address on that network, not %q", key, text)
			}
			h.Networks = append(h.Networks, control.Network{Class: class, Address: addr.String()})
		}
		return nil
	default:
		return fmt.Errorf("%q is not known here; there are slots=N, max_slots=N, san=ADDRESS, lan=ADDRESS, wan=ADDRESS and trust=yes|no", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// formatHostfile is hosts as a hostfile.
func formatHostfile(hosts []host) string {
	var b strings.Builder
	for _, h := range hosts {
		b.WriteString(h.Name)
		if h.Slots > 0 {
			fmt.Fprintf(&b, " slots=%d", h.Slots)
		}
		if h.MaxSlots > 0 {
			fmt.Fprintf(&b, " max_slots=%d", h.MaxSlots)
		}
		for i, n := range h.Networks {
			if i > 0 && h.Networks[i-1].Class == n.Class {
				fmt.Fprintf(&b, ",%s", n.Address)
				continue
			}
			fmt.Fprintf(&b, " %s=%s", n.Class, n.Address)
		}
		if h.Distrusted {
			b.WriteString(" trust=no")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// isLocal is true if h is this host: it has one of its names or addresses.
func (h host) isLocal(m machine) bool {
	_, name, with := strings.Cut(h.Name, "@")
	if !with {
		name = h.Name
	}
	for _, n := range h.Networks {
		if m.has(n.Address) {
			return true
		}
	}
	short := func(s string) string { s, _, _ = strings.Cut(s, "."); return s }
	for _, own := range m.Names {
		// One of the two may be the other with its domain.
		if name == own || short(name) == short(own) && (!strings.Contains(name, ".") || !strings.Contains(own, ".")) {
			return true
		}
	}
	return name == "localhost" || m.has(name)
}
