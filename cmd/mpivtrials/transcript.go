//go:build linux

package main

import (
	"strings"
	"sync"
	"time"
)

// A transcript is what a command prints, line by line, and when. Any goroutine may
// write to it and read it.
type transcript struct {
	mu    sync.Mutex // guards what follows
	lines []spokenLine
	rest  string // after the last end of a line
}

// A spokenLine is one line, and when its end came.
type spokenLine struct {
	at   time.Time
	text string
}

func (t *transcript) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	t.rest += string(p)
	for {
		line, rest, whole := strings.Cut(t.rest, "\n")
		if !whole {
			return len(p), nil
		}
		t.lines, t.rest = append(t.lines, spokenLine{now, line}), rest
	}
}

// all is the lines so far.
func (t *transcript) all() []spokenLine {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lines // they are only ever appended
}

// text is what was said, without white space at its ends.
func (t *transcript) text() string { return strings.TrimSpace(t.whole()) }

// whole is what was said, to the last byte.
func (t *transcript) whole() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var b strings.Builder
	for _, l := range t.lines {
		b.WriteString(l.text + "\n")
	}
	return b.String() + t.rest
}

// first is the first line from a time on that has all the words in it; false: there is none.
func (t *transcript) first(from time.Time, words ...string) (spokenLine, bool) {
next:
	for _, l := range t.all() {
		if l.at.Before(from) {
			continue
		}
		for _, w := range words {
			if !strings.Contains(l.text, w) {
				continue next
			}
		}
		return l, true
	}
	return spokenLine{}, false
}
