package main

import (
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
)

// A column of a table.
type column struct {
	title string
	right bool // its cells are numbers
}

// A row of a table is its cells, and how they look.
type row struct {
	cells []string
	look  lipgloss.Style
}

var (
	plainLook = lipgloss.NewStyle()
	headLook  = lipgloss.NewStyle().Bold(true)
	titleLook = lipgloss.NewStyle().Bold(true).Reverse(true)
	faintLook = lipgloss.NewStyle().Faint(true)
	waitLook  = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	badLook   = lipgloss.NewStyle().Foreground(lipgloss.Red)
)

// table is a line of titles and one for each of rows, none wider than width. Of
// the last column goes what does not fit.
func table(columns []column, rows []row, width int) []string {
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = ansi.StringWidth(c.title)
		for _, r := range rows {
			widths[i] = max(widths[i], ansi.StringWidth(r.cells[i]))
		}
	}
	line := func(cells []string, look lipgloss.Style) string {
		var b strings.Builder
		for i, c := range columns {
			gap := strings.Repeat(" ", widths[i]-ansi.StringWidth(cells[i]))
			switch {
			case c.right:
				b.WriteString(gap + cells[i])
			case i < len(columns)-1:
				b.WriteString(cells[i] + gap)
			default:
				b.WriteString(cells[i])
			}
			if i < len(columns)-1 {
				b.WriteString("  ")
			}
		}
		return look.Render(ansi.Truncate(strings.TrimRight(b.String(), " "), width, "…"))
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	lines := []string{line(titles, headLook)}
	for _, r := range rows {
		lines = append(lines, line(r.cells, r.look))
	}
	return lines
}
