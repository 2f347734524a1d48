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
}

// kept tells whether the bar was. What could not be measured (NaN) keeps none.
func (c claim) kept() bool {
	if c.least {
		return c.measured >= c.bar
	}
	return c.measured <= c.bar
}

func (c claim) String() string {
	sign, verdict := "≤", "kept"
	if c.least {
		sign = "≥"
	}
	if !c.kept() {
		verdict = "MISSED"
	}
	measured := "nothing"
	if !math.IsNaN(c.measured) {
		measured = c.figure(c.measured)
	}
	if c.paper != "" {
		measured += ", the paper " + c.paper
	}
	return c.what + ": " + measured + ", bar " + sign + " " + c.figure(c.bar) + ": " + verdict
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
