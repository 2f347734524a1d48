package sensors

import (
	"fmt"
	"strconv"
	"strings"
)

// A Threshold is a rate set by hand. A link that it fits breaches below it, whatever
// was learned.
type Threshold struct {
	From, To string // names of hosts; "*" is any
	Network  string // empty is any
	Size     SizeClass
	AnySize  bool
	Rate     float64 // bytes a second
}

// String is what ParseThresholds reads: "X>Y@lan/large:5MB/s".
func (t Threshold) String() string {
	text := Link{t.From, t.To, t.Network}.String()
	if !t.AnySize {
		text += "/" + t.Size.String()
	}
	return text + ":" + formatRate(t.Rate)
}

func (t Threshold) fits(l Link, size SizeClass) bool {
	return (t.From == "*" || t.From == l.From) && (t.To == "*" || t.To == l.To) &&
		(t.Network == "" || t.Network == l.Network) && (t.AnySize || t.Size == size)
}

// ParseThresholds reads thresholds with commas or white space between them, each FROM>TO:RATE
// as in "X>Y:5MB/s" or "X>Y=5MB/s". FROM and TO are hosts, or * for any. After TO may stand @NETWORK and then
// /small, /middle or /large. Of several that fit a link the first counts.
func ParseThresholds(text string) ([]Threshold, error) {
	var all []Threshold
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n", r) }) {
		t, err := parseThreshold(word)
		if err != nil {
			return nil, fmt.Errorf("threshold %q: %w", word, err)
		}
		all = append(all, t)
	}
	return all, nil
}

func parseThreshold(word string) (Threshold, error) {
	colon := strings.LastIndexAny(word, ":=") // a host's name may be an IPv6 address
	if colon < 0 {
		return Threshold{}, fmt.Errorf("want FROM>TO:RATE, such as X>Y:5MB/s")
	}
	t := Threshold{AnySize: true}
	var err error
	if t.Rate, err = parseRate(word[colon+1:]); err != nil {
		return Threshold{}, err
	}
	link, size, sized := strings.Cut(word[:colon], "/")
	if sized {
		t.AnySize = false
		if t.Size, err = ParseSizeClass(size); err != nil {
			return Threshold{}, err
		}
	}
	link, network, named := strings.Cut(link, "@")
	from, to, both := strings.Cut(link, ">")
	if !both || from == "" || to == "" || strings.Contains(to, ">") {
		return Threshold{}, fmt.Errorf("%q is no link: want FROM>TO", link)
	}
	if named && (network == "" || strings.ContainsAny(network, "@>")) {
		return Threshold{}, fmt.Errorf("%q is no network's name", network)
	}
	t.From, t.To, t.Network = from, to, network
	return t, nil
}

// The first of equals is the one that is printed.
var units = []struct {
	name  string
	bytes float64
}{
	{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"B", 1},
	{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"Gbit", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"kbit", 1e3 / 8}, {"bit", 1. / 8},
}

func parseRate(text string) (float64, error) {
	amount, second := strings.CutSuffix(text, "/s")
	end := strings.LastIndexAny(amount, "0123456789.") + 1
	for _, u := range units {
		if !second || u.name != amount[end:] {
			continue
		}
		x, err := strconv.ParseFloat(amount[:end], 64)
		if err != nil || !(x*u.bytes > 0) || x*u.bytes > mostRate {
			return 0, fmt.Errorf("%q is no rate: want more than 0 and at most %g bytes a second", text, mostRate)
		}
		return x * u.bytes, nil
	}
	return 0, fmt.Errorf("%q is no rate: want a number and B/s, kB/s, MB/s, GB/s, KiB/s, MiB/s, GiB/s, kbit/s, Mbit/s or Gbit/s", text)
}

// formatRate is what parseRate reads back to the same bits.
func formatRate(rate float64) string {
	for _, u := range units[:3] {
		if x := rate / u.bytes; x >= 1 && x*u.bytes == rate {
			return strconv.FormatFloat(x, 'f', -1, 64) + u.name + "/s"
		}
	}
	return strconv.FormatFloat(rate, 'f', -1, 64) + "B/s"
}

// bytesPerSecond is a rate for people.
func bytesPerSecond(rate float64) string {
	for _, u := range units[:3] {
		if rate >= u.bytes {
			return strconv.FormatFloat(rate/u.bytes, 'g', 3, 64) + " " + u.name + "/s"
		}
	}
	return strconv.FormatFloat(rate, 'f', 0, 64) + " B/s"
}
