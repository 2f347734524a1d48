package topology

import (
	"fmt"
	"slices"
)

// A Class is what kind of network a path between two processes goes over. Of
// two classes the lower is tried first.
type Class uint8

const (
	SameHost Class = iota // memory, or the loopback
	SAN                   // a fast network that some hosts share
	LAN                   // the network that all hosts of a site share
	WAN                   // beyond a router, a relay or an address translation
)

var classes = []string{"host", "san", "lan", "wan"}

func (c Class) String() string {
	if int(c) < len(classes) {
		return classes[c]
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// ParseClass is the inverse of Class.String.
func ParseClass(text string) (Class, error) {
	if i := slices.Index(classes, text); i >= 0 {
		return Class(i), nil
	}
	return 0, fmt.Errorf("%q is no class of networks: want one of %v", text, classes)
}

// MarshalText and UnmarshalText are for JSON.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *Class) UnmarshalText(text []byte) (err error) {
	*c, err = ParseClass(string(text))
	return err
}
