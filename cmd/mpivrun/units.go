package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// amount is n in at most five characters: "812", "34.2k", "1.20M".
func amount(n float64) string {
	for _, u := range []string{"", "k", "M", "G", "T"} {
		if math.Abs(n) < 999.5 || u == "T" {
			switch {
			case u == "" && n == math.Trunc(n), math.Abs(n) >= 99.95:
				return fmt.Sprintf("%.0f%s", n, u)
			case math.Abs(n) >= 9.995:
				return fmt.Sprintf("%.1f%s", n, u)
			}
			return fmt.Sprintf("%.2f%s", n, u)
		}
		n /= 1000
	}
	panic("unreachable")
}

// ofBytes is n bytes: "812 B", "34.2 kB".
func ofBytes(n float64) string {
	text := amount(n)
	if last := text[len(text)-1]; last >= 'A' {
		return text[:len(text)-1] + " " + string(last) + "B"
	}
	return text + " B"
}

// span is d in few characters: "4 µs", "12 ms", "3.1 s", "1m04s", "5h07m", "12 days".
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Millisecond:
		return fmt.Sprintf("%d µs", d.Microseconds())
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

// ranksText is "3", "0-3" or "0, 2-3".
func ranksText(ranks []int) string {
	var parts []string
	for i := 0; i < len(ranks); {
		j := i
		for j+1 < len(ranks) && ranks[j+1] == ranks[j]+1 {
			j++
		}
		if i == j {
			parts = append(parts, fmt.Sprint(ranks[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", ranks[i], ranks[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ", ")
}

// count is "1 rank", "4 ranks", "2 processes".
func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") || strings.HasSuffix(what, "ch") {
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// printable is text without what would act on a terminal: it may come from programs.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, text)
}
