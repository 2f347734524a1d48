package main

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
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

// place is h's name without the user.
func (h host) place() string {
	if _, place, with := strings.Cut(h.Name, "@"); with {
		return place
	}
	return h.Name
}

// add has h be what two lines say of it, this one and again.
func (h *host) add(again host) {
	h.Slots = max(h.Slots, 1) + max(again.Slots, 1)
	if h.MaxSlots == 0 || again.MaxSlots == 0 {
		h.MaxSlots = 0 // any number
	} else {
		h.MaxSlots += again.MaxSlots
	}
	if len(h.Networks) == 0 {
		h.Networks = again.Networks
	}
	h.Distrusted = h.Distrusted || again.Distrusted
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

// parseHost parses "a", "a:2", "me@a:2", "[::1]:2".
func parseHost(word string) (host, error) {
	user, rest, with := strings.Cut(word, "@")
	if !with {
		rest = word
	}
	place, slots, counted := strings.Cut(rest, ":")
	if inner, ok := strings.CutPrefix(rest, "["); ok {
		addr, after, closed := strings.Cut(inner, "]")
		slots, counted = strings.CutPrefix(after, ":")
		if ip, err := netip.ParseAddr(addr); err != nil || !ip.Is6() || !closed || after != "" && !counted || !plain(ip.Zone(), true) {
			return host{}, fmt.Errorf("host %q: want an IPv6 address in the brackets, and perhaps :SLOTS after them", word)
		}
		place = addr
	} else if _, err := netip.ParseAddr(rest); err == nil && strings.Contains(rest, ":") {
		return host{}, fmt.Errorf("host %q: an IPv6 address is written in brackets, [%s]", word, rest)
	} else if !plain(place, false) {
		return host{}, badName(place)
	}
	h := host{Name: place}
	if with {
		if !plain(user, false) {
			return h, badName(user)
		}
		h.Name = user + "@" + place
	}
	if counted {
		var err error
		if h.Slots, err = number(slots, 1, maxSlots); err != nil {
			return h, fmt.Errorf("slots of host %s: %w", h.Name, err)
		}
	}
	return h, nil
}

// nameMost is how long DNS lets a name be.
const nameMost = 255

// plain is true if name is of letters, digits, dots and dashes, not too long, and is not taken
// for an option by the command that is given it.
func plain(name string, empty bool) bool {
	return (name != "" || empty) && len(name) <= nameMost && !strings.HasPrefix(name, "-") && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' || r == '_')
	})
}

func badName(name string) error {
	if name == "" {
		return errors.New("a host has no name")
	}
	return fmt.Errorf("host %q: a name is letters, digits, dots and dashes, %d at most, and may follow USER@", name, nameMost)
}

// aliases are the words of other launchers for labels of ours.
var aliases = map[string]string{
	"slot": "slots", "count": "slots", "cpu": "slots", "max-slots": "max_slots", "slots-max": "max_slots", "slots_max": "max_slots",
	"username": "user", "user-name": "user", "user_name": "user",
}

var equals = regexp.MustCompile(`[ \t]*=[ \t]*`)

// parseHostfile parses a line for each host, "h", "h:2" or "h slots=2", with
// labels after that; the rest of a line after # is a comment.
func parseHostfile(text string) ([]host, error) {
	var hosts []host
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(equals.ReplaceAllString(line, "="))
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
			if name, ok := aliases[key]; ok {
				key = name
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
	case "user":
		if !plain(value, false) || strings.Contains(h.Name, "@") {
			return fmt.Errorf("user: want one user for host %s, not %q", h.Name, value)
		}
		h.Name = value + "@" + h.Name
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
	case "binding":
		return errors.New("binding= is MPICH's: here --bind-to core or --bind-to none is for all hosts")
	case "ifhn":
		return errors.New("ifhn= is MPICH's: here lan=ADDRESS, san=ADDRESS or wan=ADDRESS says where a host is on a network")
	default:
		return fmt.Errorf("%q is not known here; there are slots=N, max_slots=N, user=NAME, san=ADDRESS, lan=ADDRESS, wan=ADDRESS and trust=yes|no", key)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// chosenOf is those of all that names names, with the slots that names gives them
// or else their own. where is what all is, for the sentence about one that is not
// there.
func chosenOf(all, names []host, where string) ([]host, error) {
	var once []host
	for _, n := range names {
		i := slices.IndexFunc(once, func(h host) bool { return sameName(h.place(), n.place()) })
		if i < 0 {
			once = append(once, n)
			continue
		}
		once[i].Slots = max(once[i].Slots, 1) + max(n.Slots, 1)
	}
	var chosen []host
	for _, n := range once {
		var own *host
		for _, h := range all {
			switch {
			case !sameName(h.place(), n.place()):
			case own == nil:
				own = &h
			default: // there on several lines
				own.add(h)
			}
		}
		if own == nil {
			return nil, fmt.Errorf("host %s is not in %s", n.Name, where)
		}
		if n.Slots > 0 {
			own.Slots = n.Slots
		}
		if strings.Contains(n.Name, "@") {
			own.Name = n.Name
		}
		chosen = append(chosen, *own)
	}
	return chosen, nil
}

// sameName is true if a and b name one host: equal, or one is the other with its
// domain.
func sameName(a, b string) bool {
	if a == b {
		return true
	}
	if _, err := netip.ParseAddr(a); err == nil {
		return false
	}
	short := func(s string) string { s, _, _ = strings.Cut(s, "."); return s }
	return short(a) == short(b) && (!strings.Contains(a, ".") || !strings.Contains(b, "."))
}

// isLocal is true if h is this host: it has one of its names or addresses.
func (h host) isLocal(m machine) bool {
	name := h.place()
	for _, n := range h.Networks {
		if m.has(n.Address) {
			return true
		}
	}
	for _, own := range m.Names {
		if sameName(name, own) {
			return true
		}
	}
	return name == "localhost" || m.has(name)
}
