//go:build linux

package main

import (
	"math"
	"strconv"
)

// A claim is a figure and the bar it must not cross.
type claim struct {
	what     string
	measured float64
	unit     string
	bar      float64
	least    bool   // the bar is the least that will do, not the most
	paper    string // what the paper has for it; empty: nothing
	pace     bool   // it hangs on how fast the machine is, and on what else that does
	unjudged bool   // therefore
}

// kept tells whether the bar was. What could not be measured (NaN) keeps none.
func (c claim) kept() bool {
	if c.least {
		return c.measured >= c.bar
	}
	return c.measured <= c.bar
}

// Words for what became of a bar.
const (
	verdictKept   = "kept"
	verdictMissed = "MISSED"
	verdictNone   = "not judged"
)

func (c claim) String() string {
	return c.what + ": " + c.got() + ", bar " + c.sign() + " " + c.figure(c.bar) + ": " + c.verdict()
}

func (c claim) verdict() string {
	switch {
	case c.unjudged:
		return verdictNone
	case !c.kept():
		return verdictMissed
	}
	return verdictKept
}

func (c claim) sign() string {
	if c.least {
		return "≥"
	}
	return "≤"
}

// got is what was measured, beside the paper's figure.
func (c claim) got() string {
	got := "nothing"
	if !math.IsNaN(c.measured) {
		got = c.figure(c.measured)
	}
	if c.paper != "" {
		got += ", the paper " + c.paper
	}
	return got
}

func (c claim) figure(x float64) string {
	s := number(x)
	if c.unit != "" {
		s += " " + c.unit
	}
	return s
}

// number prints x with up to four digits, and integers whole.
func number(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e9 {
		return strconv.FormatFloat(x, 'f', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
