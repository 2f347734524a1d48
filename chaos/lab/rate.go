//go:build linux

package lab

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Rate is in bits per second. Zero is as fast as the machine can.
type Rate int64

// Units of rate, decimal as those of networks are.
const (
	Kbit Rate = 1000
	Mbit      = 1000 * Kbit
	Gbit      = 1000 * Mbit
)

// The token bucket counts in 64-bit bytes and its timer in nanoseconds; beyond
// these bounds it shapes nothing, or lets one frame through in minutes.
const (
	minRate = 8 * Kbit
	maxRate = 400 * Gbit
)

var units = []struct {
	name string
	rate Rate
}{{"gbit", Gbit}, {"mbit", Mbit}, {"kbit", Kbit}}

// ParseRate parses "100mbit", "1.5gbit", "64kbit", and "0" for unshaped.
func ParseRate(s string) (Rate, error) {
	if s == "0" {
		return 0, nil
	}
	for _, u := range units {
		number, ok := strings.CutSuffix(strings.ToLower(s), u.name)
		if !ok {
			continue
		}
		f, err := strconv.ParseFloat(number, 64)
		if err != nil || !(f > 0) || math.IsInf(f, 0) {
			break
		}
		r := Rate(min(max(f*float64(u.rate), 1), math.MaxInt64/2)) // 0 would be unshaped
		return r, r.check()
	}
	return 0, fmt.Errorf("rate %q: write a number and kbit, mbit or gbit, such as 100mbit, or 0 for unshaped", s)
}

func (r Rate) check() error {
	if r != 0 && (r < minRate || r > maxRate) {
		return fmt.Errorf("rate %v: it must be from %v to %v, or 0 for unshaped", r, minRate, maxRate)
	}
	return nil
}

// String is r as ParseRate takes it.
func (r Rate) String() string {
	if r == 0 {
		return "0"
	}
	for _, u := range units {
		if r >= u.rate || u.rate == Kbit {
			return strconv.FormatFloat(float64(r)/float64(u.rate), 'f', -1, 64) + u.name
		}
	}
	panic("lab: no unit for a rate")
}
