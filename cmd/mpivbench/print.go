package main

import (
	"fmt"
	"io"
	"strings"
)

// printHead writes the comments above the figures.
func (t *test) printHead(w io.Writer) error {
	var s strings.Builder
	fmt.Fprintf(&s, "# OSU-style MPI %s Test\n", t.title)
	switch {
	case t.sized():
		fmt.Fprintf(&s, "%-10s", "# Size")
		for _, c := range t.columns {
			fmt.Fprintf(&s, "%20s", c)
		}
		s.WriteString("\n")
	case t.run != nil:
		fmt.Fprintf(&s, "# %s\n", strings.Join(t.columns, ", "))
	}
	_, err := io.WriteString(w, s.String())
	return err
}

// printLine writes the figures at one size.
func (t *test) printLine(w io.Writer, size int, figures []float64) error {
	var s strings.Builder
	if t.sized() {
		fmt.Fprintf(&s, "%-10d", size)
	} else {
		fmt.Fprintf(&s, "%-10s", "")
	}
	for _, f := range figures {
		fmt.Fprintf(&s, "%20.4f", f)
	}
	s.WriteString("\n")
	_, err := io.WriteString(w, s.String())
	return err
}
